"""SQL92 filters: an expression is compiled once and then asked about the properties of messages, of
many at once.

Three-valued: True, False, or None for unknown, which a missing property makes of a comparison; only
True is a match. Properties are text. Beside a number they are read as one, beside TRUE or FALSE as
a boolean. Text that is not a number beside a number is an error of the whole evaluation, and then
the message does not match, even where an OR has another side (upstream: ComparisonExpression.java,
ExpressionMessageFilter.java).

Each part of an expression gives a column: its value for every message of a batch, from the property
bytes of stored records (columns.py). Nothing is decoded but what is asked for.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.filter.columns import Batch, column, digits_column, join, row_column, texts_of
from cometmq.filter.pieces import pieces_of
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
    measure,
    parse,
)

if TYPE_CHECKING:
    from cometmq.message.record import Buffer

__all__ = ["BadFilter", "SqlFilter"]


class _Error(Enum):
    """In the place of a value: the whole evaluation of this message is an error."""

    NOT_COMPARABLE = 0


_ERROR: Final = _Error.NOT_COMPARABLE

Plain = bytes | int | float | bool | None
Value = Plain | _Error
#: A value for each message of a batch.
Evaluate = Callable[[Batch], Sequence[Value]]
#: A property for each message, empty where it has none.
Texts = Callable[[Batch], list[bytes]]
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
_METHODS: Final = {"=": "__eq__", "<": "__gt__", "<=": "__ge__", ">": "__lt__", ">=": "__le__"}
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WHOLE: Final = re.compile(rb"[+-]?[0-9]++")
# What Java's Double.valueOf takes, without its hexadecimal form. No repeat gives back what it took.
_REAL: Final = re.compile(
    rb"[\x00-\x20]*+([+-]?(?:NaN|Infinity"
    rb"|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?))"
    rb"[fFdD]?[\x00-\x20]*+"
)
#: Digits of the greatest Long; what has more, behind zeros, is none.
_LONG_DIGITS: Final = 19
#: Longer texts are read as numbers once, for all parts of a filter that compare them.
_LONG_TEXT: Final = 64
#: Filters of more parts find properties by rows (columns.py): the search for one in the texts of
#: all messages costs as much as there are bytes, and each of these expressions is to be made.
_FEW_PARTS: Final = 32
#: Conditions of such a filter that are looked at before the others, by their pieces.
_MAX_NARROWING: Final = 4
#: Python looks for a piece in less than so many bytes in a way whose cost is the product of both
#: lengths. Where that is large, what it looks in is filled up to so many.
_LONG_SEARCH: Final = 30_000
_MAX_PRODUCT: Final = 100_000


class SqlFilter:
    """A compiled expression. Raises BadFilter when it cannot be read. ``weight`` is how many parts
    are evaluated for each message (budget.py)."""

    __slots__ = ("__weakref__", "_conditions", "expression", "weight")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        tree = parse(expression)
        _, self.weight = measure(tree)
        conditions = _conditions(tree)
        if self.weight > _FEW_PARTS:
            found = _few_conditions(conditions)
        else:
            # Each has to be true, in whatever order they are looked at: the cheap ones first.
            found = sorted(map(_Condition, conditions), key=lambda condition: condition.is_dear)
        self._conditions = found

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes, at the most."""
        searches = min(self.weight, _FEW_PARTS)
        return 4_000 + 1_100 * searches + 250 * self.weight + 11 * len(self.expression)

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"

    def select(self, texts: Sequence[str]) -> list[int]:
        """The numbers, from 0 and upwards, of the messages that match, by their property texts
        (columns.py)."""
        left = _Left(texts)
        for condition in self._conditions:
            if not left.numbers:
                break
            condition.narrow(left)
        return left.numbers

    def matches(self, properties: Sequence[Buffer]) -> list[bool]:
        """For each message whether it matches, by its property bytes (message/properties.py)."""
        found = [False] * len(properties)
        for number in self.select(texts_of(properties)):
            found[number] = True
        return found

    def accepts(self, properties: Buffer) -> bool:
        """Whether a single message matches."""
        return self.matches((properties,))[0]


def _conditions(node: Node) -> list[Node]:
    """What has to be true of a message so that it matches: all of these."""
    if isinstance(node, All):
        return [each for operand in node.operands for each in _conditions(operand)]
    return [node]


def _few_conditions(nodes: list[Node]) -> list[_Condition]:
    """The same as few conditions: some that have pieces, and one of all the others."""
    narrowing = [node for node in nodes if pieces_of(node) is not None][:_MAX_NARROWING]
    others = tuple(node for node in nodes if not any(node is each for each in narrowing))
    found = [_Condition(node, _ROWS) for node in narrowing]
    if others:
        found.append(_Condition(All(others) if len(others) > 1 else others[0], _ROWS))
    return found


class _Left:
    """Messages that may match, by their numbers among all that were asked about."""

    __slots__ = ("_batch", "numbers", "texts")

    def __init__(self, texts: Sequence[str]) -> None:
        self.numbers = [*range(len(texts))]
        self.texts = texts
        self._batch: Batch | None = None

    @property
    def batch(self) -> Batch:
        """Their properties."""
        batch = self._batch
        if batch is None:
            batch = self._batch = join(self.texts)
        return batch

    def keep(self, chosen: Sequence[int]) -> None:
        """Leave only these of what is left, counted from 0."""
        numbers, texts = self.numbers, self.texts
        if len(chosen) < len(numbers):
            self.numbers = [numbers[at] for at in chosen]
            self.texts = [texts[at] for at in chosen]
            self._batch = None


class _Condition:
    """Something that has to be true of a message, and the pieces that this takes."""

    __slots__ = ("_evaluate", "_pieces", "is_dear")

    def __init__(self, node: Node, columns: _Columns | None = None) -> None:
        self._evaluate = _compile(node, columns or _COLUMNS)
        self._pieces = pieces_of(node)
        #: Whether more is to be done than to compare the text of a property.
        self.is_dear = self._pieces is None and not isinstance(node, (OneOf, Search))

    def narrow(self, left: _Left) -> None:
        """Leave only the messages of which it is true."""
        pieces = self._pieces
        if pieces is not None:
            left.keep(pieces.find(left.texts))
            if not left.numbers or pieces.decide(left.batch):
                return
        verdicts = self._evaluate(left.batch)
        left.keep([number for number, verdict in enumerate(verdicts) if verdict is True])


class _NotComparable(Exception):
    """Values of an evaluation cannot be compared: the message does not match."""


class _Columns(NamedTuple):
    """How a property is found by its name; and, unless it is None, how a number of few digits is
    (columns.py)."""

    texts: Callable[[bytes], Texts]
    digits: Callable[[bytes], Texts] | None


_COLUMNS: Final = _Columns(column, digits_column)
_ROWS: Final = _Columns(row_column, None)


def _compile(node: Node, columns: _Columns = _COLUMNS) -> Evaluate:
    """Evaluate something that is true or false: text alone is never true."""
    inner = partial(_compile, columns=columns)
    match node:
        case Property(name):
            return _text_as_truth(columns.texts(name.encode()))
        case Negative() | Constant():
            return _values(node, columns)
        case Not(operand):
            return _not(inner(operand))
        case All(operands):
            return _all(tuple(map(inner, operands)))
        case Any(operands):
            return _any(tuple(map(inner, operands)))
        case IsNull(operand):
            return _is_null(_values(operand, columns))
        case Compare(sign, left, right):
            return _compare(sign, left, right, columns)
        case OneOf(name, texts):
            wanted = frozenset(text.encode() for text in texts)
            return _one_of(columns.texts(name.encode()), wanted)
        case Search(kind, name, text):
            return _search(kind, columns.texts(name.encode()), text.encode())


def _values(node: Node, columns: _Columns) -> Evaluate:
    """Evaluate an operand: a property gives its text."""
    match node:
        case Property(name):
            texts = columns.texts(name.encode())
            return lambda batch: [text or None for text in texts(batch)]
        case Constant(value):
            constant = value.encode() if isinstance(value, str) else value
            return lambda batch: [constant] * batch.size
        case Negative(operand):
            values = _values(operand, columns)
            return lambda batch: [_negative(value) for value in values(batch)]
        case _:
            return _compile(node, columns)


def _text_as_truth(texts: Texts) -> Evaluate:
    return lambda batch: [False if text else None for text in texts(batch)]


def _not(operand: Evaluate) -> Evaluate:
    return lambda batch: [
        found if found is None or found is _ERROR else not found for found in operand(batch)
    ]


def _all(operands: tuple[Evaluate, ...]) -> Evaluate:
    """What is false is not looked at further, and then no error behind it counts."""

    def evaluate(batch: Batch) -> Sequence[Value]:
        result = operands[0](batch)
        for operand in operands[1:]:
            result = [
                first if first is False or first is _ERROR or second is True else second
                for first, second in zip(result, operand(batch), strict=True)
            ]
        return result

    return evaluate


def _any(operands: tuple[Evaluate, ...]) -> Evaluate:
    """What is true is not looked at further, and then no error behind it counts."""

    def evaluate(batch: Batch) -> Sequence[Value]:
        result = operands[0](batch)
        for operand in operands[1:]:
            result = [
                first if first is True or first is _ERROR or second is False else second
                for first, second in zip(result, operand(batch), strict=True)
            ]
        return result

    return evaluate


def _is_null(operand: Evaluate) -> Evaluate:
    return lambda batch: [found if found is _ERROR else found is None for found in operand(batch)]


def _negative(value: Value) -> Value:
    if value is _ERROR:
        return value
    return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _one_of(texts: Texts, wanted: frozenset[bytes]) -> Evaluate:
    return lambda batch: [text in wanted if text else None for text in texts(batch)]


def _search(kind: str, texts: Texts, wanted: bytes) -> Evaluate:
    if kind == "CONTAINS":
        most = _MAX_PRODUCT // max(len(wanted), 1)

        def contains(text: bytes) -> bool:
            return wanted in (text if len(text) <= most else text.ljust(_LONG_SEARCH, b"\xff"))

        return lambda batch: [contains(text) if text else None for text in texts(batch)]
    if kind == "STARTSWITH":
        return lambda batch: [text.startswith(wanted) if text else None for text in texts(batch)]
    return lambda batch: [text.endswith(wanted) if text else None for text in texts(batch)]


# ------------------------------------------------------------------------------------- comparison


def _compare(sign: str, left: Node, right: Node, columns: _Columns) -> Evaluate:
    """A property beside a number or text, which is nearly every comparison, has a short way."""
    left, right = _folded(left), _folded(right)
    if isinstance(left, Property) and isinstance(right, Constant):
        short = _short_way(sign, left.name.encode(), right.value, columns)
        if short is not None:
            return short
    if sign != "=" and isinstance(left, Constant) and isinstance(right, Property):
        return _compare(_MIRRORED[sign], right, left, columns)
    compare = _equal if sign == "=" else partial(_ordered, _ORDERS[sign])
    firsts, seconds = _values(left, columns), _values(right, columns)
    return lambda batch: [
        _ERROR if first is _ERROR or second is _ERROR else _compared(compare, first, second)
        for first, second in zip(firsts(batch), seconds(batch), strict=True)
    ]


def _compared(
    compare: Callable[[Plain, Plain], bool | None], first: Plain, second: Plain
) -> bool | _Error | None:
    try:
        return compare(first, second)
    except _NotComparable:
        return _ERROR


def _folded(node: Node) -> Node:
    """A number behind a minus as the number that it is."""
    if isinstance(node, Negative):
        operand = _folded(node.operand)
        if isinstance(operand, Constant) and type(operand.value) in (int, float):
            assert isinstance(operand.value, (int, float))
            return Constant(-operand.value)
    return node


def _short_way(
    sign: str, name: bytes, value: str | int | float | bool | None, columns: _Columns
) -> Evaluate | None:
    if isinstance(value, bool) or value is None:
        return None
    texts = columns.texts(name)
    if isinstance(value, str):
        wanted = value.encode()
        return lambda batch: [text == wanted if text else None for text in texts(batch)]
    order = _ORDERS[sign]
    if isinstance(value, float) or columns.digits is None:
        return lambda batch: _beside_number(order, texts(batch), value)
    return _beside_whole_number(sign, texts, columns.digits(name), value)


def _beside_whole_number(sign: str, texts: Texts, digits: Texts, number: int) -> Evaluate:
    order = _ORDERS[sign]
    # The operator's method of the number, for what stands on its other side.
    short_order: Callable[[int], bool] = getattr(number, _METHODS[sign])

    def evaluate(batch: Batch) -> Sequence[bool | _Error | None]:
        found = digits(batch)
        if found:
            return list(map(short_order, map(int, found)))
        return _beside_number(order, texts(batch), number)

    return evaluate


def _beside_number(
    order: Order, texts: list[bytes], number: int | float
) -> Sequence[bool | _Error | None]:
    def compare(text: bytes) -> bool | _Error | None:
        if not text:
            return None
        try:
            return order(_number_beside(text, number), number)
        except _NotComparable:
            return _ERROR

    return list(map(compare, texts))


def _equal(left: Plain, right: Plain) -> bool | None:
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


def _ordered(order: Order, left: Plain, right: Plain) -> bool | None:
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
    found = _long_whole(text) if len(text) > _LONG_TEXT else _read_whole(text)
    bound = _INT if -_INT <= number < _INT else _LONG
    if found is None or not -bound <= found < bound:
        raise _NotComparable
    return found


def _read_whole(text: bytes) -> int | None:
    """None for what is no whole number, or none that a Long can be."""
    if not _WHOLE.fullmatch(text):
        return None
    if len(text) <= _LONG_DIGITS:
        return int(text)
    digits = text.lstrip(b"+-").lstrip(b"0")
    if len(digits) > _LONG_DIGITS:
        return None
    return -int(digits or b"0") if text.startswith(b"-") else int(digits or b"0")


def _real(text: bytes) -> float:
    found = _long_real(text) if len(text) > _LONG_TEXT else _read_real(text)
    if found is None:
        raise _NotComparable
    return found


def _read_real(text: bytes) -> float | None:
    """None for what is no number."""
    match = _REAL.fullmatch(text)
    if match is None:
        return None
    found = float(match.group(1))
    # Java orders NaN above every number.
    return math.inf if math.isnan(found) else found


_long_whole = lru_cache(maxsize=_LONG_TEXT)(_read_whole)
_long_real = lru_cache(maxsize=_LONG_TEXT)(_read_real)
