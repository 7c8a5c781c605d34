"""What a consumer says of itself, the rates of its topics, and what its process does, as text."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client.config import ClientConfig
from cometmq.client.consumer import runninginfo as module
from cometmq.client.consumer.inflight import InFlight
from cometmq.client.consumer.runninginfo import ConsumerStats, Moment, running_info, stacks
from cometmq.message.model import MessageList, MessageQueue
from cometmq.protocol.bodies import (
    ProcessQueueInfo,
    RunningInfoRead,
    TopicRates,
    queue_table,
)
from cometmq.protocol.fastjson import encode_json, parse_json
from tests.client.consumer.test_inflight import message
from tests.client.consumer.test_options import options

NOW = Moment(1_700_000_100_000, 5_000)
CONFIG = ClientConfig(("a:1", "b:2"))


def held(inflight: InFlight, *, locked: bool = False) -> ProcessQueueInfo:
    info = running_info(options(), CONFIG, [(inflight, locked)], {}, started_ms=1, now=NOW)
    (found,) = queue_table(parse_json(encode_json(info), RunningInfoRead).mq_table).values()
    return found


def test_what_is_held_of_a_queue() -> None:
    inflight = InFlight(MessageQueue("t", "a", 0), 4)
    assert held(inflight) == ProcessQueueInfo(commit_offset=4)
    inflight.add(MessageList([message(offset, 1 << 20) for offset in (4, 5, 8)]), 9)
    inflight.pulled_ms = 3_000
    inflight.take(4_500)
    assert held(inflight, locked=True) == ProcessQueueInfo(
        commit_offset=4,
        cached_msg_min_offset=4,
        cached_msg_max_offset=8,
        cached_msg_count=3,
        cached_msg_size_in_mi_b=3,
        transaction_msg_count=1,
        locked=True,
        last_pull_timestamp=1_700_000_098_000,
        last_consume_timestamp=1_700_000_099_500,
    )


def test_how_it_is_set_up() -> None:
    rates = {"t": TopicRates(pull_tps=3)}
    wanted = options(ordered=True, concurrency=5)
    info = running_info(wanted, CONFIG, [], rates, started_ms=77, now=NOW, stacks="s")
    properties = info.properties
    assert properties["PROP_CONSUMER_START_TIMESTAMP"] == "77"
    assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert properties["PROP_CONSUMEORDERLY"] == "true"
    assert properties["PROP_NAMESERVER_ADDR"] == "a:1;b:2;"
    assert properties["PROP_THREADPOOL_CORE_SIZE"] == "5"
    assert {each.topic for each in info.subscription_set} == {"t", "%RETRY%g"}
    assert (info.status_table, info.jstack) == (rates, "s")


def test_rates_since_the_start() -> None:
    stats = ConsumerStats(1_000)
    stats.pulled("t", 30, 12)
    stats.pulled("t", 10, 4)
    counters = stats.of("t")
    counters.succeeded += 20
    counters.failed += 5
    counters.measured += 2
    counters.consume_ms += 7
    assert counters.rates(11_000) == TopicRates(8.0, 4.0, 3.5, 2.0, 0.5, 5)
    assert stats.of("u").rates(11_000) == TopicRates()


def test_what_is_over_a_minute_old_counts_no_more() -> None:
    stats = ConsumerStats(0)
    stats.of("t").succeeded += 600
    for now_ms in range(5_000, 70_001, 5_000):
        stats.sample(now_ms)
    assert stats.of("t").rates(70_000).consume_ok_tps == 0
    stats.of("t").succeeded += 60
    assert stats.of("t").rates(70_000).consume_ok_tps == 1


def test_failures_count_for_an_hour() -> None:
    stats = ConsumerStats(0)
    stats.of("t").failed += 3
    for now_ms in range(60_000, 3_600_001, 60_000):
        stats.sample(now_ms)
    rates = stats.of("t").rates(3_600_000)
    assert (rates.consume_failed_msgs, rates.consume_failed_tps) == (3, 0)
    stats.of("t").failed += 1
    for now_ms in range(3_660_000, 3_720_001, 60_000):
        stats.sample(now_ms)
    assert stats.of("t").rates(3_720_000).consume_failed_msgs == 1


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def test_threads_and_tasks_stand_in_it() -> None:
    task = asyncio.create_task(wait_for_ever(), name="a waiting one")
    await asyncio.sleep(0)
    text = stacks()
    task.cancel()
    assert "thread MainThread\n" in text
    assert "test_threads_and_tasks_stand_in_it" in text
    named = text[text.index("task a waiting one\n") :]
    assert "wait_for_ever" in named


async def test_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHARACTERS", 100)
    assert len(stacks()) == 105
