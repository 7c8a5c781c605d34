"""Delay levels, delivery on time, and what a stop or a refusing store does to it."""

import asyncio
import errno
from pathlib import Path

import pytest

from cometmq.broker.acknowledgement import OutgoingRecord
from cometmq.broker.config import BrokerConfig
from cometmq.broker.scheduled.delaylevels import TICK_MS, DelayLevels, Waits
from cometmq.broker.scheduled.duedelivery import GATHER_COUNT, REST_MS
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.core.errors import SettingsError, StoreCorrupt, StoreFull
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.protocol.codes import RequestCode
from cometmq.store.layout import QUEUE_ENTRY
from cometmq.store.read.coldreads import ColdReads, Found
from tests.broker.world import STORE_HOST, Parts, open_parts
from tests.replication.pairs import until

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LEVELS = DelayLevels("1s 5s 10s 2h")


async def park(
    parts: Parts, level: int, body: bytes = b"x", topic: str = "t", queue_id: int = 3, **more: str
) -> None:
    place, place_id, properties = parts.levels.place_for(topic, queue_id, more, level)
    await parts.put(place, body, place_id, **properties)


def test_levels_have_delays() -> None:
    assert len(LEVELS) == 4
    assert [LEVELS.delay_ms(level) for level in (1, 2, 3, 4)] == [1_000, 5_000, 10_000, 7_200_000]
    assert LEVELS.due_ms(1, 100) == 5_100
    with pytest.raises(SettingsError, match="messageDelayLevel"):
        DelayLevels("1s 1y")


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("1", 1),
        ("4", 4),
        ("99", 4),
        ("9" * 40, 4),
        ("0", 0),
        ("-1", 0),
        ("x", 0),
        ("", 0),
        ("²", 0),
    ],
)
def test_a_level_is_read_from_the_properties(text: str, level: int) -> None:
    assert LEVELS.level_of({props.DELAY: text}) == level


def test_no_property_no_level() -> None:
    assert LEVELS.level_of({}) == 0


def test_a_parked_message_knows_its_place() -> None:
    topic, queue_id, properties = LEVELS.place_for("t", 7, {"a": "b", "DELAY": "99"}, 99)
    assert (topic, queue_id) == (SCHEDULE, 3)
    assert LEVELS.is_schedule(topic)
    assert not LEVELS.is_schedule("t")
    assert properties == {"a": "b", "DELAY": "4", "REAL_TOPIC": "t", "REAL_QID": "7"}


async def test_what_a_slave_copies_is_on_its_disk_before_it_stops(tmp_path: Path) -> None:
    """One that is killed and becomes the master would deliver all of the past again."""
    path = tmp_path / "config" / "delayOffset.json"
    async with open_parts(tmp_path) as parts:
        parts.delivery.replace(b'{"offsetTable":{3:11}}')
        await until(lambda: path.exists() and b"3:11" in path.read_bytes())
        parts.delivery.replace(b'{"offsetTable":{3:12}}')
        await until(lambda: b"3:12" in path.read_bytes())
        written = path.stat().st_mtime_ns
        parts.delivery.replace(b'{"offsetTable":{3:12}}')
        assert not parts.delivery._file.unsaved
        assert path.stat().st_mtime_ns == written


async def test_a_level_that_cannot_be_read_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, gather = VirtualClock(), ColdReads.gather
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1, b"unread")
        await park(parts, 2, b"good")
        bad = QUEUE_ENTRY.unpack(parts.store.queue(SCHEDULE, 0).read(0, 1))[0]

        async def failing(reads: ColdReads, ranges: list[tuple[int, int]]) -> list[Found]:
            if bad in [at for at, _ in ranges]:
                raise OSError(errno.EIO, "the device does not give it")
            return await gather(reads, ranges)

        clock.advance(10_000)
        with monkeypatch.context() as patch:
            patch.setattr(ColdReads, "gather", failing)
            assert await parts.delivery.deliver_due() == 1
            assert [record.body for record in parts.read("t", 3)] == [b"good"]
        clock.advance(REST_MS)
        assert await parts.delivery.deliver_due() == 1
        assert [record.body for record in parts.read("t", 3)] == [b"good", b"unread"]


async def test_a_message_is_delivered_when_it_is_due(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1, b"one", TAGS="red", KEYS="k", user="u")
        parked = parts.store.queue(SCHEDULE, 0)
        assert QUEUE_ENTRY.unpack(parked.read(0, 1))[2] == clock.wall_ms() + 1_000
        clock.advance(999)
        assert await parts.delivery.deliver_due() == 0
        clock.advance(1)
        assert await parts.delivery.deliver_due() == 1
        assert await parts.delivery.deliver_due() == 0
        (record,) = parts.read("t", 3)
        assert record.body == b"one"
        found = props.decode(record.properties)
        assert found == {
            "TAGS": "red",
            "KEYS": "k",
            "user": "u",
            "DELAY": "1",
            "REAL_TOPIC": "t",
            "REAL_QID": "3",
        }
        assert QUEUE_ENTRY.unpack(parts.store.queue("t", 3).read(0, 1))[2] == tag_code("red")
        assert parts.delivery.progress()[1] == (1, 1)


async def test_each_level_keeps_its_order_and_its_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        count = GATHER_COUNT + 10
        for number in range(count):
            await park(parts, 1, b"%d" % number)
        await park(parts, 2, b"late")
        clock.advance(1_000)
        assert await parts.delivery.deliver_due() == count
        assert [record.body for record in parts.read("t", 3)] == [
            b"%d" % number for number in range(count)
        ]
        clock.advance(4_000)
        assert await parts.delivery.deliver_due() == 1


async def test_a_wall_clock_set_back_does_not_hold_messages_forever(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1)
        clock.jump_wall(-3_600_000)
        assert await parts.delivery.deliver_due() == 0
        clock.advance(1_000)
        assert await parts.delivery.deliver_due() == 1


async def test_a_delay_is_kept_while_the_wall_clock_has_not_caught_up(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1, b"before")
        clock.jump_wall(-3_600_000)
        for wait_ms, delivered in ((0, 0), (600, 0), (400, 1), (600, 1), (0, 0)):
            clock.advance(wait_ms)
            assert await parts.delivery.deliver_due() == delivered
            if not delivered:
                await park(parts, 1, b"after")
        clock.advance(3_600_000)
        assert await parts.delivery.deliver_due() == 2


async def test_positions_survive_a_stop(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1, b"a")
        clock.advance(1_000)
        await parts.delivery.deliver_due()
        await park(parts, 1, b"b")
        reply = await parts.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert reply.body == b'{"offsetTable":{1:1}}'
    written = (tmp_path / "config" / "delayOffset.json").read_bytes()
    assert written == b'{\n\t"offsetTable":{1:1\n\t}\n}'
    clock.advance(1_000)
    async with open_parts(tmp_path, clock=clock) as parts:
        assert await parts.delivery.deliver_due() == 1
        assert [record.body for record in parts.read("t", 3)] == [b"a", b"b"]


async def test_a_lost_position_delivers_again_rather_than_never(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1, b"a")
        clock.advance(1_000)
        await parts.delivery.deliver_due()
    for path in (tmp_path / "config").glob("delayOffset.json*"):
        path.unlink()
    async with open_parts(tmp_path, clock=clock) as parts:
        assert await parts.delivery.deliver_due() == 1


@pytest.mark.parametrize(("stored", "clamped"), [("1:99", 1), ("1:-5", 0)])
async def test_positions_are_brought_into_bounds(
    tmp_path: Path, stored: str, clamped: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1)
    path = tmp_path / "config" / "delayOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"offsetTable":{' + stored + "}}")
    async with open_parts(tmp_path, clock=clock) as parts:
        assert parts.delivery.progress()[1] == (clamped, 1)
        assert "delay offset clamped level=1" in caplog.text


async def test_broken_positions_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "config" / "delayOffset.json"
    path.parent.mkdir()
    path.write_text('{"offsetTable":{"x":1}}')
    with pytest.raises(StoreCorrupt, match="offsetTable"):
        async with open_parts(tmp_path):
            pass


async def test_a_refusing_store_is_asked_again_and_nothing_is_lost(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1)
        clock.advance(1_000)
        parts.store.state.refusal = StoreFull("full")
        assert await parts.delivery.deliver_due() == 0
        parts.store.state.refusal = None
        assert await parts.delivery.deliver_due() == 0  # the level rests
        clock.advance(1_000)
        assert await parts.delivery.deliver_due() == 1


async def test_what_cannot_be_delivered_does_not_hold_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await parts.put(SCHEDULE, b"nowhere", 0, DELAY="1")
        await park(parts, 1, b"half", "RMQ_SYS_TRANS_HALF_TOPIC")
        await park(parts, 1, b"long", "t" * 200)
        await park(parts, 1, b"good")
        clock.advance(1_000)
        assert await parts.delivery.deliver_due() == 4
        assert [record.body for record in parts.read("t", 3)] == [b"good"]
        assert caplog.text.count("delayed message dropped") == 3


async def test_damage_holds_a_level_up_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1, b"first")
        await park(parts, 1, b"behind damage")
        await park(parts, 2, b"other level")
        bad = QUEUE_ENTRY.unpack(parts.store.queue(SCHEDULE, 0).read(1, 1))[0]

        gather = ColdReads.gather

        async def damaged(reads: ColdReads, ranges: list[tuple[int, int]]) -> list[Found]:
            found = await gather(reads, ranges)
            flipped = StoreCorrupt("file", bad, "flipped")
            pairs = zip(ranges, found, strict=True)
            return [flipped if at == bad else view for (at, _), view in pairs]

        monkeypatch.setattr(ColdReads, "gather", damaged)
        clock.advance(5_000)
        assert await parts.delivery.deliver_due() == 2
        assert await parts.delivery.deliver_due() == 0
        assert [record.body for record in parts.read("t", 3)] == [b"first", b"other level"]
        assert "file at offset" in caplog.text
        # Brought back by an operator, it is delivered.
        monkeypatch.undo()
        clock.advance(60_000)
        assert await parts.delivery.deliver_due() == 1
        assert parts.read("t", 3)[-1].body == b"behind damage"


async def test_the_loop_delivers_within_100_ms(tmp_path: Path) -> None:
    config = BrokerConfig(message_delay_level="1s")
    async with open_parts(tmp_path, config) as parts:
        running = parts.tasks.spawn(parts.delivery.run_forever(), name="deliver")
        await park(parts, 1)
        due_ms = QUEUE_ENTRY.unpack(parts.store.queue(SCHEDULE, 0).read(0, 1))[2]
        async with asyncio.timeout(10):
            while not (records := parts.read("t", 3)):
                await asyncio.sleep(0.005)
        assert TICK_MS <= 50
        assert 0 <= records[0].store_ms - due_ms <= 100
        assert not running.done()


async def test_positions_are_written_in_the_interval(tmp_path: Path) -> None:
    config = BrokerConfig(flush_delay_offset_interval=1)
    clock = SystemClock()
    async with open_parts(tmp_path, config, clock) as parts:
        parts.tasks.spawn(parts.delivery.run_forever(), name="deliver")
        await park(parts, 1)
        path = tmp_path / "config" / "delayOffset.json"
        async with asyncio.timeout(10):
            while not (path.exists() and b"{1:1" in path.read_bytes()):
                await asyncio.sleep(0.005)


async def test_a_stop_in_the_middle_of_a_delivery_counts_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        await park(parts, 1)
        clock.advance(1_000)
        running = parts.tasks.spawn(parts.delivery.deliver_due(), name="deliver")
        async with asyncio.timeout(10):
            while not parts.store.queue("t", 3).next_offset:
                await asyncio.sleep(0)
        running.cancel()
    async with open_parts(tmp_path, clock=clock) as parts:
        assert await parts.delivery.deliver_due() == 0
        assert len(parts.read("t", 3)) == 1


async def test_hosts_and_counts_of_the_sender_stay(tmp_path: Path) -> None:
    clock = VirtualClock()
    host = b"\x01\x02\x03\x04\0\0\0\x05"
    async with open_parts(tmp_path, clock=clock) as parts:
        place, queue_id, properties = parts.levels.place_for("t", 2, {}, 1)
        record = OutgoingRecord(
            place, queue_id, b"b", properties, 11, host, flag=7, sys_flag=1, reconsume_times=5
        )
        await parts.appender.put(record)
        clock.advance(1_000)
        assert await parts.delivery.deliver_due() == 1
        (found,) = parts.read("t", 2)
        assert (found.flag, found.sys_flag, found.reconsume_times) == (7, 1, 5)
        assert (found.born_ms, found.born_host, found.store_host) == (11, host, STORE_HOST)


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_wrong_entry_is_made_right_before_it_is_delivered(
    tmp_path: Path, number: int
) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        for body in (b"one", b"two", b"three"):
            await park(parts, 1, body)
            await parts.put("other", body, 0)
        queue = parts.store.queue(SCHEDULE, 0)
        entry = bytes(queue.read(number, 1))
        other = QUEUE_ENTRY.unpack(parts.store.queue("other", 0).read(number, 1))
        due_ms = QUEUE_ENTRY.unpack(entry)[2]
        queue.replace(number, QUEUE_ENTRY.pack(other[0], other[1], due_ms))
        clock.advance(1_000)
        await parts.delivery.deliver_due()
        await parts.delivery.deliver_due()
        assert [record.body for record in parts.read("t", 3)] == [b"one", b"two", b"three"]
        assert bytes(queue.read(number, 1)) == entry


def test_what_was_seen_waits_its_delay() -> None:
    waits = Waits(1_000)
    waits.look(3, 5_000)
    waits.look(3, 5_999)
    assert waits.over == 0
    waits.look(3, 6_000)
    assert waits.over == 3


def test_what_comes_later_waits_from_then_on() -> None:
    waits = Waits(1_000)
    waits.look(3, 5_000)
    waits.look(5, 5_400)
    waits.look(5, 6_000)
    assert waits.over == 3
    waits.look(5, 6_400)
    assert waits.over == 5


def test_what_comes_all_the_time_is_remembered_in_few_pieces_and_is_not_early() -> None:
    waits = Waits(6_400)
    for number in range(1, 6_400):
        waits.look(number, number)
        assert waits.over == 0
    assert len(waits._marks) <= 65
    for now_ms in range(6_400, 12_900):
        waits.look(6_399, now_ms)
        assert now_ms - 6_400 - 101 <= waits.over <= max(now_ms - 6_400, 0)
    assert waits.over == 6_399


def test_when_the_wall_clock_is_right_nothing_is_remembered() -> None:
    waits = Waits(1_000)
    waits.look(3, 0)
    waits.look(3, 1_000)
    waits.look(4, 1_000)
    waits.forget()
    assert (waits.over, len(waits._marks)) == (0, 0)
