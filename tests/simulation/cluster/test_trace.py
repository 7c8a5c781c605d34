"""Traces and their hashes."""

from tests.simulation.cluster.loop import SimLoop
from tests.simulation.cluster.trace import Trace


def test_the_hash_covers_lines_bytes_and_moments() -> None:
    loop = SimLoop()

    def digest(line: str = "a", piece: bytes = b"x", end: int = 1, now_us: int = 5) -> str:
        loop.now_us = now_us
        trace = Trace(loop)
        trace.note(line)
        trace.carried(end, piece)
        return trace.digest

    assert digest() == digest()
    others = {digest("b"), digest(piece=b"y"), digest(end=2), digest(now_us=6)}
    assert len(others | {digest()}) == 5
    loop.dispose()


def test_lines_begin_with_the_time_since_the_start() -> None:
    loop = SimLoop()
    loop.now_us += 1_500_000
    trace = Trace(loop)
    trace.note("it happens")
    assert [line.split() for line in trace.lines] == [["1.500000", "it", "happens"]]
    loop.dispose()
