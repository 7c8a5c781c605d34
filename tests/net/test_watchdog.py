"""Long turns are counted under their handler; short ones cost nothing."""

from __future__ import annotations

import logging

import pytest

from cometmq.net.watchdog import Watchdog


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
