"""Copies of waiting records: which place they are for, what damage is."""

import pytest

from cometmq.broker.scheduled.duedelivery import real_place, record_in
from cometmq.core.errors import StoreCorrupt
from cometmq.message import properties as props
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.record import Record, pack

HOST = bytes(8)


@pytest.mark.parametrize(
    ("topic", "queue", "place"),
    [
        ("t", "2", ("t", 2)),
        ("%RETRY%g", "0", ("%RETRY%g", 0)),
        ("t", "-1", None),
        ("t", "x", None),
        ("t", "9" * 10, None),
        ("t", "²", None),
        ("", "1", None),
        ("SCHEDULE_TOPIC_XXXX", "1", None),
        ("rmq_sys_wheel_timer", "0", None),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "0", None),
    ],
)
def test_a_place_that_cannot_be_is_none(
    topic: str, queue: str, place: tuple[str, int] | None
) -> None:
    assert real_place({props.REAL_TOPIC: topic, props.REAL_QID: queue}) == place


def test_a_record_is_read_or_gone_or_damaged() -> None:
    record = Record(0, 0, 1, 0, 0, 0, 0, 1, HOST, 1, HOST, 0, 0, b"body", SCHEDULE_TOPIC, b"")
    raw = pack(record)
    found = record_in(memoryview(raw), SCHEDULE_TOPIC)
    assert found is not None
    assert found.body == b"body"
    assert record_in(memoryview(raw), "other") is None
    assert record_in(None, SCHEDULE_TOPIC) is None
    with pytest.raises(StoreCorrupt, match="CRC"):
        record_in(memoryview(raw.replace(b"body", b"bodx")), SCHEDULE_TOPIC)
    with pytest.raises(StoreCorrupt, match="flipped"):
        record_in(StoreCorrupt("file", 1, "flipped"), SCHEDULE_TOPIC)
