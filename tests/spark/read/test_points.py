"""Points in queues, as options name them."""

import pytest

from cometmq.message.model import MessageQueue
from cometmq.spark.options import BadOption
from cometmq.spark.read.points import Kind, Point, moment_ms, point


def test_offsets_by_queue() -> None:
    text = '{"T": {"broker-a": {"0": 12, "1": -2}, "broker-b": {"0": -1}}}'
    queues = {
        MessageQueue("T", "broker-a", 0): 12,
        MessageQueue("T", "broker-a", 1): -2,
        MessageQueue("T", "broker-b", 0): -1,
    }
    given = {"startingOffsets": text, "endingOffsets": text}
    assert point(given, "starting", Kind.EARLIEST) == Point(
        Kind.OFFSETS, queues, otherwise=Kind.EARLIEST
    )
    assert point(given, "ending", Kind.LATEST) == Point(Kind.OFFSETS, queues, otherwise=Kind.LATEST)


def test_offsets_by_name_and_time() -> None:
    given = {"startingOffsets": "Latest", "endingTimestamp": "1700000000123"}
    assert point(given, "starting", Kind.EARLIEST) == Point(Kind.LATEST)
    assert point(given, "ending", Kind.LATEST) == Point(Kind.TIME, moment_ms=1_700_000_000_123)
    assert point({}, "starting", Kind.EARLIEST) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1970-01-01T00:00:01.5Z", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
    ],
)
def test_moments(text: str, expected: int) -> None:
    assert moment_ms(text) == expected


@pytest.mark.parametrize("text", ["first", '{"T": {"b": {"x": 1}}}', '{"T": {"b": {"0": -3}}}'])
def test_what_is_no_point(text: str) -> None:
    with pytest.raises(BadOption, match="endingOffsets"):
        point({"endingOffsets": text}, "ending", Kind.LATEST)
