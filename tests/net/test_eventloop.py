"""The event loop: uvloop where there is one; long turns counted; awake while requests are close."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest
import uvloop

from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.net import eventloop
from cometmq.net.eventloop import HANDLERS_MAX, BusyPoll, Watchdog
from cometmq.net.peer import Peer
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Reply, Request
from tests.net.serving import serving

LOOK_US = 100
TURN_US = 10
#: Turns that go by before it is known whether looking pays.
NOT_LOOKING = 2


async def loop_type() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_uvloop_runs_us() -> None:
    assert issubclass(eventloop.run(loop_type()), uvloop.Loop)


def test_without_uvloop_asyncio_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert not issubclass(eventloop.run(loop_type()), uvloop.Loop)


class TurningClock(VirtualClock):
    """Time passes while the loop looks: 10 us each time the processor is offered."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 1_000
        self.taken_us = 0

    def monotonic_ns(self) -> int:
        return self.now_us * 1_000

    def offer(self) -> None:
        """The processor is offered; others keep it for ``taken_us``."""
        self.now_us += TURN_US + self.taken_us


class Requests:
    """Requests at given distances, and what the loop does after each."""

    def __init__(self, clock: TurningClock, lookout: BusyPoll) -> None:
        self.clock = clock
        self.lookout = lookout

    async def come(self, count: int, every_us: int) -> None:
        for _ in range(count):
            self.lookout.arrived(self.clock.now_us * 1_000)
            await self.passes(every_us)

    async def passes(self, duration_us: int) -> int:
        """Let time pass; gives how many turns the loop was awake for."""
        end_us, turns = self.clock.now_us + duration_us, 0
        while self.clock.now_us < end_us:
            before_us = self.clock.now_us
            turns += self.lookout.is_awake
            await asyncio.sleep(0)
            if self.clock.now_us == before_us:
                self.clock.now_us += TURN_US
        return turns


@pytest.fixture
async def requests() -> Requests:
    clock = TurningClock()
    return Requests(clock, BusyPoll(LOOK_US, clock, offer=clock.offer))


async def test_the_first_requests_are_not_waited_for(requests: Requests) -> None:
    await requests.come(1, every_us=40)
    assert not requests.lookout.is_awake


async def test_close_requests_keep_the_loop_awake(requests: Requests) -> None:
    await requests.come(10, every_us=40)
    requests.lookout.arrived(requests.clock.now_us * 1_000)
    assert await requests.passes(40) == 4
    assert requests.lookout.is_awake


async def test_a_loop_that_found_nothing_sleeps(requests: Requests) -> None:
    await requests.come(10, every_us=40)
    turns = await requests.passes(10_000)
    assert turns <= LOOK_US // TURN_US + NOT_LOOKING
    assert not requests.lookout.is_awake


async def test_distant_requests_are_not_waited_for(requests: Requests) -> None:
    await requests.come(10, every_us=40)
    await requests.come(10, every_us=1_000)
    requests.lookout.arrived(requests.clock.now_us * 1_000)
    assert await requests.passes(1_000) == NOT_LOOKING
    # Nor does one short pause among long ones change that.
    requests.lookout.arrived(requests.clock.now_us * 1_000)
    await requests.passes(20)
    requests.lookout.arrived(requests.clock.now_us * 1_000)
    assert await requests.passes(1_000) == NOT_LOOKING


async def test_looking_in_vain_ends_after_a_few_looks(requests: Requests) -> None:
    await requests.come(20, every_us=40)
    in_vain = 0
    for _ in range(20):
        requests.lookout.arrived(requests.clock.now_us * 1_000)
        in_vain += await requests.passes(1_000) > NOT_LOOKING
    assert 1 <= in_vain <= 6


async def test_work_on_a_request_is_no_pause(requests: Requests) -> None:
    def commit() -> None:
        requests.clock.now_us += 10 * LOOK_US

    for _ in range(10):
        requests.lookout.arrived(requests.clock.now_us * 1_000)
        asyncio.get_running_loop().call_soon(commit)
        await requests.passes(10 * LOOK_US + 40)
    assert requests.lookout.is_awake


async def test_one_turn_with_many_requests_is_one_arrival(requests: Requests) -> None:
    await requests.come(10, every_us=1_000)
    for _ in range(100):
        requests.lookout.arrived(requests.clock.now_us * 1_000)
    assert await requests.passes(1_000) == NOT_LOOKING


async def test_a_thread_that_needs_the_interpreter_is_not_kept_waiting() -> None:
    clock, syncing = TurningClock(), ["a turn"]
    requests = Requests(clock, BusyPoll(LOOK_US, clock, waits=syncing, offer=clock.offer))
    syncing.clear()
    await requests.come(10, every_us=40)
    syncing.append("a turn")
    assert await requests.passes(40) == 1
    assert not requests.lookout.is_awake
    syncing.clear()
    await requests.come(3, every_us=40)
    assert requests.lookout.is_awake


async def test_where_others_want_the_processor_looking_rests(requests: Requests) -> None:
    await requests.come(10, every_us=40)
    requests.clock.taken_us = 3_000
    taken = 0
    for _ in range(1_000):
        requests.lookout.arrived(requests.clock.now_us * 1_000)
        before_us = requests.clock.now_us
        await requests.passes(40)
        taken += requests.clock.now_us - before_us > requests.clock.taken_us
    # 40 ms of requests: looking again after 4, 16, ... ms, so three times at most.
    assert 1 <= taken <= 3
    assert not requests.lookout.is_awake


async def test_looking_goes_on_when_the_others_are_gone(requests: Requests) -> None:
    await requests.come(10, every_us=40)
    requests.clock.taken_us = 3_000
    await requests.come(1_000, every_us=40)
    requests.clock.taken_us = 0
    await requests.come(5_000, every_us=40)
    assert requests.lookout.is_awake
    # Who takes it once in a while takes no more than a moment's looking.
    requests.clock.taken_us = 3_000
    await requests.come(1, every_us=40)
    requests.clock.taken_us = 0
    await requests.come(120, every_us=40)
    assert requests.lookout.is_awake


async def test_a_clock_that_stands_still_keeps_nothing_awake() -> None:
    lookout = BusyPoll(LOOK_US, VirtualClock())
    for _ in range(30):
        lookout.arrived(1_000_000)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not lookout.is_awake


async def test_a_server_looks_between_requests_and_rests_after_them() -> None:
    def beat(peer: Peer, request: Request[Any]) -> Reply | None:
        return Reply()

    awake: list[bool] = []
    # So long a look that a loaded machine answers within it, and nobody to take the processor.
    lookout = BusyPoll(100_000, SystemClock(), offer=lambda: None)
    async with serving({RequestCode.HEART_BEAT: beat}, lookout=lookout) as served:
        client = await served.connect()
        for opaque in range(30):
            client.send(RequestCode.HEART_BEAT, opaque=opaque)
            await client.frame()
            awake.append(lookout.is_awake)
        assert any(awake)
        async with asyncio.timeout(60):
            while lookout.is_awake:
                await asyncio.sleep(0.01)


def test_only_long_turns_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog()
    with caplog.at_level(logging.WARNING):
        watchdog.turn("code 310", 19_999_999)
        watchdog.turn("code 12", 45_000_000)
    assert watchdog.stalls == {"code 12": 1}
    assert watchdog.longest_ns == 45_000_000
    assert [record.getMessage() for record in caplog.records] == [
        "loop stalled handler=code 12 took_ms=45"
    ]


def test_the_counted_handlers_are_bounded() -> None:
    watchdog = Watchdog()
    for number in range(HANDLERS_MAX + 5):
        watchdog.turn(f"cold read {number}", 30_000_000)
    watchdog.turn("cold read 0", 30_000_000)
    assert len(watchdog.stalls) == HANDLERS_MAX + 1
    assert watchdog.stalls["others"] == 5
    assert watchdog.stalls["cold read 0"] == 2


def test_a_watched_callback_is_timed_also_when_it_fails() -> None:
    clock = VirtualClock()
    watchdog = Watchdog(clock)

    def work(duration_ms: int) -> None:
        clock.advance(duration_ms)
        if duration_ms > 30:
            raise ValueError("too long")

    run = watchdog.watched("commit", work)
    run(20)
    assert not watchdog.stalls
    run(21)
    with pytest.raises(ValueError, match="too long"):
        run(duration_ms=31)
    assert watchdog.stalls == {"commit": 2}
    assert watchdog.longest_ns == 31_000_000
