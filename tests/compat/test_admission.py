"""What may be stored, code by code and topic by topic: the same answers from both brokers."""

from __future__ import annotations

import json

import pytest

from cometmq.message.names import FORBIDDEN_TO_SEND, TIMER_TOPIC
from tests.client.shared_broker import fresh_name
from tests.compat.anchor import answer_code
from tests.compat.conftest import Target

pytestmark = pytest.mark.runs("cometmq", "java")

NO_PERMISSION, SYSTEM_ERROR, SUCCESS = 16, 1, 0
#: A batch of one message without body and properties.
ONE_MESSAGE = (22).to_bytes(4, "big") + bytes(18)
#: The codes that store, with the names of their fields.
LONG = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "m": "batch",
}  # fmt: skip
CODES = (10, 310, 320, 324, 325)
#: RocketMQ 4.9 has no timers, and this topic means nothing to it.
TOPICS = sorted(FORBIDDEN_TO_SEND - {TIMER_TOPIC})


def stored(target: Target, code: int, **changes: str) -> int:
    fields = {
        "a": "producers", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": "1700000000000", "h": "0", "i": "UNIQ_KEY\x01U1", "j": "0", "k": "false",
        "m": "true" if code == 320 else "false",
    } | changes  # fmt: skip
    if code in (10, 324):
        fields = {LONG[name]: value for name, value in fields.items()}
    return answer_code(target.broker, code, json.dumps(fields)[1:-1], ONE_MESSAGE)


@pytest.mark.parametrize("code", CODES)
def test_topics_of_the_broker_take_nothing(target: Target, code: int) -> None:
    # The half topic is there once somebody began a transaction.
    prepared = {"f": "4", "i": "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U2"}
    assert stored(target, 310, b=fresh_name("topic"), **prepared) == SUCCESS
    assert {topic: stored(target, code, b=topic) for topic in TOPICS} == dict.fromkeys(
        TOPICS, NO_PERMISSION
    )


@pytest.mark.parametrize("code", CODES)
def test_a_name_that_no_topic_has(target: Target, code: int) -> None:
    for name in ("no such name!", "x" * 128):
        assert stored(target, code, b=name) == SYSTEM_ERROR


@pytest.mark.parametrize("code", CODES)
def test_a_queue_that_the_topic_lacks(target: Target, code: int) -> None:
    topic = fresh_name("topic")
    assert stored(target, 310, b=topic) == SUCCESS
    assert stored(target, code, b=topic, e="1000") == SYSTEM_ERROR
