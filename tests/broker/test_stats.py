"""Counters, rates over windows, days; minute, hour and day of topics and groups; times of puts."""

import gc
import logging
from dataclasses import dataclass

import pytest

from cometmq.broker.stats import BrokerStats, Figure, PutTimes
from cometmq.core.clock import VirtualClock
from cometmq.net.limits import Limit

HOUR_MS = 3_600_000
STEP_MS = 10_000


@dataclass(eq=False)
class Queue:
    """The counts of a queue."""

    topic: str
    queue_id: int = 0
    put_count: int = 0
    put_bytes: int = 0
    put_times: int = 0
    fifo_count: int = 0
    fifo_bytes: int = 0


class Dispatched:
    """What a store has dispatched."""

    def __init__(self) -> None:
        self.messages = self.size_bytes = 0
        self.grown: list[Queue] = []

    def add(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.size_bytes += size_bytes

    def take_grown(self) -> list[Queue]:
        grown, self.grown = self.grown, []
        return grown

    def send(self, topic: str, count: int, size_bytes: int, times: int, queue_id: int = 0) -> None:
        self.add(count, size_bytes)
        self.grown.append(Queue(topic, queue_id, count, size_bytes, times))


class World:
    """Statistics on a virtual clock, with a step of samples each 10 s."""

    def __init__(self, *, counts_puts: bool = True) -> None:
        self.clock, self.dispatched = VirtualClock(), Dispatched()
        self.stats = BrokerStats(self.clock, self.dispatched, counts_puts=counts_puts)

    async def step(self, count: int = 1) -> None:
        for _ in range(count):
            await self.stats.sample_step()
            self.clock.advance(STEP_MS)

    def figures(self, name: str, key: str) -> tuple[Figure, ...]:
        found = self.stats.figures(name, key)
        assert found is not None, (name, key)
        return found


def test_what_is_dispatched_is_counted_from_here_on() -> None:
    dispatched = Dispatched()
    dispatched.add(5, 50)
    stats = BrokerStats(VirtualClock(), dispatched)
    dispatched.add(4, 17)
    assert (stats.puts, stats.put_bytes) == (4, 17)
    assert (stats.totals().puts, stats.totals().put_bytes) == (4, 17)


def test_pulls_are_counted_by_group_and_topic() -> None:
    stats = BrokerStats(VirtualClock(), Dispatched())
    stats.on_pull("g", "t", 32, 100)
    stats.on_pull("g", "t", 1, 5)
    stats.on_pull("h", "t", 1, 5)
    stats.on_pull_missed()
    assert (stats.pulls["g", "t"].count, stats.pulls["g", "t"].size_bytes) == (33, 105)
    assert (stats.pulled.found, stats.pulled.missed, stats.pulled.transferred) == (3, 1, 34)
    stats.on_send_back("g", "t")
    for group in "gh":
        stats.position(group, "t", 3).offset = 7
    stats.forget_group("g")
    assert list(stats.pulls) == [("h", "t")]
    assert list(stats.positions) == [("h", "t")]
    assert stats.position("h", "t", 3).offset == 7
    stats.forget_topic("t")
    assert not stats.pulls
    assert not stats.positions
    assert not stats.send_backs


def test_messages_with_a_sharding_key_are_counted_by_topic() -> None:
    stats = World().stats
    queue = Queue("t", 0, put_count=3, put_bytes=30, put_times=3, fifo_count=2, fifo_bytes=20)
    stats.take_puts([queue])
    assert stats.fifo.by_topic == {"t": (2, 20)}
    assert (queue.fifo_count, queue.fifo_bytes) == (0, 0)
    queue.put_count, queue.fifo_count = 1, 2
    stats.take_puts([queue])
    assert stats.fifo.by_topic == {"t": (2, 20)}, "one of them is not dispatched yet"
    assert queue.fifo_count == 2
    stats.forget_topic("t")
    assert not stats.fifo.by_topic


def test_rates_cover_their_windows() -> None:
    clock, dispatched = VirtualClock(), Dispatched()
    stats = BrokerStats(clock, dispatched)
    assert stats.rates("puts") == "0.0 0.0 0.0"
    for _ in range(60):
        dispatched.add(10, 10)
        clock.advance(1_000)
        stats.sample()
    assert stats.rates("puts") == "10.0 10.0 10.0"
    for _ in range(30):
        clock.advance(1_000)
        stats.sample()
    short, minute, long = (float(text) for text in stats.rates("puts").split(" "))
    assert (short, minute) == (0, 5)
    assert abs(long - 600 / 90) < 0.01
    assert stats.rates("found", "missed") == "0.0 0.0 0.0"
    for _ in range(700):
        clock.advance(1_000)
        stats.sample()
    assert stats.rates("puts") == "0.0 0.0 0.0"


async def test_a_group_s_rate_is_that_of_its_last_minute() -> None:
    world = World()
    await world.step()
    assert world.stats.consume_tps("g", "t") == 0.0
    for _ in range(7):
        world.stats.on_pull("g", "t", 50, 1)
        await world.step()
    assert world.stats.consume_tps("g", "t") == 5.0
    await world.step(6)
    assert world.stats.consume_tps("g", "t") == 0.0


def test_days_begin_at_midnight() -> None:
    clock, dispatched = VirtualClock(), Dispatched()
    stats = BrokerStats(clock, dispatched)
    dispatched.add(1, 1)
    stats.on_pull("g", "t", 3, 1)
    stats.sample()
    assert stats.days.puts_today == 0
    clock.advance(86_400_000)
    stats.sample()
    assert (stats.days.puts_today, stats.days.gets_today) == (1, 3)
    dispatched.add(1, 1)
    clock.advance(86_400_000)
    stats.sample()
    assert (stats.days.puts_yesterday, stats.days.puts_today) == (1, 2)
    assert (stats.days.gets_yesterday, stats.days.gets_today) == (3, 3)


async def test_a_topic_has_a_minute_an_hour_and_a_day() -> None:
    """Each number as StatsItem computes it, from samples at the same times."""
    world = World()
    await world.step()
    world.dispatched.send("t", 60, 6_000, 6)
    assert world.stats.figures("TOPIC_PUT_NUMS", "t") is None
    world.stats.take_puts(world.dispatched.grown)
    # A new key is known at once, and has no sample yet.
    assert world.figures("TOPIC_PUT_NUMS", "t") == (Figure(), Figure(), Figure())
    await world.step()
    minute, hour, day = world.figures("TOPIC_PUT_NUMS", "t")
    assert (minute, hour, day) == (Figure(60, 6.0, 10.0), Figure(), Figure())
    assert world.figures("TOPIC_PUT_SIZE", "t")[0] == Figure(6_000, 600.0, 1_000.0)
    world.dispatched.send("t", 30, 300, 30)
    await world.step()
    assert world.figures("TOPIC_PUT_NUMS", "t")[0] == Figure(90, 4.5, 2.5)
    await world.step(4)
    assert world.figures("TOPIC_PUT_NUMS", "t")[0] == Figure(90, 1.5, 2.5)
    await world.step()
    assert world.figures("TOPIC_PUT_NUMS", "t")[0] == Figure(30, 0.5, 1.0)
    await world.step()
    assert world.figures("TOPIC_PUT_NUMS", "t")[0] == Figure(0, 0.0, 0.0)
    await world.step(53)  # up to the sample after 10 minutes
    assert world.figures("TOPIC_PUT_NUMS", "t")[1] == Figure(90, 0.15, 2.5)
    await world.step(300)  # up to the one after an hour
    minute, hour, day = world.figures("TOPIC_PUT_NUMS", "t")
    assert (minute.sum, hour.sum, hour.tps, day.sum) == (0, 90, 0.025, 90)
    assert day == Figure(90, 0.025, 2.5)
    await world.step(60)
    assert [each.sum for each in world.figures("TOPIC_PUT_NUMS", "t")] == [0, 0, 90]


async def test_a_busy_key_keeps_a_bounded_past_and_an_idle_one_goes() -> None:
    world = World()
    stats = world.stats
    for number in range(3 * 24 * 360):
        world.dispatched.send("busy", 1, 10, 1)
        stats.on_pull("g", "busy", 1, 10)
        if not number:
            world.dispatched.send("idle", 5, 50, 1)
            stats.on_pull("g", "idle", 5, 50)
            held = stats.counter("g", "idle")
        await world.step()
    minute, hour, day = world.figures("TOPIC_PUT_NUMS", "busy")
    assert (minute.sum, hour.sum, day.sum) == (6, 360, 24 * 360)
    assert (minute.tps, hour.tps, day.tps) == (0.1, 0.1, 0.1)
    assert world.figures("GROUP_GET_SIZE", "busy@g")[2] == Figure(86_400, 1.0, 10.0)
    (busy,) = stats.topic_puts.values()
    assert [len(past) // 4 for past in busy.past] == [8, 8, 26]
    assert stats.figures("TOPIC_PUT_NUMS", "idle") is None
    assert list(stats.pulls) == [("g", "busy")]
    # A plan that still holds the counter brings it back.
    held.add(2, 20, stats.pulled.step)
    await world.step()
    assert stats.pulls["g", "idle"] is held
    assert world.figures("GROUP_GET_NUMS", "idle@g")[0] == Figure(2, 2 / 60, 2.0)


async def test_an_idle_counter_is_found_again_while_it_is_held() -> None:
    world = World()
    stats = world.stats
    held = stats.counter("g", "t")
    held.add(5, 50, stats.pulled.step)
    await world.step(26 * 360)
    assert not stats.pulls
    assert stats.counter("g", "t") is held
    await world.step(360)
    assert not stats.pulls
    stats.forget_group("g")
    assert stats.counter("g", "t") is not held
    held = stats.counter("g", "t")
    held.add(5, 50, stats.pulled.step)
    await world.step(26 * 360)
    del held
    gc.collect()
    assert stats.counter("g", "t").count == 0


async def test_invented_groups_get_a_bounded_number_of_counters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are in use keep theirs; the others make room within a minute."""
    monkeypatch.setattr("cometmq.broker.stats.MAX_COUNTERS", 10)
    world = World()
    stats = world.stats
    for _ in range(9):
        stats.on_pull("used", "t", 1, 10)
        for number in range(50):
            stats.on_pull(f"pulls{stats.pulled.step}-{number}", "t", 1, 10)
            stats.on_send_back(f"sends{stats.pulled.step}-{number}", "t")
        assert (len(stats.pulls), len(stats.send_backs)) == (10, 10)
        await world.step()
    assert stats.limits.hits[Limit.STATISTICS] > 0
    assert stats.pulled.transferred == 9 * 51
    assert ("used", "t") in stats.pulls
    assert ("pulls0-0", "t") not in stats.pulls
    assert world.figures("GROUP_GET_NUMS", "t@used")[0].sum == 6
    await world.step(7)
    stats.on_pull("new", "t", 1, 10)
    assert ("new", "t") in stats.pulls
    assert len(stats._changed_since[-1]) <= 10 + 10 + 4
    for number in range(50):
        stats.position(f"pulls-{number}", "t", 0).offset = number
    assert len(stats.positions) == 10


async def test_the_broker_s_figures_are_those_of_all_topics() -> None:
    world = World()
    stats = world.stats
    assert stats.figures("BROKER_PUT_NUMS", "c") is None
    assert stats.figures("BROKER_GET_NUMS", "c") is None
    await world.step()
    world.dispatched.send("a", 3, 30, 3)
    world.dispatched.send("b", 4, 40, 1)
    world.dispatched.send("RMQ_SYS_TRANS_OP_HALF_TOPIC", 9, 90, 9)
    world.dispatched.send("SCHEDULE_TOPIC_XXXX", 3, 33, 3, queue_id=2)
    stats.on_send_back("g", "a")
    stats.on_pull("g", "a", 7, 70)
    stats.on_delayed_delivery(2, 2, 22)
    await world.step()
    assert world.figures("BROKER_PUT_NUMS", "c")[0] == Figure(9, 0.9, 0.0)
    assert world.figures("BROKER_GET_NUMS", "c")[0] == Figure(7, 0.7, 0.0)
    assert world.figures("SNDBCK_PUT_NUMS", "a@g")[0].sum == 1
    assert world.figures("QUEUE_PUT_SIZE", "SCHEDULE_TOPIC_XXXX@2")[0].sum == 33
    assert world.figures("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX")[0].sum == 3
    key = "SCHEDULE_TOPIC_XXXX@2@SCHEDULE_CONSUMER"
    assert world.figures("QUEUE_GET_NUMS", key)[0].sum == 2
    key = "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER"
    assert world.figures("GROUP_GET_SIZE", key)[0].sum == 22
    for name, key in (
        ("TOPIC_PUT_NUMS", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
        ("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@2"),
        ("GROUP_GET_NUMS", "a"),
        ("GROUP_GET_FALL_SIZE", "0@a@g"),
        ("SNDBCK_PUT_SIZE", "a@g"),
        ("", ""),
    ):
        assert stats.figures(name, key) is None, (name, key)


async def test_a_slave_counts_no_puts() -> None:
    world = World(counts_puts=False)
    await world.step()
    world.dispatched.send("a", 3, 30, 3)
    await world.step()
    assert world.stats.figures("TOPIC_PUT_NUMS", "a") is None
    assert world.stats.figures("BROKER_PUT_NUMS", "c") is None
    assert world.stats.puts == 3


async def test_what_was_stored_before_the_start_is_not_counted() -> None:
    dispatched = Dispatched()
    dispatched.send("a", 3, 30, 3)
    (queue,) = dispatched.grown
    BrokerStats(VirtualClock(), dispatched)
    assert (queue.put_count, queue.put_bytes, queue.put_times) == (0, 0, 0)


async def test_a_deleted_topic_or_group_has_no_figures() -> None:
    world = World()
    stats = world.stats
    world.dispatched.send("a", 3, 30, 3)
    for group in "gh":
        stats.on_pull(group, "a", 1, 1)
        stats.on_send_back(group, "a")
    await world.step()
    stats.forget_group("g")
    assert stats.figures("GROUP_GET_NUMS", "a@g") is None
    assert world.figures("GROUP_GET_NUMS", "a@h")[0].sum == 1
    stats.forget_topic("a")
    for name, key in (
        ("TOPIC_PUT_NUMS", "a"),
        ("GROUP_GET_NUMS", "a@h"),
        ("SNDBCK_PUT_NUMS", "a@h"),
    ):
        assert stats.figures(name, key) is None


def test_puts_are_counted_by_how_long_they_took(caplog: pytest.LogCaptureFixture) -> None:
    times = PutTimes()
    times.by_ms[0] += 7
    with caplog.at_level(logging.WARNING):
        for took_ms in (0, 1, 9, 10, 49, 50, 99, 100, 199, 200, 499, 500):
            times.add(took_ms, 1)
        assert not caplog.records
        for took_ms in (501, 999, 1_000, 1_999, 2_000, 3_000, 4_000, 5_000, 10_000, 20_000):
            times.add(took_ms, 2)
    assert [record.getMessage() for record in caplog.records[:2]] == [
        "slow puts count=2 took_ms=501",
        "slow puts count=2 took_ms=999",
    ]
    assert (sum(times.last_counts()), times.longest_ms) == (0, 20_000)
    times.end_minute()
    assert times.last_counts() == [8, 2, 2, 2, 2, 2, 5, 4, 2, 2, 2, 2, 4]
    assert (times.slow_count, times.longest_ms) == (20, 20_000)
    times.end_minute()
    assert sum(times.last_counts()) == 0
    assert (times.slow_count, times.percentile(0.99)) == (20, 0.0)


def test_percentiles_lie_within_their_range() -> None:
    times = PutTimes()
    times.by_ms[0] = 990
    times.add(40, 10)
    times.end_minute()
    assert times.percentile(0.0) == 0.0
    assert 0.5 < times.percentile(0.5) < 0.51
    assert times.percentile(0.99) == 1.0
    assert 40 <= times.percentile(0.999) <= 41
    times.add(30_000, 1)
    times.end_minute()
    assert 30_000 <= times.percentile(0.99) <= 30_001
