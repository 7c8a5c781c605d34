"""Long work gives the loop back."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.core.clock import SystemClock
from cometmq.core.slices import SLICE_NS, Slices, join_in_slices

CLOCK = SystemClock()


class Turns:
    """How often the loop came round."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


@contextmanager
def counted() -> Iterator[Turns]:
    turns = Turns()
    task = asyncio.create_task(turns.run())
    try:
        yield turns
    finally:
        task.cancel()


def work(duration_ns: int) -> None:
    until_ns = CLOCK.monotonic_ns() + duration_ns
    while CLOCK.monotonic_ns() < until_ns:
        pass


async def test_long_work_gives_the_loop_back() -> None:
    with counted() as turns:
        slices = Slices(CLOCK)
        for _ in range(100):
            await slices.pause()
        assert turns.count == 0  # nothing took long
        for _ in range(3):
            work(SLICE_NS + 1)
            await slices.pause()
        assert turns.count >= 3


async def test_pieces_are_joined_over_several_turns() -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(5):
            work(SLICE_NS + 1)
            yield b"%d" % number

    with counted() as turns:
        assert await join_in_slices(pieces(), CLOCK) == b"01234"
        assert turns.count >= 5
