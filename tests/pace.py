"""Bounds of processor time that hold on a slow machine too.

A shared machine may run several times slower than it did a minute ago. What a test allows is
therefore multiplied by how slowly a loop of plain Python runs at that moment.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time

_ROUNDS = 100_000
#: What a round of the loop takes on the machine that the bounds were chosen on.
_ROUND_NS = 50
_TRIES = 3


def slowness() -> float:
    """Return how many times slower than usual this machine is now, at least 1."""
    return max(1.0, min(_loop_s() for _ in range(_TRIES)) / (_ROUNDS * _ROUND_NS * 1e-9))


def _loop_s() -> float:
    begin, total = process_time(), 0
    for number in range(_ROUNDS):
        total += number
    return process_time() - begin


@contextmanager
def processor_time_within(limit_s: float) -> Iterator[None]:
    """Assert that the block takes less than ``limit_s`` of processor time on a usual machine."""
    begin = process_time()
    yield
    took_s = process_time() - begin
    assert took_s < limit_s or took_s < limit_s * slowness(), f"took {took_s:.2f} s"
