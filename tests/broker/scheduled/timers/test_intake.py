"""From records to what waits."""

from pathlib import Path

import pytest

from cometmq.broker.scheduled.timers.intake import end_mark, ended_by, record_or_none, waiting_of
from cometmq.broker.scheduled.timers.pending import Waiting
from cometmq.core.errors import StoreCorrupt
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.message.record import Record, pack
from tests.broker.scheduled.timers.timedworld import timed_world

HOST = bytes(8)


def record(topic: str = TIMER_TOPIC, prepared_offset: int = 0, **properties: str) -> Record:
    raw = props.encode(properties)
    return Record(
        120, 0, 0, 0, 7, 700, 0, 1, HOST, 5_000, HOST, 0, prepared_offset, b"", topic, raw
    )


def test_a_record_says_what_it_waits_for() -> None:
    waiting = record(TIMER_OUT_MS="9000", TIMER_DELIVER_MS="9400")
    assert waiting_of(waiting) == Waiting(9_400, 7, 700, 120)
    recall = record(TIMER_OUT_MS="9000", TIMER_DEL_UNIQKEY="t+k", TIMER_DELIVER_MS="9001")
    assert waiting_of(recall) == Waiting(9_000, 7, 700, -120)
    assert waiting_of(record(TIMER_DELIVER_MS="9400")) is None


@pytest.mark.parametrize(
    ("prepared", "properties", "ended"),
    [
        (300, {"TIMER_OUT_MS": "9000"}, (300, 9_000)),
        (-1, {"TIMER_OUT_MS": "9000"}, (0, 9_000)),
        (0, {"TIMER_OUT_MS": "9000"}, None),
        (300, {}, None),
        (300, {"TIMER_OUT_MS": "x"}, None),
        (300, {"a": "TIMER_OUT_MS"}, None),
    ],
)
def test_a_record_says_whose_wait_it_ends(
    prepared: int, properties: dict[str, str], ended: tuple[int, int] | None
) -> None:
    assert ended_by(record("t", prepared, **properties)) == ended


def test_offset_0_has_a_mark_too() -> None:
    assert (end_mark(0), end_mark(300)) == (-1, 300)


def test_damage_and_gaps_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert record_or_none(None, 5) is None
    assert record_or_none(StoreCorrupt("file", 5, "flipped"), 5) is None
    assert "timed message damaged physical=5" in caplog.text
    assert record_or_none(memoryview(pack(record())), 700) is not None


async def test_what_says_no_time_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with timed_world(tmp_path) as world:
        await world.put(TIMER_TOPIC, b"bad", 0, {})
        await world.send(b"good", 1_000)
        await world.advance(1_000)
        assert world.bodies() == [b"good"]
        assert "it has no delivery time" in caplog.text


async def test_large_messages_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        for number in range(5):
            await world.send(bytes([number]) * 700_000, 1_000)
        await world.advance(1_000)
        assert [body[0] for body in world.bodies()] == [0, 1, 2, 3, 4]
