"""Finds inputs for which a parser takes too long, grows faster than its input, or fails oddly.

Processor time counts, not the clock on the wall. A measurement that would be complained of is
repeated, and its least time counts, so that a busy machine gives no complaint.

    python -m tests.hostile.measure [PARSER...]     every shape; says what it found
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from tests.hostile.grammar import Shape, shapes
from tests.hostile.parsers import PARSERS, Parser
from tests.pace import slowness

#: The sizes tried, as far as a parser's bound; small steps first, for what doubles with each level.
SIZES = (40, 64, 80, 100, 125, 160, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_384, 65_536)
ALLOWED_MS = 10.0
ALLOWED_FOR_BYTES = 65_536
#: Allowed whatever the size: calls, first imports and a collection of garbage.
BASE_MS = 8.0
#: Four times the input may take so many times as long; 4 is linear, 16 quadratic.
GROWTH_MAX = 9.0
#: Growth is only looked at where it can be measured.
GROWTH_FROM_MS = 4.0
REPEATS = 4
#: Twice what any share is: no need to repeat.
SURE_MS = 1_500
#: So many complaints of a parser are enough for a report.
TOLD_MAX = 3


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with a parser, for which input."""

    parser: str
    shape: str
    size_bytes: int
    took_ms: float
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.parser}: {self.problem}, {self.took_ms:.1f} ms"
            f" for {self.size_bytes} bytes of {self.shape}"
        )


def complaint_of(parser: Parser, name: str, shape: Shape) -> Complaint | None:
    """The first complaint about a parser and a shape, with growing sizes; None when it is fine."""
    took: dict[int, float] = {}
    for size in _sizes(parser.bound_bytes):
        text = shape(size)
        try:
            took[size] = _took_ms(parser, text)
        except Exception as error:
            problem = f"raises {type(error).__name__}"
            return Complaint(parser.name, name, len(text), 0, problem)
        if _problem(parser, took, size, len(text), _slack()):
            slack = _slack() * slowness()
            repeats = REPEATS if took[size] < SURE_MS * slack else 0
            took[size] = min([took[size], *(_took_ms(parser, text) for _ in range(repeats))])
            if repeats and size // 4 in took:
                # The machine may have become slower since: compare what it takes now.
                quarter = shape(size // 4)
                took[size // 4] = min(_took_ms(parser, quarter) for _ in range(repeats))
            problem = _problem(parser, took, size, len(text), slack)
            if problem:
                return Complaint(parser.name, name, len(text), took[size], problem)
    return None


def _sizes(bound_bytes: int) -> list[int]:
    return [size for size in SIZES if size < bound_bytes] + [min(bound_bytes, SIZES[-1])]


def _slack() -> float:
    """How many times as long anything may take: code whose coverage is traced is slower."""
    return 1.0 if sys.gettrace() is None else 6.0


def _problem(
    parser: Parser, took: dict[int, float], size: int, real_bytes: int, slack: float
) -> str:
    """What is wrong with the time of `size`, given those of smaller ones; "" when nothing is."""
    allowed = BASE_MS + ALLOWED_MS * parser.factor * real_bytes / ALLOWED_FOR_BYTES
    allowed *= slack
    if took[size] > allowed:
        return f"takes more than {allowed:.0f} ms"
    quarter = max(took.get(size // 4, ALLOWED_MS * parser.factor), GROWTH_FROM_MS / 10)
    # What costs much for each byte may begin with a step, as from one way of filtering to another.
    growth_from_ms = GROWTH_FROM_MS * max(1.0, parser.factor / 60) * slack
    if took[size] > growth_from_ms and took[size] > GROWTH_MAX * quarter:
        return f"takes {took[size] / quarter:.0f} times as long for 4 times as much"
    return ""


def _took_ms(parser: Parser, text: bytes) -> float:
    before = time.process_time()
    with suppress(*parser.refuses):
        parser.run(text)
    return (time.process_time() - before) * 1000


def complaints(parsers: Iterable[Parser], *, each: int = 1, start: int = 0) -> Iterator[Complaint]:
    """The complaints about parsers; only each `each`-th shape is tried, from `start` on."""
    for parser in parsers:
        for name, shape in list(shapes(parser.grammar))[start % each :: each]:
            complaint = complaint_of(parser, name, shape)
            if complaint is not None:
                yield complaint


def _usual() -> list[str]:
    return [parser.name for parser in PARSERS]


def main(words: list[str]) -> int:
    """Measure the parsers named by `words`, or all; 1 when there are complaints."""
    logging.disable()  # the parsers of files log what they cannot read
    found = 0
    for parser in PARSERS:
        if parser.name not in (words or _usual()):
            continue
        begin = time.monotonic()
        own = 0
        for complaint in complaints([parser]):
            own += 1
            print(f"  {complaint} (after {time.monotonic() - begin:.1f} s)", flush=True)
            if own == TOLD_MAX:
                break
        found += own
        print(f"{parser.name}: {own} complaints, {time.monotonic() - begin:.1f} s", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
