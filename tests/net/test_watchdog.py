"""Long turns are counted under their handler; short ones cost nothing."""

from __future__ import annotations

import logging

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.net.watchdog import HANDLERS_MAX, Watchdog


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
