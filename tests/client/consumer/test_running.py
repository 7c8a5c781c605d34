"""What a consumer says of itself."""

from __future__ import annotations

from cometmq.client.config import ClientConfig
from cometmq.client.consumer.inflight import InFlight
from cometmq.client.consumer.running import Moment, running_info
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
