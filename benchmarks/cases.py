"""The cases of the table: the work of one round on a broker, and the rows of its results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from benchmarks import clients
from benchmarks.loading import BenchmarkFailed
from benchmarks.rounds import QUEUES, Bench, Load, Target

#: A flush policy, a master with a slave, or separate brokers for transactions: a 5.5.0 broker reads
#: through its half messages for minutes after it had many.
Setup = Literal["ASYNC_FLUSH", "SYNC_FLUSH", "SYNC_MASTER", "TRANSACTIONS"]
Figures = Mapping[str, float]
Measure = Callable[[Bench, Target], Awaitable[Figures]]

OURS: Final = ("cometmq", "cometmq-plain")
JAVA: Final = ("rocketmq-4.9.7", "rocketmq-5.5.0")
ROCKET: Final = (*OURS, *JAVA)
ALL: Final = (*ROCKET, "kafka", "nats")
BATCHING: Final = (*ROCKET, "kafka")
#: The number of messages of 128 B that Kafka's client puts into a batch (16 KiB).
CLIENT_BATCH: Final = 96
#: The number of requests that Kafka's client keeps in flight on a connection.
CLIENT_WINDOW: Final = 5
SHARE_TOLERANCE: Final = 0.02
#: Messages per second at which topics for pulls are filled.
FILLING_RATE: Final = 40_000
#: Filter expressions over the messages of `load orders`, by the share of messages that match. {} is
#: replaced by the number of the measurement, ### by that of the pass over a queue. The replacements
#: hardly change the share of matches, but make each expression new, so that results cached for one
#: expression do not serve another.
EXPRESSIONS: Final = {
    0.1: "amount < 3{:03d}### AND region = 'eu'",
    0.5: "amount >= 25{:02d}### AND region IN ('eu', 'us')",
}


@dataclass(frozen=True, slots=True)
class RowOf:
    """A row with the figure ``key`` of each round. ``wanted`` bounds the ratio CometMQ / Java
    4.9.7."""

    name: str
    unit: str
    key: str = "messages_per_s"
    better: Literal["more", "less"] = "more"
    wanted: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of work. It runs on ``targets``, started with ``setup``. A case that ``warms`` is
    part of the load that warms up a JVM."""

    rows: tuple[RowOf, ...]
    measure: Measure
    targets: tuple[str, ...] = ALL
    setup: Setup = "ASYNC_FLUSH"
    warms: bool = True

    @property
    def name(self) -> str:
        """The name of its first row."""
        return self.rows[0].name


def sends(
    topic: str, connections: int, window: int, body_bytes: int, seconds_min: float = 0.0
) -> Measure:
    """Return the measurement of single sends."""

    async def measure(bench: Bench, target: Target) -> Figures:
        seconds = max(seconds_min, bench.seconds)
        return await bench.load(
            target, Load("send", topic, connections, window, body_bytes, seconds)
        )

    return measure


def batches(topic: str, window: int, messages: int) -> Measure:
    """Return the measurement of batches of 128 B messages on 8 connections."""

    async def measure(bench: Bench, target: Target) -> Figures:
        load = Load("batch", topic, 8, window, 128, bench.seconds, messages)
        return await bench.load(target, load)

    return measure


@dataclass(slots=True)
class Fresh:
    """Topics for measurements that need a new one each time."""

    name: str
    count: int = 0

    def topic(self) -> str:
        """Return the name of the next topic."""
        self.count += 1
        return f"{self.name}-{self.count}"


@dataclass(slots=True)
class Filled:
    """A topic with the same number of messages on each broker, filled for ``seconds`` at a rate
    that all of them reach.

    After a broker's store was emptied, a new topic is used: a Java broker that deleted a log file
    keeps its queue entries.
    """

    kind: str
    name: str
    seconds: float
    made: dict[str, int] = field(default_factory=dict)

    async def topic(self, bench: Bench, target: Target) -> str:
        """Return the name of the topic. Raises BenchmarkFailed."""
        topic = f"{self.name}-{self.made.get(target.name, 0)}"
        if (target.name, topic) not in bench.kept:
            number = self.made[target.name] = self.made.get(target.name, 0) + 1
            topic = f"{self.name}-{number}"
            rate = f"rate={FILLING_RATE}"
            load = Load(self.kind, topic, 8, 64, 128, self.seconds, more=(rate,))
            await bench.load(target, load)
            bench.kept.add((target.name, topic))
        return topic


def tail_pulls(consumers: int) -> Measure:
    """Return the measurement of pulls of the newest messages."""
    fresh = Fresh(f"tail{consumers}")

    async def measure(bench: Bench, target: Target) -> Figures:
        topic = fresh.topic()
        rate = f"rate={FILLING_RATE}"
        await bench.load(target, Load("send", topic, 8, 64, 128, 1.0, more=(rate,)))
        return await bench.load(
            target, Load("pull", topic, consumers, 1, 0, bench.seconds, messages=32)
        )

    return measure


def page_cache_pulls(consumers: int) -> Measure:
    """Return the measurement of pulls of more data than CometMQ is certain to have mapped."""

    async def measure(bench: Bench, target: Target) -> Figures:
        topic = await PULLED.topic(bench, target)
        load = Load("pull", topic, consumers, 1, 0, bench.seconds, messages=32)
        return await bench.load(target, load)

    return measure


@dataclass(slots=True)
class Filtered:
    """Pulls with an SQL92 expression that a ``share`` of the messages match. No message is filtered
    twice by the same expression."""

    share: float
    measurements: dict[str, int] = field(default_factory=dict)

    async def measure(self, bench: Bench, target: Target) -> Figures:
        """Return the messages that were filtered; the share of them is delivered. Raises
        BenchmarkFailed."""
        topic = await ORDERS.topic(bench, target)
        number = self.measurements[target.name] = self.measurements.get(target.name, -1) + 1
        expression = EXPRESSIONS[self.share].format(number)
        load = Load("pull", topic, 8, 1, 0, bench.seconds, messages=32, more=(expression,))
        found = await bench.load(target, load)
        delivered = found["messages_per_s"] / max(1.0, found["looked_at_per_s"])
        if abs(delivered - self.share) > SHARE_TOLERANCE:
            raise BenchmarkFailed(f"{target.name}: {delivered:.3f} of the messages matched")
        return found


async def transactions(bench: Bench, target: Target) -> Figures:
    """Send half messages and commit them."""
    load = Load("commit", "transactions", 8, 64, 128, bench.seconds)
    return await bench.load(target, load)


def fan_out(groups: int) -> Measure:
    """Return the measurement of one producer whose messages are delivered to many groups."""
    fresh = Fresh(f"fan{groups}")

    async def measure(bench: Bench, target: Target) -> Figures:
        load = Load("fan", fresh.topic(), 1, 64, 128, bench.seconds, more=(str(groups),))
        return await bench.load(target, load)

    return measure


async def fairness(bench: Bench, target: Target) -> Figures:
    """Keep one send in flight beside 16 connections that pipeline."""
    await bench.topic(target, "greedy")
    load = Load("send", "greedy", 16, 64, 128, bench.seconds + 1)
    greedy = asyncio.create_task(bench.run(target, load))
    try:
        await asyncio.sleep(0.5)
        return await bench.load(target, Load("send", "modest", 1, 1, 128, bench.seconds))
    finally:
        await greedy


#: 240 000 messages of 128 B are 80 MB of log.
PULLED: Final = Filled("send", "pulled", 6.0)
ORDERS: Final = Filled("orders", "orders", 6.0)
#: With one sync per message, half a thousand messages take a second or more.
SYNCED_S: Final = 4.0
LOOKED_AT: Final = "looked_at_per_s"
CASES: Final = (
    Case(
        (
            RowOf("single 128 B, 8 x 64", "messages/s", wanted=4.5),
            RowOf("processor time a single send", "us (1.4 wanted)", "cpu_us", "less"),
            RowOf("RssAnon under full load", "MiB", "memory_mib", "less", 0.1),
        ),
        sends("single", 8, 64, 128),
    ),
    Case((RowOf("single 128 B, 64 x 1", "messages/s", wanted=2.0),), sends("wide", 64, 1, 128)),
    Case(
        (
            RowOf("single 1 KiB, 1 x 1, p50", "us", "p50_us", "less", 0.45),
            RowOf("single 1 KiB, 1 x 1, p99", "us", "p99_us", "less", 0.45),
        ),
        sends("latency", 1, 1, 1024),
    ),
    Case((RowOf("single 1 KiB, 8 x 64", "messages/s", wanted=4.0),), sends("kib", 8, 64, 1024)),
    Case(
        (RowOf("batch 64 x 128 B, 8 x 4", "messages/s", wanted=3.0),),
        batches("batch", 4, 64),
        BATCHING,
    ),
    Case(
        (RowOf("batch 96 x 128 B, 8 x 5, as Kafka's client", "messages/s"),),
        batches("clientbatch", CLIENT_WINDOW, CLIENT_BATCH),
        BATCHING,
    ),
    Case((RowOf("pull 32, tail, 1 consumer", "messages/s", wanted=3.0),), tail_pulls(1), ROCKET),
    Case((RowOf("pull 32, tail, 8 consumers", "messages/s", wanted=3.0),), tail_pulls(8), ROCKET),
    Case(
        (RowOf("pull 32, page cache, 1 consumer", "messages/s", wanted=3.0),),
        page_cache_pulls(1),
        ROCKET,
    ),
    Case(
        (RowOf("pull 32, page cache, 8 consumers", "messages/s", wanted=3.0),),
        page_cache_pulls(QUEUES),
        ROCKET,
    ),
    Case(
        (RowOf("SQL92 first look, 10 % match", "messages looked at/s", LOOKED_AT, wanted=3.0),),
        Filtered(0.1).measure,
        ROCKET,
    ),
    Case(
        (RowOf("SQL92 first look, 50 % match", "messages looked at/s", LOOKED_AT, wanted=2.0),),
        Filtered(0.5).measure,
        ROCKET,
    ),
    Case((RowOf("1 producer to 10 groups", "messages/s", wanted=3.0),), fan_out(10), ROCKET),
    Case(
        (RowOf("p99 beside 16 pipelining connections", "us", "p99_us", "less", 1.0),),
        fairness,
        warms=False,
    ),
    Case(
        (RowOf("from send to listener, 1 KiB, p50", "us", "p50_us", "less", 0.7),),
        clients.PushLatency().measure,
        ("cometmq", "rocketmq-4.9.7"),
        warms=False,
    ),
    Case(
        (RowOf("asyncio producer, 512 in flight", "messages/s (120 000 wanted)"),),
        clients.produce,
        ("cometmq",),
    ),
    Case(
        (RowOf("push consumer, 128 B", "messages/s (500 000 wanted)"),),
        clients.consume,
        ("cometmq",),
    ),
    Case(
        (RowOf("transactions, 8 x 64", "commits/s", wanted=3.0),),
        transactions,
        ROCKET,
        "TRANSACTIONS",
    ),
    Case(
        (RowOf("SYNC_FLUSH, 128 B, 8 x 64", "messages/s", wanted=4.0),),
        sends("synced", 8, 64, 128, SYNCED_S),
        setup="SYNC_FLUSH",
    ),
    Case(
        (RowOf("SYNC_FLUSH, 1 KiB, 1 x 1, p50", "us", "p50_us", "less", 0.25),),
        sends("syncedlatency", 1, 1, 1024),
        setup="SYNC_FLUSH",
    ),
    Case(
        (RowOf("SYNC_MASTER, 128 B, 8 x 64", "messages/s", wanted=3.0),),
        sends("replicated", 8, 64, 128),
        ("cometmq", "rocketmq-4.9.7"),
        "SYNC_MASTER",
    ),
)
