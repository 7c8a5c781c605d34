"""SQL92 filters: an expression is compiled once to a program that runs on message properties.

Logic is three-valued: True, False, or unknown, which is the result of comparing a missing property;
only True is a match. Properties are text. Compared with a number they are read as a number,
compared with TRUE or FALSE as a boolean. Text that is not a number, compared with a number, is an
error of the whole evaluation: the message does not match, even if another operand of an OR is true
(upstream: ComparisonExpression.java, ExpressionMessageFilter.java).

speedups/plain/match.py defines the steps of a program.
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
#: Upper bounds of the memory of a filter, of one part of it and of one character of its text.
_FILTER_BYTES: Final = 5_000
_PART_BYTES: Final = 130
_CHAR_BYTES: Final = 20


class SqlFilter:
    """Compiled expression. Raises BadFilter when it is invalid.

    ``weight`` is the number of parts evaluated for each message (budget.py).
    """

    __slots__ = ("__weakref__", "expression", "program", "weight")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        tree, self.weight = parse_and_count(expression)
        self.program = _compiled(tree)

    @property
    def size_bytes(self) -> int:
        """Upper bound of its memory, roughly."""
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
    """Appends the steps of nodes to ``code``; the steps of each node leave one value on the
    stack.
    """

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code: list[Step] = []

    def truth(self, node: Node) -> None:
        """Compile a node used as a condition; the text of a property alone is never true."""
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
