"""Counters, rates over windows, days."""

from cometmq.broker.stats import BrokerStats, Counter
from cometmq.core.clock import VirtualClock


class Dispatched:
    """What a store has dispatched."""

    def __init__(self) -> None:
        self.messages = self.size_bytes = 0

    def add(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.size_bytes += size_bytes


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
    stats.forget_group("g")
    assert list(stats.pulls) == [("h", "t")]
    stats.forget_topic("t")
    assert not stats.pulls
    assert not stats.send_backs


def test_rates_cover_their_windows() -> None:
    clock, dispatched = VirtualClock(), Dispatched()
    stats = BrokerStats(clock, dispatched)
    assert stats.rates("puts") == "0 0 0"
    for _ in range(60):
        dispatched.add(10, 10)
        clock.advance(1_000)
        stats.sample()
    assert stats.rates("puts") == "10 10 10"
    for _ in range(30):
        clock.advance(1_000)
        stats.sample()
    short, minute, long = (float(text) for text in stats.rates("puts").split(" "))
    assert (short, minute) == (0, 5)
    assert abs(long - 600 / 90) < 0.01
    assert stats.rates("found", "missed") == "0 0 0"
    for _ in range(700):
        clock.advance(1_000)
        stats.sample()
    assert stats.rates("puts") == "0 0 0"


def test_a_group_s_rate_is_that_of_its_last_minute() -> None:
    clock = VirtualClock(monotonic_ms=1_000_000)
    stats = BrokerStats(clock, Dispatched())
    assert stats.consume_tps("g", "t") == 0.0
    for _ in range(60):
        stats.on_pull("g", "t", 5, 1)
        clock.advance(1_000)
        stats.sample()
    assert abs(stats.consume_tps("g", "t") - 5) < 0.6
    clock.advance(120_000)
    stats.sample()
    assert stats.consume_tps("g", "t") == 0.0


def test_a_counter_keeps_a_bounded_past() -> None:
    counter = Counter()
    for step in range(10_000):
        counter.add(1, 1, step)
    assert counter.count == 10_000
    assert 0.09 < counter.per_second(10_000 * 10_000) < 0.11


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
