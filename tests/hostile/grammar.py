"""Adversarial texts of any size for a grammar: unclosed, nested, repeated, long, odd.

A grammar is given by its tokens, its pairs of brackets, and sound texts (`wholes`) that may be
repeated with a separator. A shape makes a text of about a size from them, always the same one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from random import Random

Shape = Callable[[int], bytes]

#: Characters that take more bytes, fold to other lengths, turn the direction, or are no characters.
ODD = (
    "ß",
    "İ",
    "\u202e",
    "\u2028",
    "\ufeff",
    "😀",
    "e\u0301",
    "١",
    "\x00",
    "\x7f",
)
NOT_UTF8 = (b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf0\x9f")


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a parser reads. `frame` puts a text where a parser wants it (begin, end)."""

    tokens: Sequence[bytes] = ()
    brackets: Sequence[tuple[bytes, bytes]] = ()
    wholes: Sequence[bytes] = ()
    separator: bytes = b""
    #: What may stand between two of `operands`, as often as one likes.
    operators: Sequence[bytes] = ()
    operands: Sequence[bytes] = ()
    frame: tuple[bytes, bytes] = (b"", b"")
    #: Texts that hold a number at %s, a very long one.
    numbers: Sequence[bytes] = (b"%s",)
    more: dict[str, Shape] = field(default_factory=dict)


def shapes(grammar: Grammar) -> Iterator[tuple[str, Shape]]:
    """All shapes of a grammar, with names that say what they are."""
    for name, shape in _plain_shapes(grammar):
        yield name, _framed(grammar, shape)
    yield from grammar.more.items()


def _plain_shapes(grammar: Grammar) -> Iterator[tuple[str, Shape]]:
    yield from _repeats(grammar)
    yield from _brackets(grammar)
    yield from _numbers(grammar)
    for seed in range(8):
        yield f"mixture {seed}", _mixture(grammar, seed)


def _repeats(grammar: Grammar) -> Iterator[tuple[str, Shape]]:
    odd = [*(each.encode() for each in ODD), *NOT_UTF8]
    for part in (*grammar.tokens, *odd):
        yield f"repeated {part!r}", _repeated(part)
    for first, second in permutations(grammar.tokens, 2):
        yield f"repeated {first + second!r}", _repeated(first + second)
    for operand, operator in product(grammar.operands, grammar.operators):
        yield f"chain of {operand + operator!r}", _chain(operand, operator)
    for whole in grammar.wholes:
        yield f"many {whole!r}", _repeated(whole + grammar.separator)
        yield f"cut off {whole!r}", _cut_off(whole, grammar.separator)


def _brackets(grammar: Grammar) -> Iterator[tuple[str, Shape]]:
    for begin, end in grammar.brackets:
        yield f"unclosed {begin!r}", _unclosed(begin)
        for inner in (b"", b"1", *grammar.wholes):
            yield f"nested {begin!r} {inner!r}", _nested(begin, inner, end)


def _numbers(grammar: Grammar) -> Iterator[tuple[str, Shape]]:
    for form, digits in product(grammar.numbers, (b"9", b"0", b"1.", b"-", b"1e")):
        for end in (b"", b"x"):
            yield f"number {form!r} of {digits!r} {end!r}", _number(form, digits, end)


def _unclosed(begin: bytes) -> Shape:
    return lambda size: begin + b"a" * size


def _framed(grammar: Grammar, shape: Shape) -> Shape:
    begin, end = grammar.frame
    return lambda size: begin + shape(size) + end


def _repeated(part: bytes) -> Shape:
    return lambda size: (part * (size // max(1, len(part)) + 1))[:size] if part else b""


def _nested(begin: bytes, inner: bytes, end: bytes) -> Shape:
    def make(size: int) -> bytes:
        depth = max(1, (size - len(inner)) // (len(begin) + len(end)))
        return begin * depth + inner + end * depth

    return make


def _chain(operand: bytes, operator: bytes) -> Shape:
    link = operand + operator
    return lambda size: link * max(1, size // len(link)) + operand


def _cut_off(whole: bytes, separator: bytes) -> Shape:
    return lambda size: _repeated(whole + separator)(size) + whole[: len(whole) // 2]


def _number(form: bytes, digits: bytes, end: bytes) -> Shape:
    return lambda size: form.replace(b"%s", _repeated(digits)(size) + end)


def _mixture(grammar: Grammar, seed: int) -> Shape:
    parts = [*grammar.tokens, *grammar.wholes, *(each.encode() for each in ODD), b"9" * 40]
    parts += [bracket for pair in grammar.brackets for bracket in pair]

    def make(size: int) -> bytes:
        chance = Random(seed)
        text = bytearray()
        while len(text) < size:
            text += chance.choice(parts) * chance.choice((1, 1, 1, 2, 50))
        return bytes(text[:size])

    return make


#: fastjson's dialect of JSON.
JSON = Grammar(
    tokens=(b'"', b"\\", b"{", b"[", b"}", b":", b",", b"a", b"0", b" "),
    brackets=(
        (b"{", b"}"),
        (b"[", b"]"),
        (b'"', b'"'),
        (b"{", b":1}"),
        (b'{"a":', b"}"),
        (b"{{", b"}:1}"),
    ),
    wholes=(b'{"a":1}', b'{{"a":1}:1}', b'{0:"a"}', b'"\\u00e9"', b'"a\\"'),
    separator=b",",
    numbers=(b"%s", b'{"a":%s}', b"{%s:1}", b'{"code":%s}'),
)
SQL = Grammar(
    tokens=(b"0", b"1", b"-", b"'", b"/*", b"a", b".", b"=", b"(", b" NOT ", b" OR ", b" "),
    brackets=((b"(", b")"), (b"'", b"'"), (b"/*", b"*/"), (b"--", b"\n"), (b"NOT (", b")")),
    wholes=(b"a=1", b"a IN ('x')", b"a BETWEEN 1 AND 2", b"b IS NULL", b"a CONTAINS 'x'"),
    separator=b" OR ",
    operators=(b"=", b"<", b"+", b"-", b"*", b" AND ", b" OR ", b" NOT IN "),
    operands=(b"a", b"1", b"'x'", b"(a)"),
    numbers=(b"a > %s", b"a = -%s", b"a < 1e%s"),
)
NUMBER = Grammar(
    tokens=(b"0", b"9", b".", b"e", b"-", b"+", b" ", b"NaN", b"f"),
    wholes=(b"1.5e3", b"-7"),
)
PROPERTIES = Grammar(
    tokens=(b"\x01", b"\x02", b"a", b"KEYS", b" "),
    wholes=(b"a\x01b", b"KEYS\x01k k k", b"TAGS\x01t"),
    separator=b"\x02",
    numbers=(b"DELAY\x01%s\x02",),
)
TAGS = Grammar(
    tokens=(b"|", b"||", b"a", b" ", b"*"),
    wholes=(b"a", b"aa bb"),
    separator=b" || ",
)
SETTINGS = Grammar(
    tokens=(b"=", b":", b"\n", b"#", b"\\", b"a", b"_"),
    wholes=(b"brokerName=x", b"a.b=c", b"brokerPermission=6"),
    separator=b"\n",
    numbers=(b"maxMessageSize=%s", b"brokerPermission=%s", b"brokerId=%s\n"),
)
NAMES = Grammar(
    tokens=(b"%RETRY%", b"%DLQ%", b"%", b"|", b"a", b"-", b"/", b".."),
    wholes=(b"a", b"10.0.0.1:9876"),
    separator=b";",
)
BINARY = Grammar(
    tokens=(
        b"\x00",
        b"\x01",
        b"\xff",
        b"\x7f\xff\xff\xff",
        b"\x80\x00\x00\x00",
        b"\x00\x00\x00\x01",
        b"\x00\x01a",
        b"\xda\xa3\x20\xa7",
        b"\x00\x00\x00\x5b\xda\xa3\x20\xa7",
    ),
)
TEXT_LINES = Grammar(
    tokens=(b"\n", b" ", b"a", b":", b".", b"\\040", b"/"),
    wholes=(b"Traceback (most recent call last)", b"cometmq.x.Y: z", b"a.B: c"),
    separator=b"\n",
)
