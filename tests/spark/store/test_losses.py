"""What is told of files that are gone or damaged."""

import logging

import pytest

from cometmq.spark.store.files import DamagedBytes, LogFileStatus
from cometmq.spark.store.options import RequestedRanges, StoreRoot, parse
from cometmq.spark.store.planning import LogPart
from cometmq.spark.store.reader import DamagedLog, LogGone, report_damage, report_gone

PART = LogPart(StoreRoot("/s", "b"), LogFileStatus("/s/f", 0, 90), 10, 80, RequestedRanges(), 0)
DAMAGE = DamagedBytes(20, 30, "magic is 0x00000000")


def test_an_error_unless_told_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    strict = parse({"store": "/s"})
    with pytest.raises(LogGone, match=r"/s/f is missing.* 10 to 80"):
        report_gone(PART, strict)
    with pytest.raises(DamagedLog, match="/s/f is damaged at physical offset 20: magic"):
        report_damage(PART, DAMAGE, strict)
    lax = parse({"store": "/s", "failOnDataLoss": "false", "mode": "PERMISSIVE"})
    with caplog.at_level(logging.WARNING):
        report_gone(PART, lax)
        report_damage(PART, DAMAGE, lax)
    assert "log_file_missing path=/s/f start=10 stop=80" in caplog.text
    assert "log_damaged path=/s/f start=20 stop=30" in caplog.text
