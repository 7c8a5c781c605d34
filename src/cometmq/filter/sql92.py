"""SQL92 filters: an expression is compiled once, to a program that is run beside the properties of
messages.

Three-valued: True, False, or unknown, which a missing property makes of a comparison; only True is
a match. Properties are text. Beside a number they are read as one, beside TRUE or FALSE as a
boolean. Text that is not a number beside a number is an error of the whole evaluation, and then
the message does not match, even where an OR has another side (upstream: ComparisonExpression.java,
ExpressionMessageFilter.java).

What a program's steps do is defined in speedups/plain/match.py.
"""

from __future__ import annotations

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
from cometmq.speedups import Op, Program, in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cometmq.message.record import Buffer
    from cometmq.speedups.plain.match import Operand, Step

__all__ = ["BadFilter", "SqlFilter"]

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
#: How much memory a filter, a part of it and a character of its text take at the most.
_FILTER_BYTES: Final = 5_000
_PART_BYTES: Final = 130
_CHAR_BYTES: Final = 20


class SqlFilter:
    """A compiled expression. Raises BadFilter when it cannot be read. ``weight`` is how many parts
    are evaluated for each message (budget.py)."""

    __slots__ = ("__weakref__", "expression", "program", "weight")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        tree, self.weight = parse_and_count(expression)
        self.program = _compiled(tree)

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes, at the most."""
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
    """Adds the steps of nodes to ``code``; those of each node leave one value."""

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code: list[Step] = []

    def truth(self, node: Node) -> None:
        """Something that is true or false: text alone is never true."""
        self.value(node)
        if isinstance(node, Property):
            self._step(Op.AS_TRUTH)

    def value(self, node: Node) -> None:
        """Something that is compared: a property gives its text."""
        match node:
            case Property(name):
                self._step(Op.PROPERTY, name.encode())
            case Constant(value):
                self._step(Op.PUSH, value.encode() if isinstance(value, str) else value)
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
            case Compare(sign, left, right):
                self.value(left)
                self.value(right)
                self._step(_COMPARISONS[sign])
            case OneOf() | Search():
                self._sought(node)

    def _sought(self, node: OneOf | Search) -> None:
        self.value(Property(node.name))
        if isinstance(node, OneOf):
            self._step(Op.ONE_OF, in_order(text.encode() for text in node.texts))
        else:
            self._step(_SEARCHES[node.kind], node.text.encode())

    def _negative(self, operand: Node) -> None:
        """A number behind a minus is the number that it is; nothing else has a negation."""
        self.value(operand)
        op, value = self.code[-1]
        if op == Op.PUSH and isinstance(value, (int, float)) and not isinstance(value, bool):
            self.code[-1] = (Op.PUSH, -value)
        else:
            self._step(Op.NEGATE)

    def _joined(self, onward: Op, joint: Op, operands: Sequence[Node]) -> None:
        """All of them, up to the first that decides."""
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
