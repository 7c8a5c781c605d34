"""Parser of SQL92 filter expressions; the result is a tree of nodes (upstream: SelectorParser.jj).

    or          and { OR and }
    and         equality { AND equality }
    equality    comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison  unary { (">" | ">=" | "<" | "<=") unary
                      | [NOT] BETWEEN unary AND unary
                      | [NOT] IN "(" string { "," string } ")"
                      | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
    unary       ("+" | "-" | NOT) unary | primary
    primary     string | number | TRUE | FALSE | NULL | property | "(" or ")"

NOT binds tighter than a comparison: ``NOT a = 5`` compares the negation of ``a`` with 5, as in
RocketMQ; use ``NOT (a = 5)`` for the usual meaning. Keywords are case-insensitive, property names
are case-sensitive.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from cometmq.core.errors import CometError

#: Limit of nested parentheses, signs and NOTs in the text.
MAX_DEPTH = 64
#: Limit of levels of the tree, which can be deeper: ``a = a = a`` nests without parentheses.
MAX_TREE_DEPTH = 128
MAX_CHARS = 65_536
#: Limit of tokens, comments included. Each takes microseconds.
MAX_WORDS = 2_048
#: Limit of node evaluations per message. BETWEEN evaluates its left operand twice, so there can be
#: more evaluations than nodes.
MAX_PARTS = 4_096

#: The first number above a Java long, and its number of digits; longer texts are not converted.
_LONG_LIMIT = 1 << 63
_LONG_DIGITS = 19
#: Most characters of a token that an error quotes.
_MAX_QUOTED = 40
_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_WORDS = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", *_SEARCHES))
#: Tokens at which a ``unary`` nests deeper, and those at which a ``comparison`` continues.
_BEFORE_VALUE = frozenset("+-(") | {"NOT"}
_AFTER_VALUE = frozenset(("<", "<=", ">", ">=", "NOT", "BETWEEN", "IN", *_SEARCHES))
# All quantifiers are possessive, so a token takes one pass over its characters.
# Comments after -- have a pattern of their own, which is tried only before the last line end. They
# must end with one, and searching for it at each -- would take quadratic time.
# The digits after a leading 0, as in 007, are one token, which the parser rejects. If each 0 were a
# token, each would scan all digits after it.
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\n\r\f]++|/\*.*?\*/)
      | (?P<float>\d++(?:\.\d*+(?:[eE][+-]?\d++)?|[eE][+-]?\d++)|\.\d++(?:[eE][+-]?\d++)?)
      | (?P<whole>(?<=0)\d++|0|[1-9]\d*+[lL]?)
      | (?P<string>'(?:''|[^'])*+')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*+)
      | (?P<sign><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_COMMENT = re.compile(r"--[^\n\r]*+[\n\r]")
#: Approximation of a token, which also counts the words inside strings and comments.
_ROUGH_WORD = re.compile(r"[A-Za-z0-9_$.]++|[=<>(),'+-]|/\*")

#: Number of characters that cost as much as one word.
_WORD_CHARS = 512


class BadFilter(CometError, ValueError):
    """A filter expression is invalid. ``position`` counts characters from 0."""

    def __init__(self, expression: str, position: int, problem: str) -> None:
        self.expression = expression
        self.position = position
        self.problem = problem
        super().__init__(f"filter {expression[:200]!r}, at character {position}: {problem}")


class Property(Struct, frozen=True):
    """Property of a message. Its value is text, or unknown if the message lacks it."""

    name: str


class Constant(Struct, frozen=True):
    """Literal value; None is NULL."""

    value: str | int | float | bool | None


class Negative(Struct, frozen=True):
    """``-operand``: unknown unless the operand is a number."""

    operand: Node


class Not(Struct, frozen=True):
    """``NOT operand``."""

    operand: Node


class All(Struct, frozen=True):
    """Operands joined by AND."""

    operands: tuple[Node, ...]


class Any(Struct, frozen=True):
    """Operands joined by OR."""

    operands: tuple[Node, ...]


class IsNull(Struct, frozen=True):
    """``operand IS NULL``."""

    operand: Node


class Compare(Struct, frozen=True):
    """``left sign right`` with one of ``= < <= > >=``."""

    sign: str
    left: Node
    right: Node


class OneOf(Struct, frozen=True):
    """``name IN (...)``."""

    name: str
    texts: frozenset[str]


class Search(Struct, frozen=True):
    """``name CONTAINS text``, STARTSWITH or ENDSWITH; ``kind`` is the keyword."""

    kind: str
    name: str
    text: str


Node = Property | Constant | Negative | Not | All | Any | IsNull | Compare | OneOf | Search
#: Nodes whose value is true, false or unknown.
_CONDITIONS = (Compare, OneOf, Search, IsNull, Not, All, Any)
_TRUTHS = (*_CONDITIONS, Property)
_NOT_ORDERED = (*_CONDITIONS, Constant)


class _Token(NamedTuple):
    """A token. Words and signs are compared by text alone: the text of a string has its quotes."""

    kind: str
    text: str
    position: int


def parse(expression: str) -> Node:
    """Return the tree of a filter expression. Raises BadFilter."""
    return parse_and_count(expression)[0]


def parse_and_count(expression: str) -> tuple[Node, int]:
    """Return the tree of a filter expression and its number of node evaluations.

    Raises BadFilter.
    """
    if len(expression) > MAX_CHARS:
        raise BadFilter(expression, MAX_CHARS, f"it is longer than {MAX_CHARS} characters")
    try:
        expression.encode()
    except UnicodeEncodeError as error:
        raise BadFilter(expression, error.start, "half a character") from None
    reader = _Reader(expression, _tokens(expression))
    node = reader.as_condition(reader.disjunction(), 0)
    if reader.token.kind != "end":
        raise reader.unexpected("the end")
    levels, parts = measure(node)
    if levels > MAX_TREE_DEPTH:
        raise BadFilter(expression, 0, f"it nests deeper than {MAX_TREE_DEPTH} levels")
    if parts > MAX_PARTS:
        raise BadFilter(expression, 0, f"it has {parts} parts, the limit is {MAX_PARTS}")
    return node, parts


def count_words(expression: str) -> int:
    """Estimate the number of tokens of an expression, at most MAX_WORDS."""
    return sum(1 for _ in islice(_ROUGH_WORD.finditer(expression), MAX_WORDS))


def parsing_words(expression: str) -> int:
    """Estimate the cost of parsing an expression, in words, at most MAX_WORDS.

    The length counts too, because a long string or number takes time.
    """
    return min(count_words(expression) + len(expression) // _WORD_CHARS + 1, MAX_WORDS)


def measure(root: Node) -> tuple[int, int]:
    """Return the number of levels of a tree and the number of node evaluations.

    A node shared by several parents counts once for each. The walk is iterative, so that a deep
    tree cannot exhaust the stack. A node is measured once, after all its operands.
    """
    measured: dict[int, tuple[int, int]] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        waiting = len(stack)
        levels, parts = 0, 1
        for operand in _operands(node):
            found = _LEAF if isinstance(operand, _LEAVES) else measured.get(id(operand))
            if found is None:
                stack.append(operand)
            else:
                levels = max(levels, found[0])
                parts += found[1]
        if len(stack) == waiting:
            stack.pop()
            measured[id(node)] = levels + 1, parts
    return measured[id(root)]


#: Nodes without operands, and the measure of each.
_LEAVES = (Property, Constant, OneOf, Search)
_LEAF = (1, 1)


def _operands(node: Node) -> tuple[Node, ...]:
    match node:
        case Compare(_, left, right):
            return left, right
        case All(operands) | Any(operands):
            return operands
        case Negative(operand) | Not(operand) | IsNull(operand):
            return (operand,)
        case _:
            return ()


def _tokens(expression: str) -> list[_Token]:
    found: list[_Token] = []
    comments = 0
    last_line_end = max(expression.rfind("\n"), expression.rfind("\r"))
    at, end = 0, len(expression)
    while at < end:
        match = _COMMENT.match(expression, at) if at < last_line_end else None
        if match is not None:
            comments += 1
        else:
            match = _TOKEN.match(expression, at)
            if match is None:
                raise _no_token(expression, at)
            kind, text = match.lastgroup or "", match.group()
            if kind == "name" and text.upper() in _WORDS:
                found.append(_Token("word", text.upper(), at))
            elif kind != "blank":
                found.append(_Token(kind, text, at))
            elif text.startswith("/"):
                comments += 1
        if len(found) + comments > MAX_WORDS:
            raise BadFilter(expression, at, f"it has more than {MAX_WORDS} words")
        at = match.end()
    found.append(_Token("end", "", at))
    return found


def _no_token(expression: str, at: int) -> BadFilter:
    what = "a string that does not end" if expression[at] == "'" else "no part of a filter"
    return BadFilter(expression, at, f"{expression[at]!r} begins {what}")


class _Reader:
    """Recursive descent parser; ``token`` is the next token."""

    def __init__(self, expression: str, tokens: list[_Token]) -> None:
        self._expression = expression
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self.token = tokens[0]

    def _go_to(self, number: int) -> None:
        self._next = number
        self.token = self._tokens[number]

    def problem(self, text: str) -> BadFilter:
        return BadFilter(self._expression, self.token.position, text)

    def unexpected(self, wanted: str) -> BadFilter:
        found = repr(self.token.text[:_MAX_QUOTED]) if self.token.text else "the end"
        return self.problem(f"expected {wanted}, found {found}")

    def accept(self, *texts: str) -> str:
        """Skip the next token if it is one of these words or signs; return it, or ""."""
        text = self.token.text
        if text in texts:
            self._go_to(self._next + 1)
            return text
        return ""

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.unexpected(text)

    def as_condition(self, node: Node, position: int) -> Node:
        """Return ``node`` if it can be a condition, as a property can and a number cannot.

        Raises BadFilter otherwise; ``position`` is where the node begins in the text.
        """
        if isinstance(node, _TRUTHS) or _is_condition_constant(node):
            return node
        raise BadFilter(self._expression, position, "this is a value, not true or false")

    def disjunction(self) -> Node:
        return self._joined("OR", lambda: self._joined("AND", self._equality, All), Any)

    def _joined(
        self, word: str, read: Callable[[], Node], kind: Callable[[tuple[Node, ...]], Node]
    ) -> Node:
        position = self.token.position
        first = read()
        if self.token.text != word:
            return first
        operands = [self.as_condition(first, position)]
        while self.accept(word):
            position = self.token.position
            operands.append(self.as_condition(read(), position))
        return kind(tuple(operands))

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            if sign := self.accept("=", "<>"):
                right = self._comparison()
                self._check_equal(left, right)
                equal = Compare("=", left, right)
                left = equal if sign == "=" else Not(equal)
            elif self.accept("IS"):
                negated = self.accept("NOT")
                self.expect("NULL")
                left = Not(IsNull(left)) if negated else IsNull(left)
            else:
                return left

    def _check_equal(self, left: Node, right: Node) -> None:
        if _is_null(left) or _is_null(right):
            raise self.problem("NULL is compared with IS NULL or IS NOT NULL")
        is_truth = isinstance(left, Constant) and isinstance(left.value, bool)
        if is_truth and isinstance(right, Constant) and not isinstance(right.value, bool):
            raise self.problem("TRUE and FALSE are not compared with other values")

    def _comparison(self) -> Node:
        left = self._unary()
        while self.token.text in _AFTER_VALUE:
            start = self._next
            negated = bool(self.accept("NOT"))
            sign = "" if negated else self.accept("<", "<=", ">", ">=")
            if sign:
                right = self._unary()
                left = self._ordered(sign, left, right)
                continue
            if self.accept("BETWEEN"):
                left = self._between(left, negated)
                continue
            if self.accept("IN"):
                found: Node = OneOf(self._name(left, "IN"), self._texts())
            elif kind := self.accept(*_SEARCHES):
                found = Search(kind, self._name(left, kind), self._text())
            else:  # a NOT without BETWEEN, IN or a search: leave it to the caller, which rejects it
                self._go_to(start)
                break
            left = Not(found) if negated else found
        return left

    def _ordered(self, sign: str, left: Node, right: Node) -> Compare:
        for side in (left, right):
            is_number = isinstance(side, Constant) and type(side.value) in (int, float)
            if isinstance(side, _NOT_ORDERED) and not is_number:
                raise self.problem(f"only numbers and properties can be compared by {sign}")
        return Compare(sign, left, right)

    def _between(self, value: Node, negated: bool) -> Node:
        low = self._unary()
        self.expect("AND")
        high = self._unary()
        if negated:
            return Any((self._ordered("<", value, low), self._ordered(">", value, high)))
        if isinstance(low, Constant) and isinstance(high, Constant) and _exceeds(low, high):
            raise self.problem("BETWEEN wants the lower value first")
        return All((self._ordered(">=", value, low), self._ordered("<=", value, high)))

    def _name(self, node: Node, word: str) -> str:
        if not isinstance(node, Property):
            raise self.problem(f"{word} wants a property before it")
        return node.name

    def _texts(self) -> frozenset[str]:
        self.expect("(")
        texts = [self._text()]
        while self.accept(","):
            texts.append(self._text())
        self.expect(")")
        return frozenset(texts)

    def _text(self) -> str:
        token = self.token
        if token.kind != "string":
            raise self.unexpected("a string in single quotes")
        self._go_to(self._next + 1)
        return token.text[1:-1].replace("''", "'")

    def _unary(self) -> Node:
        if self.token.text not in _BEFORE_VALUE:
            return self._primary()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.problem(f"it nests deeper than {MAX_DEPTH} levels")
        try:
            if self.accept("+"):
                return self._unary()
            if self.accept("-"):
                return Negative(self._unary())
            if self.accept("NOT"):
                position = self.token.position
                return Not(self.as_condition(self._unary(), position))
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Node:
        if self.accept("("):
            node = self.disjunction()
            self.expect(")")
            return node
        token = self.token
        if token.kind == "string":
            return Constant(self._text())
        if token.kind in ("whole", "float"):
            constant = self._number(token)
        elif token.kind == "word" and token.text in ("TRUE", "FALSE", "NULL"):
            constant = Constant({"TRUE": True, "FALSE": False, "NULL": None}[token.text])
        elif token.kind == "name":
            self._go_to(self._next + 1)
            return Property(token.text)
        else:
            raise self.unexpected("a property, a number, a string, TRUE, FALSE, NULL or (")
        self._go_to(self._next + 1)
        return constant

    def _number(self, token: _Token) -> Constant:
        if token.kind == "whole":
            digits = token.text.rstrip("lL")
            value = int(digits) if len(digits) <= _LONG_DIGITS else _LONG_LIMIT
            if value >= _LONG_LIMIT:
                raise self.problem("the number does not fit 64 bits")
            return Constant(value)
        real = float(token.text)
        if real == float("inf"):
            raise self.problem("the number is greater than a double can be")
        return Constant(real)


def _is_null(node: Node) -> bool:
    return isinstance(node, Constant) and node.value is None


def _is_condition_constant(node: Node) -> bool:
    return isinstance(node, Constant) and (node.value is None or isinstance(node.value, bool))


def _exceeds(low: Constant, high: Constant) -> bool:
    if isinstance(low.value, (int, float)) and isinstance(high.value, (int, float)):
        return low.value > high.value
    return False
