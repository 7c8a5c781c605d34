"""What a message becomes on the wire, the limits that stop it, and the cutting of batches."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.config import ClientConfig
from cometmq.client.outgoing import (
    Packed,
    check_topic,
    pack_batch,
    pack_retry,
    pack_single,
    plan_batches,
)
from cometmq.core.errors import MessageIllegal
from cometmq.message import batch, properties
from cometmq.message.flags import COMPRESSED
from cometmq.message.model import Message, MessageQueue, StoredMessage
from cometmq.protocol.codes import RequestCode

CONFIG = ClientConfig(("a:1",))
QUEUE = MessageQueue("t", "broker-a", 3)


def single(message: Message, config: ClientConfig = CONFIG) -> Packed:
    return pack_single(message, "KEY", config, 1234)


def test_a_message_with_everything() -> None:
    message = Message(
        "t", b"body", tag="up", keys=("k1", "k2"), flag=7, delay_level=3, properties={"a": "b"}
    )
    packed = single(message)
    assert properties.decode_text(packed.properties) == {
        "a": "b",
        "TAGS": "up",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "WAIT": "true",
        "UNIQ_KEY": "KEY",
    }
    header = packed.header("g", QUEUE, 4)
    assert (header.topic, header.queue_id, header.broker_name) == ("t", 3, "broker-a")
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert (header.producer_group, header.flag, header.born_timestamp) == ("g", 7, 1234)
    assert (header.sys_flag, header.batch, header.reconsume_times) == (0, False, 0)
    assert packed.body == b"body"


@pytest.mark.parametrize(
    ("size", "compressed"), [(4095, False), (4096, True), (100_000, True), (0, False)]
)
def test_large_bodies_are_compressed(size: int, compressed: bool) -> None:
    packed = single(Message("t", b"x" * size))
    assert packed.sys_flag == (COMPRESSED if compressed else 0)
    body = zlib.decompress(packed.body) if compressed else packed.body
    assert body == b"x" * size


def test_what_compression_makes_larger_is_left_as_it_is() -> None:
    # Level 0 stores the body as it is, with some bytes round it.
    packed = single(Message("t", b"x" * 5000), ClientConfig(("a:1",), compress_level=0))
    assert (packed.sys_flag, packed.body) == (0, b"x" * 5000)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Message("", b""), "topic is empty"),
        (Message("t" * 128, b""), "128 characters"),
        (Message("a b", b""), "letters without accents"),
        (Message("t\n", b""), "letters without accents"),
        (Message("städte", b""), "letters without accents"),
        (Message("t", b"x" * 101), "101 bytes; the limit is 100"),
        (Message("t", b"", delay_level=-1), "negative"),
        (Message("t", b"", keys=("a b",)), "blank"),
        (Message("t", b"", keys=("",)), "blank"),
        (Message("t", b"", properties={"KEYS": "x"}), "reserved"),
        (Message("t", b"", properties={"": "x"}), "neither may be empty"),
        (Message("t", b"", properties={"x": ""}), "neither may be empty"),
        (Message("t", b"", properties={"x": "a\x01b"}), "control character"),
        (Message("t", b"", tag="a\x02b"), "control character"),
        (Message("t", b"", properties={"x": "y" * 33_000}), "limit is 32767"),
        (Message("t", b"", properties={"x": "ü" * 17_000}), "limit is 32767"),
    ],
)
def test_limits(message: Message, problem: str) -> None:
    with pytest.raises(MessageIllegal, match=problem):
        single(message, ClientConfig(("a:1",), max_message_bytes=100))


def test_properties_at_the_limit_pass() -> None:
    rest = len(single(Message("t", b"", properties={"x": "y"})).properties) - 1
    value = "y" * (32_767 - rest)
    assert len(single(Message("t", b"", properties={"x": value})).properties) == 32_767
    with pytest.raises(MessageIllegal):
        single(Message("t", b"", properties={"x": value + "y"}))


@pytest.mark.parametrize("topic", ["t", "%RETRY%g", "a|b", "A-1_z", "t" * 127])
def test_good_topics(topic: str) -> None:
    check_topic(topic)


def test_a_batch_carries_each_message_with_its_own_properties() -> None:
    messages = [Message("t", b"1", tag="a", flag=1), Message("t", b"2", keys=("k",), flag=2)]
    packed = pack_batch(messages, ["K1", "K2"], CONFIG, 5)
    assert packed.code == RequestCode.SEND_BATCH_MESSAGE
    assert packed.header("g", QUEUE, 4).batch is True
    assert packed.properties == ""
    first, second = batch.split(packed.body)
    assert (first.body, first.flag) == (b"1", 1)
    assert properties.decode(first.properties) == {"TAGS": "a", "UNIQ_KEY": "K1"}
    assert (second.body, second.flag) == (b"2", 2)
    assert properties.decode(second.properties) == {"KEYS": "k", "UNIQ_KEY": "K2"}


def test_a_batch_that_need_not_wait_says_so_once() -> None:
    packed = pack_batch([Message("t", b"", wait_store=False)] * 2, ["1", "2"], CONFIG, 5)
    assert packed.properties == "WAIT\x01false"


def test_a_batch_is_held_to_the_limits_too() -> None:
    with pytest.raises(MessageIllegal):
        pack_batch([Message("t", b""), Message("t", b"", keys=("a b",))], ["1", "2"], CONFIG, 5)


def stored(**properties: str) -> StoredMessage:
    return StoredMessage(
        topic="t", queue_id=1, queue_offset=2, physical_offset=3, body=b"x" * 5000,
        properties=properties, flag=9, sys_flag=0, born_ms=1, born_host=bytes(8), store_ms=1,
        store_host=bytes(8), reconsume_times=4, prepared_offset=0, size_bytes=100,
        broker_name="b",
    )  # fmt: skip


def retry(message: StoredMessage) -> Packed:
    return pack_retry(
        message, "%RETRY%g", "NEW", CONFIG, 7,
        reconsume_times=5, max_reconsume_times=5, delay_level=7,
    )  # fmt: skip


def test_a_message_for_the_retry_topic_remembers_where_it_came_from() -> None:
    packed = retry(stored(UNIQ_KEY="OLD", TAGS="up", DELAY="1", REAL_TOPIC="t", REAL_QID="1"))
    pairs = properties.decode_text(packed.properties)
    assert pairs == {
        "UNIQ_KEY": "OLD",
        "TAGS": "up",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": "OLD",
        "DELAY": "7",
    }
    header = packed.header("g", MessageQueue("%RETRY%g", "b", 0), 4)
    assert (header.reconsume_times, header.max_reconsume_times) == (5, 5)
    assert (header.topic, header.flag, header.sys_flag) == ("%RETRY%g", 9, COMPRESSED)


def test_a_message_retried_before_keeps_its_first_origin() -> None:
    packed = retry(stored(RETRY_TOPIC="first", ORIGIN_MESSAGE_ID="ID"))
    pairs = properties.decode_text(packed.properties)
    assert (pairs["RETRY_TOPIC"], pairs["ORIGIN_MESSAGE_ID"]) == ("first", "ID")
    assert pairs["UNIQ_KEY"] == "NEW"


MESSAGES = st.lists(
    st.builds(
        Message,
        topic=st.sampled_from(["t", "u"]),
        body=st.binary(max_size=300),
        tag=st.sampled_from(["", "k", "l"]),
        delay_level=st.sampled_from([0, 0, 0, 1]),
        wait_store=st.booleans(),
        properties=st.dictionaries(st.text("abcü", min_size=1), st.text("xyzü", min_size=1)),
    ),
    max_size=40,
)


@given(MESSAGES, st.integers(400, 2000))
def test_batches_hold_every_message_once_within_the_limits(
    messages: list[Message], limit: int
) -> None:
    plan = plan_batches(messages, lambda message: message.tag, limit)
    assert sorted(at for positions, _ in plan for at in positions) == list(range(len(messages)))
    last: dict[tuple[Any, ...], int] = {}
    for positions, key in plan:
        part = [messages[at] for at in positions]
        assert {message.tag for message in part} == {key}
        assert len({(message.topic, message.wait_store) for message in part}) == 1
        if len(part) > 1:
            assert not any(message.delay_level for message in part)
            packed = pack_batch(part, ["K" * 32] * len(part), CONFIG, 0)
            assert len(packed.body) <= limit
        group = part[0].topic, key, part[0].wait_store
        assert positions == sorted(positions)
        assert last.get(group, -1) < positions[0]
        last[group] = positions[-1]


def test_few_batches_are_made() -> None:
    messages = [Message("t", b"x" * 100) for _ in range(1000)]
    assert len(plan_batches(messages, lambda _: None, 1 << 20)) == 1
