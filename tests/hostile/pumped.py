"""Texts with parts that repeat: a small input of a fuzzer stands for a text of any size.

An input is three bytes and a text: how long its beginning is, how long the unit behind that, and
how long its end. The unit and the end are repeated equally often: `unit ... middle ... end`. An
input whose unit has no length is its text alone.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tests.hostile.grammar import NOT_UTF8, ODD, Grammar

CONTROL_BYTES = 3
#: The longest beginning, unit and end.
_LONGEST = (64, 32, 16)


class Pumped(NamedTuple):
    """A text in its parts."""

    begin: bytes
    unit: bytes
    middle: bytes
    end: bytes

    def text(self, size: int) -> bytes:
        """The text with as many units as make about `size` bytes; all of it without a unit."""
        begin, unit, middle, end = self
        if not unit:
            return begin + middle
        count = max(1, (size - len(begin) - len(middle)) // len(unit + end))
        return begin + unit * count + middle + end * count

    def packed(self) -> bytes:
        """The input that stands for it."""
        lengths = bytes((len(self.begin), len(self.unit), len(self.end)))
        return lengths + self.begin + self.unit + self.middle + self.end


def unpacked(data: bytes) -> Pumped:
    """What an input stands for, whatever its bytes are."""
    lengths = (*data[:CONTROL_BYTES], 0, 0, 0)
    begin, unit, end = (length % most for length, most in zip(lengths, _LONGEST, strict=False))
    text = data[CONTROL_BYTES:]
    if not unit:
        return Pumped(text, b"", b"", b"")
    head, rest = text[: begin + unit], text[begin + unit :]
    end = min(end, len(rest))
    return Pumped(head[:begin], head[begin:], rest[: len(rest) - end], rest[len(rest) - end :])


def parts_of(grammar: Grammar) -> list[bytes]:
    """What texts of a grammar are made of."""
    parts = [*grammar.tokens, *grammar.wholes, *NOT_UTF8, *(each.encode() for each in ODD)]
    parts += [bracket for pair in grammar.brackets for bracket in pair]
    parts += [number.replace(b"%s", b"1") for number in grammar.numbers]
    parts += [separator for separator in (grammar.separator,) if separator]
    return parts or [b"a"]


def seeds_of(grammar: Grammar) -> list[bytes]:
    """Each part of a grammar once, and each pair of brackets: nothing is long or repeated."""
    alone = [Pumped(b"", b"", part, b"").packed() for part in parts_of(grammar)]
    return alone + [Pumped(b + e, b"", b"", b"").packed() for b, e in grammar.brackets]


def grown(grammar: Grammar, chance: Random) -> bytes:
    """Another input: a few parts of a grammar, one or two of them to be repeated."""
    parts = parts_of(grammar)
    kind = chance.randrange(6)
    if kind == 5 and grammar.operators:
        operand = chance.choice(grammar.operands)
        return Pumped(b"", operand + chance.choice(grammar.operators), operand, b"").packed()
    if kind == 0 and grammar.brackets:
        unit, end = chance.choice(list(grammar.brackets))
        return Pumped(b"", unit, _few(parts, chance, 1), end).packed()
    if kind == 2 and len(grammar.tokens) > 1:
        first, second = chance.sample(list(grammar.tokens), 2)
        return Pumped(b"", (first + second)[:31], chance.choice((b"", first)), b"").packed()
    if kind == 3 and grammar.wholes:
        whole = chance.choice(list(grammar.wholes))
        cut = chance.randrange(2 * len(whole))
        if 0 < cut < min(len(whole), _LONGEST[1]):
            return Pumped(b"", whole[:cut], whole[cut:], b"").packed()
        return Pumped(b"", (whole + grammar.separator)[:31], whole, b"").packed()
    if kind == 1:
        begin, end = chance.choice(list(grammar.numbers)).split(b"%s", 1)
        unit = chance.choice((b"9", b"0", b"1.", b"-", b"1e"))
        return Pumped(begin[:63], unit, chance.choice((b"", b"x", _few(parts, chance, 1))) + end,
                      b"").packed()  # fmt: skip
    begin, unit = _few(parts, chance, 2), _few(parts, chance, 3) or b"a"
    return Pumped(begin[:63], unit[:31], _few(parts, chance, 1), b"").packed()


def changed(data: bytes, grammar: Grammar, chance: Random) -> bytes:
    """An input with one part of a grammar more, one byte else, or other lengths."""
    made = bytearray(data.ljust(CONTROL_BYTES + 1, b"\x01"))
    kind = chance.randrange(3)
    if kind == 0:
        at = chance.randrange(CONTROL_BYTES, len(made) + 1)
        made[at:at] = chance.choice(parts_of(grammar))
    elif kind == 1:
        made[chance.randrange(CONTROL_BYTES, len(made))] = chance.randrange(256)
    else:
        made[chance.randrange(CONTROL_BYTES)] = chance.choice((0, 1, 2, 3, 5, 8, 13))
    return bytes(made)


def words_of(grammars: Sequence[Grammar]) -> list[bytes]:
    """A dictionary for who mutates bytes."""
    return sorted({part for grammar in grammars for part in parts_of(grammar)})


def _few(parts: Sequence[bytes], chance: Random, most: int) -> bytes:
    return b"".join(chance.choice(parts) for _ in range(chance.randrange(most + 1)))
