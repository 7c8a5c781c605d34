"""SQL92 filters: an expression is compiled once and then asked about each message's properties.

Three-valued: True, False, or None for unknown, which a missing property makes of a comparison; only
True is a match. Properties are text. Beside a number they are read as one, beside TRUE or FALSE as
a boolean. Text that is not a number beside a number is an error of the whole evaluation, and then
the message does not match, even where an OR has another side (upstream: ComparisonExpression.java,
ExpressionMessageFilter.java).

Evaluation works on the property bytes of a stored record: nothing is decoded but what is asked for.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Final

from cometmq.filter.sqltext import (
    All,
    Any,
    BadFilter,
    Compare,
    Constant,
    IsNull,
    Negative,
    Node,
    Not,
    OneOf,
    Property,
    Search,
    parse,
)
from cometmq.message.properties import finder

__all__ = ["BadFilter", "SqlFilter"]

Value = bytes | int | float | bool | None
Evaluate = Callable[[bytes], Value]
Order = Callable[[float, float], bool]

_INT: Final = 1 << 31
_LONG: Final = 1 << 63
_ORDERS: Final[dict[str, Order]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WHOLE: Final = re.compile(rb"[+-]?[0-9]+")
# What Java's Double.valueOf takes, without its hexadecimal form.
_REAL: Final = re.compile(
    rb"[\x00-\x20]*([+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))"
    rb"[fFdD]?[\x00-\x20]*"
)


class SqlFilter:
    """A compiled expression. Raises BadFilter when it cannot be read."""

    __slots__ = ("_evaluate", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._evaluate = _compile(parse(expression))

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"

    def accepts(self, properties: bytes) -> bool:
        """Whether a message with these property bytes (message/properties.py) matches."""
        try:
            return self._evaluate(properties) is True
        except _NotComparable:
            return False


class _NotComparable(Exception):
    """Values of an evaluation cannot be compared: the message does not match."""


def _compile(node: Node) -> Evaluate:
    """Evaluate something that is true or false: text alone is never true."""
    match node:
        case Property(name):
            return _text_as_truth(finder(name.encode()))
        case Negative() | Constant():
            return _value(node)
        case Not(operand):
            return _not(_compile(operand))
        case All(operands):
            return _all(tuple(map(_compile, operands)))
        case Any(operands):
            return _any(tuple(map(_compile, operands)))
        case IsNull(operand):
            value = _value(operand)
            return lambda raw: value(raw) is None
        case Compare(sign, left, right):
            return _compare(sign, left, right)
        case OneOf(name, texts):
            return _one_of(finder(name.encode()), frozenset(text.encode() for text in texts))
        case Search(kind, name, text):
            return _search(kind, finder(name.encode()), text.encode())


def _value(node: Node) -> Evaluate:
    """Evaluate an operand: a property gives its text."""
    match node:
        case Property(name):
            return finder(name.encode())
        case Constant(value):
            constant = value.encode() if isinstance(value, str) else value
            return lambda _raw: constant
        case Negative(operand):
            return _negative(_value(operand))
        case _:
            return _compile(node)


def _text_as_truth(text: Evaluate) -> Evaluate:
    return lambda raw: None if text(raw) is None else False


def _not(operand: Evaluate) -> Evaluate:
    def evaluate(raw: bytes) -> Value:
        found = operand(raw)
        return None if found is None else not found

    return evaluate


def _all(operands: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(raw: bytes) -> Value:
        result: Value = True
        for operand in operands:
            found = operand(raw)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return evaluate


def _any(operands: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(raw: bytes) -> Value:
        result: Value = False
        for operand in operands:
            found = operand(raw)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return evaluate


def _negative(operand: Evaluate) -> Evaluate:
    def evaluate(raw: bytes) -> Value:
        found = operand(raw)
        return -found if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    return evaluate


def _one_of(text: Callable[[bytes], bytes | None], texts: frozenset[bytes]) -> Evaluate:
    def evaluate(raw: bytes) -> Value:
        found = text(raw)
        return None if found is None else found in texts

    return evaluate


def _search(kind: str, text: Callable[[bytes], bytes | None], wanted: bytes) -> Evaluate:
    def evaluate(raw: bytes) -> Value:
        found = text(raw)
        if found is None:
            return None
        if kind == "CONTAINS":
            return wanted in found
        return found.startswith(wanted) if kind == "STARTSWITH" else found.endswith(wanted)

    return evaluate


# ------------------------------------------------------------------------------------- comparison


def _compare(sign: str, left: Node, right: Node) -> Evaluate:
    """A property beside a number or text, which is nearly every comparison, has a short way."""
    left, right = _folded(left), _folded(right)
    if isinstance(left, Property) and isinstance(right, Constant):
        short = _short_way(sign, finder(left.name.encode()), right.value)
        if short is not None:
            return short
    if sign != "=" and isinstance(left, Constant) and isinstance(right, Property):
        return _compare(_MIRRORED[sign], right, left)
    first, second = _value(left), _value(right)
    if sign == "=":
        return lambda raw: _equal(first(raw), second(raw))
    order = _ORDERS[sign]
    return lambda raw: _ordered(order, first(raw), second(raw))


def _folded(node: Node) -> Node:
    """A number behind a minus as the number that it is."""
    if isinstance(node, Negative):
        operand = _folded(node.operand)
        if isinstance(operand, Constant) and type(operand.value) in (int, float):
            assert isinstance(operand.value, (int, float))
            return Constant(-operand.value)
    return node


def _short_way(
    sign: str, text: Callable[[bytes], bytes | None], value: str | int | float | bool | None
) -> Evaluate | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        wanted = value.encode()

        def same(raw: bytes) -> Value:
            found = text(raw)
            return None if found is None else found == wanted

        return same
    order, number = _ORDERS[sign], value

    def compare(raw: bytes) -> Value:
        found = text(raw)
        return None if found is None else order(_number_beside(found, number), number)

    return compare


def _equal(left: Value, right: Value) -> bool | None:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if type(left) is type(right):
        return left == right
    if isinstance(left, bytes) and isinstance(right, bool):
        return (left.lower() == b"true") is right
    if isinstance(left, bool) and isinstance(right, bytes):
        raise _NotComparable
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    return _number(left, right) == _number(right, left)


def _ordered(order: Order, left: Value, right: Value) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, bytes) and isinstance(right, bytes):
        return order(_real(left), _real(right))
    if isinstance(left, bool) or isinstance(right, bool):
        raise _NotComparable
    return order(_number(left, right), _number(right, left))


def _number(value: bytes | int | float, beside: bytes | int | float) -> int | float:
    if not isinstance(value, bytes):
        return value
    assert not isinstance(beside, bytes)
    return _number_beside(value, beside)


def _number_beside(text: bytes, number: int | float) -> int | float:
    """Text as a number of the other side's Java type: Integer, Long or Double."""
    if isinstance(number, float):
        return _real(text)
    if not _WHOLE.fullmatch(text):
        raise _NotComparable
    found = int(text)
    bound = _INT if -_INT <= number < _INT else _LONG
    if not -bound <= found < bound:
        raise _NotComparable
    return found


def _real(text: bytes) -> float:
    match = _REAL.fullmatch(text)
    if match is None:
        raise _NotComparable
    found = float(match.group(1))
    # Java orders NaN above every number.
    return math.inf if math.isnan(found) else found
