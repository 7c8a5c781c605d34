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
from tests.pace import slowness

#: The sizes of a text whose parts repeat; small steps first, for what doubles with each level.
SIZES = (*range(40, 136, 8), 160, 250, 1_000, 8_000)
SHORT_BYTES = 500
#: Instrumented code takes some times as long as it does elsewhere.
SLACK = 4
BASE_MS = 30.0
#: The last two doublings are looked at where eight times the size costs so many times as much; then
#: each may cost so many times as much (2 is linear, 4 quadratic), unless all is done in no time.
STEEP = 20.0
DOUBLED_MAX = 3.0
NO_TIME_MS = 12.0
REPEATS = 3
#: So many times what is allowed needs one repeat only.
SURE = 4

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
        whole = text.text(0)[:bound]
        _check_share(parser, whole, _run_ms(parser, whole))
        return
    took: dict[int, float] = {}
    for size in (size for size in SIZES if size <= bound):
        part = text.text(size)[:bound]
        took[size] = _run_ms(parser, part)
        if size < SIZES[-1]:
            _check_share(parser, part, took[size])
        else:
            if took[size] > max(NO_TIME_MS, STEEP * took[size // 8]):
                _check_doublings(parser, text, size)
            _check_share(parser, part, took[size])


def _check_doublings(parser: Parser, text: pumped.Pumped, size: int) -> None:
    costs = [
        min(_run_ms(parser, text.text(part)) for _ in range(REPEATS))
        for part in (size // 4, size // 2, size)
    ]
    steps = [after / max(before, 0.01) for before, after in pairwise(costs)]
    if costs[-1] > NO_TIME_MS and min(steps) > DOUBLED_MAX:
        said = ", ".join(f"{cost:.1f}" for cost in costs)
        raise Finding(f"{parser.name} is not linear", f"doubled to {size} bytes: {said} ms")


def _check_share(parser: Parser, text: bytes, took_ms: float) -> None:
    allowed_ms = SLACK * (BASE_MS + 10 * parser.factor * len(text) / 65_536)
    if took_ms > allowed_ms:
        # At least once again: a full garbage collection of this process takes half a second.
        repeats = REPEATS if took_ms < SURE * allowed_ms else 1
        took_ms = min([took_ms, *(_run_ms(parser, text) for _ in range(repeats))])
        if took_ms > allowed_ms * slowness():
            kind = "is slow" if len(text) >= SHORT_BYTES else "is slow for a short text"
            raise Finding(f"{parser.name} {kind}", f"{took_ms:.0f} ms for {len(text)} bytes")


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
