"""What stops a message before it leaves, and that it is said why."""

from __future__ import annotations

import pytest

from cometmq.client.config import ClientConfig
from cometmq.client.limits import (
    check_batch,
    check_group,
    check_producer_group,
    check_target,
    check_topic,
)
from cometmq.client.sendrequests import Packer
from cometmq.core.errors import MessageIllegal
from cometmq.message.model import Message
from cometmq.message.names import FORBIDDEN_TO_SEND, Namespace


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Message("", b""), "topic is empty"),
        (Message("t" * 128, b""), "128 characters"),
        (Message("a b", b""), "ASCII letters"),
        (Message("t\n", b""), "ASCII letters"),
        (Message("städte", b""), "ASCII letters"),
        (Message("t", b"x" * 101), "101 bytes; the limit is 100"),
        (Message("t", b"", delay_level=-1), "negative"),
        (Message("t", b"", delay_ms=-1), "the delay of -1 ms is negative"),
        (Message("t", b"", deliver_at_ms=-1), "the delivery time of -1 ms is negative"),
        (Message("t", b"", born_ms=-1), "born time of -1 ms is negative"),
        (Message("t", b"", born_ms=1 << 63), "too large"),
        (
            Message("t", b"", delay_ms=5, deliver_at_ms=5),
            ("one of delay level, delay and delivery time"),
        ),
        (Message("t", b"", delay_level=5, delay_ms=5), "not 5, 5 ms and 0"),
        (Message("t", b"", keys=("a b",)), "blank"),
        (Message("t", b"", keys=("",)), "blank"),
        (Message("t", b"", keys=("a\x02TAGS\x01b",)), "key .* contains a control character"),
        (Message("t", b"", flag=1 << 31), "no integer of 32 bits"),
        (Message("t", b"", flag=-(1 << 31) - 1), "no integer of 32 bits"),
        (Message("t", b"", properties={"KEYS": "x"}), "reserved"),
        (Message("t", b"", properties={"": "x"}), "neither may be empty"),
        (Message("t", b"", properties={"x": ""}), "neither may be empty"),
        (Message("t", b"", properties={"x": "a\x01b"}), "control character"),
        (Message("t", b"", tag="a\x02b"), "control character"),
        (Message("t", b"", message_id="a\x02b"), "control character"),
        (Message("t", b"", message_id="a b"), "blank"),
        (Message("t", "text"), "body must be bytes, not str: encode it"),  # type: ignore[arg-type]
        (Message("t", ["a"]), "body must be bytes, not list: encode it, for"),  # type: ignore[arg-type]
        (Message("t", None), "body is missing: pass b''"),  # type: ignore[arg-type]
        (Message("t", memoryview(b"abcd")[::2]), "body must be bytes, not memoryview"),  # type: ignore[arg-type]
        (Message("t", b"", properties={"x": "a\ud800b"}), "half of a surrogate pair"),
        (Message("t", b"", tag="a||b"), r"the tag 'a\|\|b' contains '\|\|'.*use one word"),
        (Message("t", b"", tag=" a"), "begins or ends with a space"),
        (Message("t", b"", tag="a\t"), "begins or ends with a space"),
        (Message("t", b"", tag=" "), "is empty, or begins or ends with a space"),
        (Message("t", b"", tag="\ud800"), "half of a surrogate pair"),
        (Message("t", b"", keys=("ü\udfff",)), "half of a surrogate pair"),
        (Message("t", b"", properties={"x": "y" * 33_000}), "limit is 32767"),
        (Message("t", b"", properties={"x": "ü" * 17_000}), "limit is 32767"),
    ],
)
def test_limits(message: Message, problem: str) -> None:
    with pytest.raises(MessageIllegal, match=problem):
        Packer(ClientConfig(("a:1",), max_message_bytes=100), Namespace()).single(message, "K", 5)


@pytest.mark.parametrize("topic", ["t", "%RETRY%g", "a|b", "A-1_z", "t" * 127])
def test_good_topics(topic: str) -> None:
    check_topic(topic)


def test_group_names_leave_room_for_the_retry_topic() -> None:
    check_group("g" * 120)
    with pytest.raises(MessageIllegal, match=r"group .ggg.* has 121 characters; the limit is 120$"):
        check_group("g" * 121)
    with pytest.raises(MessageIllegal, match="namespace included"):
        check_group("ns%" + "g" * 120)
    with pytest.raises(MessageIllegal, match="group is empty"):
        check_group("")
    check_producer_group("g" * 255)
    with pytest.raises(MessageIllegal, match=r"producer group .* limit is 255"):
        check_producer_group("g" * 256)


@pytest.mark.parametrize("topic", sorted(FORBIDDEN_TO_SEND))
def test_the_brokers_own_topics_take_no_messages(topic: str) -> None:
    check_topic(topic)
    with pytest.raises(MessageIllegal, match="reserved for brokers"):
        check_target(topic)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (Message("u", b""), "topics 't' and 'u'"),
        (Message("t", b"", wait_store=False), "messages without it"),
        (Message("t", b"", delay_level=1), "a delayed message"),
        (Message("t", b"", delay_ms=1), "a delayed message"),
        (Message("t", b"", deliver_at_ms=1), "a delayed message"),
        (Message("t", b"", born_ms=1), "different born times"),
    ],
)
def test_messages_that_cannot_be_one_batch(second: Message, problem: str) -> None:
    with pytest.raises(MessageIllegal, match=f"{problem}.*send_many"):
        check_batch([Message("t", b""), second])


def test_messages_for_a_retry_topic_are_in_no_batch() -> None:
    with pytest.raises(MessageIllegal, match="a message for a retry topic"):
        check_batch([Message("%RETRY%g", b"")] * 2)
    check_batch([Message("%DLQ%g", b"")] * 2)
