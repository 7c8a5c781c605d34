"""Delivering: recalls, refusals, damage, what cannot be delivered."""

import errno
from pathlib import Path

import pytest

from cometmq.broker.scheduled.duedelivery import REST_MS
from cometmq.broker.scheduled.timers import delivery
from cometmq.broker.scheduled.timers.delivery import RETRY_HELD_MS
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt, StoreFull
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.layout import QUEUE_ENTRY
from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.read.coldreads import ColdReads, Found
from tests.broker.scheduled.timers.timedworld import TimedWorld, timed_world


async def test_what_is_recalled_is_not_delivered(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        sent_ms = world.clock.wall_ms()
        for key in ("a", "b", "c"):
            await world.send(key.encode(), 5_300, UNIQ_KEY=key)
        await world.send(b"other topic", 5_300, topic="u", UNIQ_KEY="b")
        await world.recall(sent_ms, 5_300, "b")
        await world.advance(6_000)
        assert world.bodies() == [b"a", b"c"]
        assert world.bodies("u") == [b"other topic"]
        assert world.timers.delivery.recalls == 1
        # A later message under the same key is another one.
        await world.send(b"b again", 5_300, UNIQ_KEY="b")
        await world.advance(6_000)
        assert world.bodies() == [b"a", b"c", b"b again"]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_recall_counts_after_a_restart_within_its_second(
    tmp_path: Path, crash: bool
) -> None:
    clock = VirtualClock()
    async with timed_world(tmp_path, clock, crash=crash) as world:
        sent_ms = clock.wall_ms()
        await world.send(b"a", 5_300, UNIQ_KEY="a")
        await world.send(b"b", 5_400, UNIQ_KEY="b")
        await world.recall(sent_ms, 5_300, "a")
        await world.advance(5_100)  # the recall is due, what it is for is not
        assert world.bodies() == []
        world.store.flusher.sync_now()
        world.timers.saver.know()
        assert await world.timers.saver.save()
    async with timed_world(tmp_path, clock) as world:
        await world.advance(1_000)
        assert world.bodies() == [b"b"]


async def test_a_refusing_store_is_asked_again(tmp_path: Path) -> None:
    clock = RestingClock()
    async with timed_world(tmp_path, clock) as world:
        await world.send(b"a", 1_000)
        world.store.state.refusal = StoreFull("full")
        clock.allow = world
        await world.advance(2_000)
        assert world.bodies() == [b"a"]
        assert clock.rests == [REST_MS]


class RestingClock(VirtualClock):
    """Room is there again after the first rest."""

    __slots__ = ("allow", "rests")

    def __init__(self) -> None:
        super().__init__()
        self.allow: TimedWorld | None = None
        self.rests: list[float] = []

    async def sleep_ms(self, duration_ms: float) -> None:
        if duration_ms >= REST_MS and self.allow is not None:
            self.rests.append(duration_ms)
            self.allow.store.state.refusal = None
            return
        await super().sleep_ms(duration_ms)


async def test_damage_is_held_back_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    async with timed_world(tmp_path, clock) as world:
        for number in range(3):
            await world.send(b"%d" % number, 1_000 + number)
        await world.settle()
        bad = QUEUE_ENTRY.unpack(world.store.queue(TIMER_TOPIC, 0).read(1, 1))[0]

        gather = ColdReads.gather

        async def damaged(reads: ColdReads, ranges: list[tuple[int, int]]) -> list[Found]:
            found = await gather(reads, ranges)
            flipped = StoreCorrupt("file", bad, "flipped")
            pairs = zip(ranges, found, strict=True)
            return [flipped if at == bad else view for (at, _), view in pairs]

        with monkeypatch.context() as patch:
            patch.setattr(ColdReads, "gather", damaged)
            await world.advance(2_000)
            assert world.bodies() == [b"0", b"2"]
            assert world.timers.facts()["timerHeldBack"] == "1"
            await world.advance(RETRY_HELD_MS)
            assert world.bodies() == [b"0", b"2"]
    async with timed_world(tmp_path, clock) as world:
        assert len(world.timers.delivery.held) == 1
        await world.advance(RETRY_HELD_MS)
        assert world.bodies() == [b"0", b"2", b"1"]
        assert world.timers.facts()["timerHeldBack"] == "0"


async def test_what_the_device_does_not_give_is_not_lost_and_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed_world(tmp_path) as world:
        for number in range(3):
            await world.send(b"%d" % number, 1_020)
        await world.settle()
        bad = QUEUE_ENTRY.unpack(world.store.queue(TIMER_TOPIC, 0).read(1, 1))[0]
        gather = ColdReads.gather

        async def failing(reads: ColdReads, ranges: list[tuple[int, int]]) -> list[Found]:
            if bad in [at for at, _ in ranges]:
                raise OSError(errno.EIO, "the device does not give it")
            return await gather(reads, ranges)

        with monkeypatch.context() as patch:
            patch.setattr(ColdReads, "gather", failing)
            await world.advance(2_000)
            assert world.bodies() == [b"0", b"2"]
            assert world.timers.facts()["timerHeldBack"] == "1"
        await world.advance(RETRY_HELD_MS)
        assert world.bodies() == [b"0", b"2", b"1"]


async def test_while_much_is_held_back_the_device_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MAX_HELD", 0)
    clock = RestingClock()
    failures = [OSError(errno.EIO, "not now")]
    gather = ColdReads.gather

    async def failing(reads: ColdReads, ranges: list[tuple[int, int]]) -> list[Found]:
        if failures:
            raise failures.pop()
        return await gather(reads, ranges)

    async with timed_world(tmp_path, clock) as world:
        await world.send(b"a", 1_000)
        await world.settle()
        monkeypatch.setattr(ColdReads, "gather", failing)
        clock.allow = world
        await world.advance(2_000)
        assert (world.bodies(), clock.rests) == ([b"a"], [REST_MS])


@pytest.mark.parametrize("held_max", [0, 10])
async def test_a_queue_that_cannot_be_opened_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_max: int
) -> None:
    """Others do not wait for it, unless very many are held back already."""
    monkeypatch.setattr(delivery, "MAX_HELD", held_max)
    clock = RestingClock()
    async with timed_world(tmp_path, clock) as world:
        await world.send(b"a", 1_000)
        await world.send(b"b", 1_000)
        await world.settle()
        queue, failures = world.store.queue, [OSError(errno.EMFILE, "too many open files")]

        def refusing(topic: str, queue_id: int) -> ConsumeQueue:
            if topic == "t" and failures:
                raise failures.pop()
            return queue(topic, queue_id)

        monkeypatch.setattr(world.store, "queue", refusing)
        clock.allow = world
        await world.advance(2_000)
        if held_max:
            assert (world.bodies(), clock.rests) == ([b"b", b"a"], [])
        else:
            assert (world.bodies(), clock.rests) == ([b"a", b"b"], [REST_MS])


async def test_very_much_damage_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def damaged(reads: ColdReads, ranges: list[tuple[int, int]]) -> list[Found]:
        return [StoreCorrupt("file", at, "flipped") for at, _ in ranges]

    monkeypatch.setattr(delivery, "MAX_HELD", 2)
    async with timed_world(tmp_path) as world:
        for number in range(3):
            await world.send(b"%d" % number, 1_000)
        await world.settle()
        monkeypatch.setattr(ColdReads, "gather", damaged)
        await world.advance(2_000)
        assert world.timers.facts()["timerHeldBack"] == "2"
        assert "timed message given up" in caplog.text


async def test_what_names_no_place_or_is_gone_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with timed_world(tmp_path) as world:
        await world.send(b"nowhere", 1_000, topic="RMQ_SYS_TRANS_HALF_TOPIC")
        await world.send(b"long name", 1_000, topic="t" * 200)
        await world.send(b"good", 1_000)
        await world.advance(2_000)
        assert world.bodies() == [b"good"]
        assert caplog.text.count("delayed message dropped") == 2


async def test_a_delivered_message_says_when_it_left(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        await world.send(b"a", 1_000, TAGS="x", KEYS="k")
        wide = "v" * (props.MAX_SIZE_BYTES - 130)
        await world.send(b"b", 1_000, wide=wide)
        await world.advance(1_000)
        first, second = world.read()
        found = props.decode(first.properties)
        assert found["TIMER_DEQUEUE_MS"] == str(world.clock.wall_ms())
        assert (found["TAGS"], found["KEYS"], found["REAL_TOPIC"]) == ("x", "k", "t")
        assert props.decode(second.properties)["wide"] == wide
        assert first.prepared_offset == -1
        assert second.prepared_offset > 0


async def test_very_many_at_one_moment_are_delivered_in_slices(tmp_path: Path) -> None:
    async with timed_world(tmp_path) as world:
        for number in range(1_200):
            await world.send(b"%d" % number, 1_000)
        await world.advance(1_000)
        assert world.bodies() == [b"%d" % number for number in range(1_200)]
