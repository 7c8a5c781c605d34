"""What one micro-batch may take."""

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

from cometmq.spark.options import BadOption
from cometmq.spark.read.options import Caps, is_enough, parse_caps
from cometmq.spark.read.stream import caps_under, default_read_limit

ALL = {
    "maxOffsetsPerTrigger": "7",
    "maxBytesPerTrigger": "1000",
    "minOffsetsPerTrigger": "3",
    "maxTriggerDelay": "90s",
}


def test_options() -> None:
    assert parse_caps({}) == Caps()
    assert parse_caps(ALL) == Caps(rows_max=7, bytes_max=1000, rows_min=3, delay_ms=90_000)
    with pytest.raises(BadOption, match="'maxTriggerDelay': needs minOffsetsPerTrigger"):
        parse_caps({"maxTriggerDelay": "5s"})
    with pytest.raises(BadOption, match="'minOffsetsPerTrigger': is more than"):
        parse_caps({**ALL, "minOffsetsPerTrigger": "8"})


@pytest.mark.parametrize(
    ("caps", "limit"),
    [
        (Caps(), ReadAllAvailable()),
        (Caps(rows_min=3), ReadMinRows(3)),
        (Caps(rows_min=3, bytes_max=9), ReadMaxBytes(9)),
        (Caps(rows_min=3, bytes_max=9, rows_max=7), ReadMaxRows(7)),
    ],
)
def test_the_limit_that_spark_is_told_stands_for_all(caps: Caps, limit: ReadLimit) -> None:
    assert default_read_limit(caps) == limit
    assert caps_under(limit, caps) == caps


@pytest.mark.parametrize(
    ("limit", "caps"),
    [
        (ReadAllAvailable(), Caps()),
        (ReadMaxRows(5), Caps(rows_max=5, bytes_max=1000, rows_min=3, delay_ms=90_000)),
        (ReadMaxBytes(5), Caps(rows_max=7, bytes_max=5, rows_min=3, delay_ms=90_000)),
        (ReadMinRows(5), Caps(rows_max=7, bytes_max=1000, rows_min=5, delay_ms=90_000)),
        (ReadMaxFiles(5), Caps(rows_max=7, bytes_max=1000, rows_min=3, delay_ms=90_000)),
    ],
)
def test_sparks_own_limits_count_before_options(limit: ReadLimit, caps: Caps) -> None:
    assert caps_under(limit, parse_caps(ALL)) == caps


@pytest.mark.parametrize(
    ("rows", "since_last_ms", "expected"),
    [(3, 0, True), (2, 0, False), (2, 999, False), (2, 1000, True), (1, None, True)],
)
def test_a_batch_waits_for_enough_messages_or_long_enough(
    rows: int, since_last_ms: int | None, expected: bool
) -> None:
    assert is_enough(Caps(rows_min=3, delay_ms=1000), rows, since_last_ms) is expected
    assert is_enough(Caps(), rows, since_last_ms)
