"""The fuzzer's target `core`: parsers, with texts whose parts repeat, and their cost as they grow.

The first byte of an input chooses the parser, the rest is a text of pumped.py. A parser may raise
only what it refuses with, take only its share of time, and cost no more than linearly.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from random import Random

from tests.hostile import pumped
from tests.hostile.finding import Finding
from tests.hostile.parsers import Parser

#: The sizes of a text whose parts repeat; small steps first, for what doubles with each level.
SIZES = (*range(40, 136, 8), 160, 250, 1_000, 8_192)
#: Instrumented code takes some times as long as it does elsewhere.
SLACK = 4
BASE_MS = 30.0
#: The last two doublings are looked at where eight times the size costs so many times as much; then
#: each may cost so many times as much (2 is linear, 4 quadratic), unless all is done in no time.
STEEP = 20.0
DOUBLED_MAX = 3.0
NO_TIME_MS = 12.0
REPEATS = 3

Target = Callable[[bytes], None]


def core_target(parsers: Sequence[Parser]) -> Target:
    """Feeds an input to the parser that its first byte names."""

    def run(data: bytes) -> None:
        if data:
            _feed(parsers[data[0] % len(parsers)], pumped.unpacked(data[1:]))

    return run


def _feed(parser: Parser, text: pumped.Pumped) -> None:
    bound = parser.bound_bytes
    if not text.unit:
        _within_share(parser, text.text(0)[:bound])
        return
    took: dict[int, float] = {}
    for size in (size for size in SIZES if size <= bound):
        took[size] = _within_share(parser, text.text(size)[:bound])
    small, large = (max([size for size in took if size <= most], default=0) for most in
                    (SIZES[-1] // 8, bound))  # fmt: skip
    if large == SIZES[-1] and took[large] > max(NO_TIME_MS, STEEP * took[small]):
        _check_doublings(parser, text, large)


def _check_doublings(parser: Parser, text: pumped.Pumped, size: int) -> None:
    costs = [
        min(_run_ms(parser, text.text(part)) for _ in range(REPEATS))
        for part in (size // 4, size // 2, size)
    ]
    steps = [after / max(before, 0.01) for before, after in pairwise(costs)]
    if costs[-1] > NO_TIME_MS and min(steps) > DOUBLED_MAX:
        said = ", ".join(f"{cost:.1f}" for cost in costs)
        raise Finding(f"{parser.name} is slow", f"doubled to {size} bytes it takes {said} ms")


def _within_share(parser: Parser, text: bytes) -> float:
    allowed_ms = SLACK * (BASE_MS + 10 * parser.factor * len(text) / 65_536)
    took_ms = _run_ms(parser, text)
    if took_ms > allowed_ms:
        took_ms = min([took_ms, *(_run_ms(parser, text) for _ in range(REPEATS))])
        if took_ms > allowed_ms:
            raise Finding(f"{parser.name} is slow", f"{took_ms:.0f} ms for {len(text)} bytes")
    return took_ms


def _run_ms(parser: Parser, text: bytes) -> float:
    before = time.process_time()
    try:
        with suppress(*parser.refuses):
            parser.run(text)
    except Exception as error:
        kind = getattr(error, "kind", type(error).__name__)
        raise Finding(f"{parser.name}: {kind}", f"{error!s:.200} for {len(text)} bytes") from error
    return (time.process_time() - before) * 1000


def core_seeds(parsers: Sequence[Parser]) -> list[bytes]:
    """Each part of each parser's grammar, once."""
    return [
        bytes((number,)) + text
        for number, parser in enumerate(parsers)
        for text in pumped.seeds_of(parser.grammar)
    ]


def other_input(parsers: Sequence[Parser], data: bytes, chance: Random) -> bytes:
    """Another input of `core`: made from a grammar, or `data` changed by one."""
    if chance.randrange(2) or not data:
        number = chance.randrange(len(parsers))
        return bytes((number,)) + pumped.grown(parsers[number].grammar, chance)
    grammar = parsers[data[0] % len(parsers)].grammar
    return data[:1] + pumped.changed(data[1:], grammar, chance)
