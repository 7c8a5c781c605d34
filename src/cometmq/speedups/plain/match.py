"""SQL92 filters over stored records: compiled programs, and the queue entries that match one.

This is the definition; compiled/match.pyx does the same. filter/sql92.py compiles an expression
into a program: steps for a stack machine. Each step is an operation (:class:`Op`) and its operand.

A value on the stack is text (bytes), an integer, a float, True, False, or None for unknown. A
missing property is unknown. A message matches only if the result is True. Text compared with a
number is parsed as a number, text compared with a boolean as a boolean. Values that cannot be
compared end the evaluation without a match (upstream: ComparisonExpression.java,
ExpressionMessageFilter.java).

message/record.py describes the layout of a record, message/properties.py that of its properties,
and store/layout.py that of a queue entry. No value in them makes the code read outside the given
bytes.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

from cometmq.speedups.plain.records import (
    ENTRY,
    GAP_BYTES,
    SPAN_BYTES,
    Taken,
    find_parts,
    is_inside,
    is_record,
)

Plain: TypeAlias = bytes | int | float | bool | None
Operand: TypeAlias = Plain | tuple[bytes, ...]
Step: TypeAlias = tuple[int, Operand]


class Op(IntEnum):
    """Operation of a step. Unless noted, it pops its values and pushes its result."""

    #: Push the text of the property named by the operand; unknown if the message lacks it.
    PROPERTY = 0
    #: Push the operand.
    PUSH = 1
    #: Convert text to a boolean: text is false, unknown stays unknown.
    AS_TRUTH = 2
    NEGATE = 3
    NOT = 4
    IS_NULL = 5
    EQUAL = 6
    LESS = 7
    LESS_EQUAL = 8
    GREATER = 9
    GREATER_EQUAL = 10
    #: Test whether the text is one of several, which are ordered by :func:`in_order`.
    ONE_OF = 11
    CONTAINS = 12
    STARTS_WITH = 13
    ENDS_WITH = 14
    #: Jump to the step numbered by the operand if the top value is false (AND_THEN) or true
    #: (OR_ELSE). The value stays on the stack.
    AND_THEN = 15
    OR_ELSE = 16
    #: Combine two booleans; the first one is not false (AND) or not true (OR).
    AND = 17
    OR = 18


#: Maximum depth of the stack. The tree of an expression has at most 128 levels.
MAX_DEPTH: Final = 256
_INT: Final = 1 << 31
_LONG: Final = 1 << 63
_WHOLE: Final = re.compile(rb"[+-]?[0-9]++")
# The syntax of Java's Double.valueOf, except for its hexadecimal form. The possessive repeats
# prevent backtracking.
_REAL: Final = re.compile(
    rb"[\x00-\x20]*+([+-]?(?:NaN|Infinity"
    rb"|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?))"
    rb"[fFdD]?[\x00-\x20]*+"
)
#: Digits of the largest Long; a number with more digits after its leading zeros is out of range.
_LONG_DIGITS: Final = 19
#: Texts longer than this are parsed as numbers once, for all steps that compare them.
_LONG_TEXT: Final = 64
#: For a text of fewer bytes, Python's substring search can take time in the product of both
#: lengths. If the product is large, the text is padded to this length, which selects a linear
#: search.
_LONG_SEARCH: Final = 30_000
_MAX_PRODUCT: Final = 100_000


class _NotComparable(Exception):
    """Raised if two values cannot be compared; the message does not match."""


def in_order(texts: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return distinct texts, shorter ones first, in the order that binary search needs."""
    return tuple(sorted(set(texts), key=lambda text: (len(text), text)))


class Program:
    """A filter program. Raises ValueError for invalid steps.

    ``names`` are those of the properties that it reads, ordered by :func:`in_order`.
    """

    __slots__ = ("_wanted", "code", "names")

    def __init__(self, code: tuple[Step, ...]) -> None:
        self._wanted = _checked(code)
        self.code = code
        self.names = in_order(self._wanted)

    def accepts(self, properties: bytes | bytearray | memoryview) -> bool:
        """Return whether a message with these property bytes matches."""
        texts: dict[bytes, bytes] = {}
        for pair in bytes(properties).split(b"\x02"):
            name, _, value = pair.partition(b"\x01")
            if value and name in self._wanted:
                texts[name] = value
        try:
            return _run(self.code, texts) is True
        except _NotComparable:
            return False


def _checked(code: Sequence[Step]) -> frozenset[bytes]:
    """Check a program, and return the names of the properties that it reads. Raises ValueError.

    Each step needs an operand of its kind and enough values on the stack. Jumps lead forwards. All
    ways to a step must leave the same number of values, and the whole program exactly one.
    """
    depth, end = 0, len(code)
    expected: dict[int, int] = {}
    names: set[bytes] = set()
    for at, (op, operand) in enumerate(code):
        taken = 0 if op in (_PROPERTY, _PUSH) else 2 if op in _OF_TWO else 1
        if not _is_fit(op, operand, at, end):
            raise ValueError(f"step {at} of the program cannot be run")
        if depth < taken or expected.get(at, depth) != depth:
            raise ValueError(f"step {at} of the program does not find its values")
        depth += 1 - taken
        if depth > MAX_DEPTH:
            raise ValueError(f"the program needs a stack of more than {MAX_DEPTH} values")
        if op == _PROPERTY:
            assert isinstance(operand, bytes)
            names.add(operand)
        elif op in _JUMPS:
            assert isinstance(operand, int)
            if expected.setdefault(operand, depth) != depth:
                raise ValueError(f"step {at} of the program leads where other values are")
    if depth != 1 or expected.get(end, 1) != 1:
        raise ValueError("the program does not leave one value")
    return frozenset(names)


def _is_fit(op: int, operand: Operand, at: int, end: int) -> bool:
    """Return whether the step ``at`` of a program of ``end`` steps has an operand of its kind."""
    if op in _WITH_TEXT:
        return type(operand) is bytes
    if op in _JUMPS:
        return type(operand) is int and at < operand <= end
    if op == _PUSH:
        if type(operand) is int:
            return -_LONG < operand < _LONG
        return operand is None or type(operand) in (bytes, bool, float)
    if op == Op.ONE_OF:
        return type(operand) is tuple and in_order(operand) == operand
    return operand is None and (op in _OF_ONE or op in _OF_TWO)


def _run(code: Sequence[Step], texts: Mapping[bytes, bytes]) -> Plain:
    """Run the steps and return the value left on the stack. Raises _NotComparable."""
    stack: list[Plain] = []
    at = 0
    while at < len(code):
        op, operand = code[at]
        at += 1
        if op == _PROPERTY:
            stack.append(texts.get(operand))  # type: ignore[arg-type]
        elif op == _PUSH:
            stack.append(operand)  # type: ignore[arg-type]
        elif op in _OF_TWO:
            second = stack.pop()
            stack[-1] = _OF_TWO[op](stack[-1], second)
        elif op in _OF_ONE:
            stack[-1] = _OF_ONE[op](stack[-1], operand)
        elif stack[-1] is (op == Op.OR_ELSE):
            at = operand  # type: ignore[assignment]
    return stack.pop()


# ------------------------------------------------------------------------------------- operations


def _and(first: Plain, second: Plain) -> Plain:
    return first if second is True else second


def _or(first: Plain, second: Plain) -> Plain:
    return first if second is False else second


def _is_null(value: Plain, _: Operand) -> Plain:
    return value is None


def _not(value: Plain, _: Operand) -> Plain:
    return None if value is None else not value


def _as_truth(value: Plain, _: Operand) -> Plain:
    return None if value is None else False


def _negative(value: Plain, _: Operand) -> Plain:
    return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _search(find: Callable[[bytes, Any], bool]) -> Callable[[Plain, Operand], Plain]:
    def search(value: Plain, wanted: Operand) -> bool | None:
        if value is None:
            return None
        assert isinstance(value, bytes)
        return find(value, wanted)

    return search


def _contains(text: bytes, wanted: bytes) -> bool:
    if len(text) * len(wanted) > _MAX_PRODUCT:
        text = text.ljust(_LONG_SEARCH, b"\xff")
    return wanted in text


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


def _ordered(order: Callable[[float, float], bool], left: Plain, right: Plain) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, bytes) and isinstance(right, bytes):
        return order(_real(left), _real(right))
    if isinstance(left, bool) or isinstance(right, bool):
        raise _NotComparable
    return order(_number(left, right), _number(right, left))


def _number(value: bytes | int | float, beside: bytes | int | float) -> int | float:
    """Return a number, or text parsed as the other side's Java type: Integer, Long or Double.

    Raises _NotComparable if the text is no such number.
    """
    if not isinstance(value, bytes):
        return value
    assert not isinstance(beside, bytes)
    if isinstance(beside, float):
        return _real(value)
    found = _long_whole(value) if len(value) > _LONG_TEXT else _read_whole(value)
    bound = _INT if -_INT <= beside < _INT else _LONG
    if found is None or not -bound <= found < bound:
        raise _NotComparable
    return found


def _read_whole(text: bytes) -> int | None:
    """Parse an integer; None if the text is no integer or out of range for a Long."""
    if not _WHOLE.fullmatch(text):
        return None
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
    """Parse a real number; None if the text is none."""
    match = _REAL.fullmatch(text)
    if match is None:
        return None
    found = float(match.group(1))
    # Java orders NaN above every number.
    return math.inf if math.isnan(found) else found


_long_whole = lru_cache(maxsize=_LONG_TEXT)(_read_whole)
_long_real = lru_cache(maxsize=_LONG_TEXT)(_read_real)


_PROPERTY: Final = int(Op.PROPERTY)
_PUSH: Final = int(Op.PUSH)
_JUMPS: Final = (Op.AND_THEN, Op.OR_ELSE)
_WITH_TEXT: Final = frozenset((Op.PROPERTY, Op.CONTAINS, Op.STARTS_WITH, Op.ENDS_WITH))
_OF_TWO: Final[dict[int, Callable[[Plain, Plain], Plain]]] = {
    Op.EQUAL: _equal,
    Op.LESS: partial(_ordered, operator.lt),
    Op.LESS_EQUAL: partial(_ordered, operator.le),
    Op.GREATER: partial(_ordered, operator.gt),
    Op.GREATER_EQUAL: partial(_ordered, operator.ge),
    Op.AND: _and,
    Op.OR: _or,
}
_OF_ONE: Final[dict[int, Callable[[Plain, Operand], Plain]]] = {
    Op.IS_NULL: _is_null,
    Op.NOT: _not,
    Op.AS_TRUTH: _as_truth,
    Op.NEGATE: _negative,
    Op.ONE_OF: _search(lambda text, several: text in several),
    Op.CONTAINS: _search(_contains),
    Op.STARTS_WITH: _search(bytes.startswith),
    Op.ENDS_WITH: _search(bytes.endswith),
}


# ---------------------------------------------------------------------------------------- records


def match_records(
    program: Program,
    entries: bytes | bytearray,
    offset: int,
    most: tuple[int, int],
    budget: tuple[int, int],
    log: tuple[memoryview, int, int, int, int],
    queue: tuple[int, bytes] | None,
    has_at_once: Callable[[int, int], bool],
) -> tuple[int, int, bytes]:
    """Return the number of entries examined, the size of their properties, and the matches.

    The matches are returned as the bytes of their entries. ``entries`` start with the entry at
    queue offset ``offset``. ``most`` is the maximum count and the maximum total size of matching
    records in bytes, ``budget`` the maximum count of records examined and of bytes of properties
    examined. These limits do not apply to the first record examined and the first match. ``log``,
    ``queue`` and ``has_at_once`` are those of :func:`pulls.take_records`.

    The call stops before the first entry whose record is not plain: a hole, a record outside the
    bounds, a record that does not match its entry, or one whose read would block. If that is the
    first entry, nothing was examined.
    """
    data, base, low, high, sure = log
    if not 0 <= base <= low or not 0 <= high <= base + len(data):
        raise ValueError("records between offsets that are not in the bytes of the log")
    readable = data[: max(high - base, 0)]
    chosen = bytearray()
    looked_at = count = size_bytes = properties_bytes = 0
    at_hand = (0, 0)
    for at in range(0, len(entries) - ENTRY.size + 1, ENTRY.size):
        place, size, _ = ENTRY.unpack_from(entries, at)
        if not is_inside(place, size, low, high):
            break
        # Check once for a span of nearby records whether they are in memory.
        if place < sure and not at_hand[0] <= place <= at_hand[1] - size:
            at_hand = place, _span_stop(entries, at, (low, min(high, sure)))
            if not has_at_once(*at_hand):
                break
        properties = _proven(readable, base, (offset + looked_at, place, size), queue)
        if properties is None:
            break
        if program.accepts(properties):
            if count and size_bytes + size > most[1]:
                break
            chosen += entries[at : at + ENTRY.size]
            count += 1
            size_bytes += size
        looked_at += 1
        properties_bytes += len(properties)
        if count >= max(most[0], 1) or looked_at >= budget[0] or properties_bytes >= budget[1]:
            break
    return looked_at, properties_bytes, bytes(chosen)


def _span_stop(entries: bytes | bytearray, at: int, bounds: tuple[int, int]) -> int:
    """Return the end of the span of records that one check covers, from entry ``at`` on.

    The check is whether they are in memory.
    """
    low, high = bounds
    begin, size, _ = ENTRY.unpack_from(entries, at)
    stop: int = begin + size
    for more in range(at + ENTRY.size, len(entries) - ENTRY.size + 1, ENTRY.size):
        place, size, _ = ENTRY.unpack_from(entries, more)
        if not is_inside(place, size, low, high) or place < stop:
            break
        if place - stop > GAP_BYTES or place + size - begin > SPAN_BYTES:
            break
        stop = place + size
    return stop


def _proven(
    data: memoryview, base: int, entry: Taken, queue: tuple[int, bytes] | None
) -> memoryview | None:
    """Return the property bytes of an entry's record; None if the record does not match the
    entry."""
    _, place, size = entry
    at = place - base
    if queue is not None and not is_record(data, at, entry, *queue):
        return None
    parts = find_parts(data, at, at + size)
    return None if parts is None else data[parts.topic_end + 2 : at + size]
