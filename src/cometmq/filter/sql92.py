"""SQL92 filters: an expression is compiled once to a program, which runs on the properties of
messages or of stored records.

Logic is three-valued: comparing a missing property is neither true nor false but unknown, and only
true is a match. Properties are text, converted for a comparison:

    with a number          to a number; text that is none is an error of the whole evaluation: the
                           message does not match, even if another operand of an OR is true
    with TRUE or FALSE     to a boolean

(upstream: ComparisonExpression.java, ExpressionMessageFilter.java). speedups/plain/match.py defines
the steps of a program.

:func:`matching` filters stored records without decoding them: it reads only lengths to find the
properties, and returns matching records as slices. Filtering blocks the event loop, so a
:class:`Budget` limits how many messages one read evaluates. The limit is lower for filters with
more parts and for longer properties; a filter of a few comparisons on small messages does not
reach it. At the limit a read ends early, and the reader continues at the next offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Final

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
    parse_and_count,
)
from cometmq.message.record import iter_sizes, properties_of
from cometmq.speedups import Op, Program, in_order

if TYPE_CHECKING:
    from cometmq.message.record import Buffer
    from cometmq.speedups.plain.match import Operand, Step

__all__ = ["BadFilter", "Budget", "Matches", "SqlFilter", "matching"]

_COMPARISONS: Final = {
    "=": Op.EQUAL,
    "<": Op.LESS,
    "<=": Op.LESS_EQUAL,
    ">": Op.GREATER,
    ">=": Op.GREATER_EQUAL,
}
_SEARCHES: Final = {
    "CONTAINS": Op.CONTAINS,
    "STARTSWITH": Op.STARTS_WITH,
    "ENDSWITH": Op.ENDS_WITH,
}
#: Upper bounds of memory: of an empty filter, of each part, and of each character of its text.
_FILTER_BYTES: Final = 5_000
_PART_BYTES: Final = 130
_CHAR_BYTES: Final = 20

#: Limits of one read. Parts of the expression times messages: in plain Python, evaluating one part
#: takes up to half a microsecond.
MAX_COMPARISONS: Final = 20_000
#: Total bytes of properties.
MAX_BYTES: Final = 262_144
#: Parts of the expression times bytes of properties, because each part may search all of them.
MAX_SEARCHED_BYTES: Final = 2 << 20


class SqlFilter:
    """Compiled expression. Raises BadFilter when it is invalid.

    ``weight`` is the number of parts evaluated for each message (:class:`Budget`).
    """

    __slots__ = ("__weakref__", "expression", "program", "weight")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        tree, self.weight = parse_and_count(expression)
        self.program = _compiled(tree)

    @property
    def size_bytes(self) -> int:
        """Approximate upper bound of the filter's memory."""
        return _FILTER_BYTES + _PART_BYTES * self.weight + _CHAR_BYTES * len(self.expression)

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"

    def accepts(self, properties: Buffer) -> bool:
        """Return whether a message with these property bytes (message/properties.py) matches."""
        return self.program.accepts(properties)

    def matches(self, properties: Iterable[Buffer]) -> list[bool]:
        """Return for each message whether it matches."""
        return list(map(self.program.accepts, properties))


def _compiled(tree: Node) -> Program:
    compiler = _Compiler()
    compiler.truth(tree)
    return Program(tuple(compiler.code))


class _Compiler:
    """Compiles nodes to steps, appended to ``code``. The steps of a node leave one value on the
    program's stack.
    """

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code: list[Step] = []

    def truth(self, node: Node) -> None:
        """Compile a node used as a condition; there a property is false, or unknown if missing."""
        self.value(node)
        if isinstance(node, Property):
            self._step(Op.AS_TRUTH)

    def value(self, node: Node) -> None:
        """Compile a node used as a value; a property yields its text."""
        match node:
            case Property(name):
                self._step(Op.PROPERTY, name.encode())
            case Constant(value):
                self._step(Op.PUSH, value.encode() if isinstance(value, str) else value)
            case Compare(sign, left, right):
                self.value(left)
                self.value(right)
                self._step(_COMPARISONS[sign])
            case Negative(operand):
                self._negative(operand)
            case Not(operand):
                self.truth(operand)
                self._step(Op.NOT)
            case All(operands):
                self._joined(Op.AND_THEN, Op.AND, operands)
            case Any(operands):
                self._joined(Op.OR_ELSE, Op.OR, operands)
            case IsNull(operand):
                self.value(operand)
                self._step(Op.IS_NULL)
            case OneOf() | Search():
                self._sought(node)

    def _sought(self, node: OneOf | Search) -> None:
        """Compile IN, CONTAINS, STARTSWITH or ENDSWITH."""
        self.value(Property(node.name))
        if isinstance(node, OneOf):
            self._step(Op.ONE_OF, in_order(text.encode() for text in node.texts))
        else:
            self._step(_SEARCHES[node.kind], node.text.encode())

    def _negative(self, operand: Node) -> None:
        """Compile a negation: negate a numeric constant here, anything else at evaluation."""
        self.value(operand)
        op, value = self.code[-1]
        if op == Op.PUSH and isinstance(value, (int, float)) and not isinstance(value, bool):
            self.code[-1] = (Op.PUSH, -value)
        else:
            self._step(Op.NEGATE)

    def _joined(self, onward: Op, joint: Op, operands: Sequence[Node]) -> None:
        """Compile operands so that evaluation stops at the first one that decides the result."""
        self.truth(operands[0])
        jumps: list[int] = []
        for operand in operands[1:]:
            jumps.append(len(self.code))
            self._step(onward, 0)
            self.truth(operand)
            self._step(joint)
        for at in jumps:
            self.code[at] = (onward, len(self.code))

    def _step(self, op: Op, operand: Operand = None) -> None:
        self.code.append((op, operand))


@dataclass(frozen=True, slots=True)
class Matches:
    """Result of :func:`matching`: the matching records, adjacent ones joined into one chunk."""

    chunks: list[memoryview]
    count: int
    size_bytes: int
    #: Bytes of the properties of all records that were evaluated.
    looked_bytes: int = 0


def matching(
    chunks: Iterable[memoryview], matches: Callable[[Sequence[Buffer]], Sequence[bool]]
) -> Matches:
    """Return the matching records of ``chunks``, each of which holds whole records.

    ``matches`` receives the property bytes of all records and returns a result for each.
    """
    places = [(chunk, at, size) for chunk in chunks for at, size in iter_sizes(chunk)]
    properties = [properties_of(chunk, at, size) for chunk, at, size in places]
    verdicts = matches(properties)
    kept: list[memoryview] = []
    size_bytes = 0
    last: memoryview | None = None
    first = stop = 0
    # Join matches that are adjacent in a chunk, so that fewer slices are sent.
    for chunk, at, size in compress(places, verdicts):
        size_bytes += size
        if chunk is not last or at != stop:
            if last is not None:
                kept.append(last[first:stop])
            last, first = chunk, at
        stop = at + size
    if last is not None:
        kept.append(last[first:stop])
    return Matches(kept, sum(verdicts), size_bytes, sum(map(len, properties)))


class Budget:
    """Remaining work of one read with an expression of ``weight`` parts.

    The read may still evaluate ``count`` messages with ``size_bytes`` of properties. Every read may
    evaluate at least one message.
    """

    __slots__ = ("count", "size_bytes")

    def __init__(self, weight: int) -> None:
        self.count = max(MAX_COMPARISONS // weight, 1)
        self.size_bytes = min(MAX_BYTES, MAX_SEARCHED_BYTES // weight)

    @property
    def is_spent(self) -> bool:
        """True when no further message may be evaluated."""
        return self.count <= 0 or self.size_bytes <= 0

    def take(self, count: int, size_bytes: int) -> None:
        """Subtract evaluated messages and the bytes of their properties."""
        self.count -= count
        self.size_bytes -= size_bytes
