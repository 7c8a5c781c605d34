"""Bytes of many peers leave together, and late ones with the next."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.net.watchdog import STALL_NS, Watchdog
from cometmq.net.writecoalescer import WriteCoalescer


async def test_what_peers_have_leaves_after_the_round_in_their_order() -> None:
    departures = WriteCoalescer(Watchdog())
    left: list[str] = []
    asyncio.get_running_loop().call_soon(left.append, "what came in with them")
    departures.add(lambda: left.append("a"))
    departures.add(lambda: left.append("b"))
    assert left == []
    await asyncio.sleep(0)
    assert left == ["what came in with them", "a", "b"]
    await asyncio.sleep(0)
    assert len(left) == 3


async def test_who_comes_while_others_leave_goes_next() -> None:
    departures = WriteCoalescer(Watchdog())
    left: list[str] = []

    def leave() -> None:
        left.append("a")
        departures.add(lambda: left.append("b"))

    departures.add(leave)
    await asyncio.sleep(0)
    assert left == ["a"]
    await asyncio.sleep(0)
    assert left == ["a", "b"]


async def test_a_round_that_takes_long_is_noticed() -> None:
    clock = VirtualClock()
    watchdog = Watchdog(clock)
    departures = WriteCoalescer(watchdog)
    departures.add(lambda: clock.advance(STALL_NS // 1_000_000 + 1))
    await asyncio.sleep(0)
    assert watchdog.stalls == {"flush": 1}


async def test_one_that_fails_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    departures = WriteCoalescer(Watchdog())
    left: list[str] = []

    def fail() -> None:
        raise AttributeError("_write_appdata")

    departures.add(fail)
    departures.add(lambda: left.append("b"))
    await asyncio.sleep(0)
    assert left == ["b"]
    assert caplog.messages == ["flush failed"]
