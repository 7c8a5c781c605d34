"""Pulls far behind the end take a share of the time, and all of it when nobody sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

from cometmq.broker.farreads import PARTS, FarReads, Share
from cometmq.broker.longpoll import HeldPull
from cometmq.core.clock import VirtualClock
from cometmq.net.tasks import Tasks

MS = 1_000_000


def test_while_the_log_grows_a_pull_is_followed_by_a_rest() -> None:
    share = Share()
    assert not share.rests(1_000 * MS, 0)
    share.spent(1_001 * MS, 2 * MS)
    # What was left of the share a millisecond ago counts.
    assert share.rests((1_000 + 2 * PARTS - 1) * MS, 1)
    assert not share.rests((1_000 + 2 * PARTS) * MS, 2)


def test_without_sends_there_is_no_rest() -> None:
    share = Share()
    share.rests(1_000 * MS, 7)
    share.spent(1_001 * MS, 500 * MS)
    assert share.rests(1_019 * MS, 7)
    assert not share.rests(1_020 * MS, 7)


def test_a_share_is_what_it_says() -> None:
    share = Share()
    now, used = 0, 0
    for turn in range(10_000):
        if share.rests(now, turn):
            now += MS
        else:
            used += MS // 4
            now += MS // 4
            share.spent(now, MS // 4)
    assert 0.9 / PARTS < used / now < 1.1 / PARTS


class Far:
    """Far pulls of one broker, with what was read. Each takes 2 ms, and somebody sends meanwhile
    as long as ``sends`` says so."""

    def __init__(self, tasks: Tasks) -> None:
        self.clock = VirtualClock()
        self.written = 0
        self.sends = True
        self.read: list[str] = []
        self.far = FarReads(
            clock=self.clock, tasks=tasks, written=lambda: self.written, read=self._read
        )

    def pull(self, name: str, *, closed: bool = False) -> None:
        """A pull comes."""
        pull = cast("HeldPull", SimpleNamespace(name=name, peer=SimpleNamespace(closed=closed)))
        self._read(pull, final=False)

    def _read(self, pull: HeldPull, final: bool) -> None:
        begun_ns = self.clock.monotonic_ns()
        if self.far.must_wait(begun_ns):
            self.far.wait(pull, final)
            return
        self.pass_time(2)
        self.read.append(cast("SimpleNamespace", pull).name)
        self.far.spent(begun_ns)

    def pass_time(self, duration_ms: int) -> None:
        self.written += self.sends
        self.clock.advance(duration_ms)

    async def until_read(self) -> int:
        """How long it takes until nobody waits."""
        begun_ms = self.clock.monotonic_ms()
        while self.far.waiting:
            await self.clock.sleep_ms(0)
            self.pass_time(1)
        return self.clock.monotonic_ms() - begun_ms


@asynccontextmanager
async def far_reads() -> AsyncIterator[Far]:
    tasks = Tasks()
    yield Far(tasks)
    await tasks.close()


async def test_pulls_wait_for_their_turn_while_others_send() -> None:
    async with far_reads() as far:
        for name in "abcd":
            far.pull(name)
        assert far.read == ["a"]
        took_ms = await far.until_read()
        assert far.read == ["a", "b", "c", "d"]
        # Three more turns of 2 ms, each after its rest.
        assert 5 * PARTS <= took_ms <= 7.5 * PARTS


async def test_when_nobody_sends_nobody_waits() -> None:
    async with far_reads() as far:
        far.pull("a")
        far.pull("b")
        assert far.read == ["a"]
        far.sends = False
        far.pass_time(20)
        for name in "cd":
            far.pull(name)
        assert far.read == ["a", "c", "d"]
        assert await far.until_read() <= 4
        assert far.read == ["a", "c", "d", "b"]


async def test_who_has_gone_is_not_read_for() -> None:
    async with far_reads() as far:
        far.pull("a")
        far.pull("gone", closed=True)
        await far.until_read()
        assert far.read == ["a"]
