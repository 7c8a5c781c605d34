"""One gate for everything that is stored: each request code against each check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.message.names import FORBIDDEN_TO_SEND, HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.message.properties import MAX_SIZE_BYTES
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.serving import running_broker, send_fields

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
SEND, SEND_V2 = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
REPLY, REPLY_V2 = RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2
STORING = (SEND, SEND_V2, BATCH, REPLY, REPLY_V2)
V1_NAMES = dict(
    zip(
        "abcdefghijkm",
        (
            "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
            "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "batch",
        ),
        strict=True,
    )
)  # fmt: skip
#: A batch of one message without body and properties.
ONE_MESSAGE = (22).to_bytes(4, "big") + bytes(18)


def fields_of(code: int, **changes: str) -> dict[str, Any]:
    """A plain send as a request code words it."""
    fields = send_fields(e="0", **changes)
    if code in (SEND, REPLY):
        return {V1_NAMES[key]: value for key, value in fields.items()}
    return fields


@pytest.mark.parametrize("code", STORING)
@pytest.mark.parametrize("topic", sorted(FORBIDDEN_TO_SEND))
async def test_topics_of_the_broker_take_nothing(tmp_path: Path, code: int, topic: str) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        # The half and the op topic are there once somebody began a transaction.
        prepared = send_fields(e="0", f="4", i="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U")
        head, _ = await client.ask(SEND_V2, b"half", **prepared)
        assert head.code == 0
        before = running.broker.store.written_offset
        head, _ = await client.ask(code, ONE_MESSAGE, **fields_of(code, b=topic))
        assert (head.code, running.broker.store.written_offset) == (
            ResponseCode.NO_PERMISSION,
            before,
        )
        assert "forbidden" in (head.remark or "")


@pytest.mark.parametrize("code", STORING)
@pytest.mark.parametrize("flag", ["4", "8", "12"])
async def test_transaction_bits_are_refused(tmp_path: Path, code: int, flag: str) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        assert (await client.send(b="t")).code == 0
        topic = REPLY_TOPIC if code in (REPLY, REPLY_V2) else "t"
        before = running.broker.store.written_offset
        head, _ = await client.ask(code, ONE_MESSAGE, **fields_of(code, b=topic, f=flag))
        assert (head.code, running.broker.store.written_offset) == (
            ResponseCode.MESSAGE_ILLEGAL,
            before,
        )
        assert "transaction" in (head.remark or "")


@pytest.mark.parametrize("code", STORING)
@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ({"b": "no such name!"}, ResponseCode.SYSTEM_ERROR, "topic"),
        ({"b": "x" * 128}, ResponseCode.SYSTEM_ERROR, "topic"),
        ({"e": "1000"}, ResponseCode.SYSTEM_ERROR, "queueId[1000] is illegal"),
        ({"i": "a\x01" + "b" * MAX_SIZE_BYTES}, ResponseCode.MESSAGE_ILLEGAL, "propert"),
    ],
)
async def test_what_is_out_of_bounds_is_refused(
    tmp_path: Path, code: int, changes: dict[str, str], expected: int, words: str
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        assert (await client.send(b="t")).code == 0
        before = running.broker.store.written_offset
        fields = send_fields(e="0", b=REPLY_TOPIC if code in (REPLY, REPLY_V2) else "t") | changes
        if code in (SEND, REPLY):
            fields = {V1_NAMES[key]: value for key, value in fields.items()}
        head, _ = await client.ask(code, ONE_MESSAGE, **fields)
        assert (head.code, running.broker.store.written_offset) == (expected, before)
        assert words in (head.remark or "")


@pytest.mark.parametrize("code", STORING)
async def test_a_body_over_the_limit_is_refused(tmp_path: Path, code: int) -> None:
    async with running_broker(tmp_path, maxMessageSize="30") as running:
        client = await running.connect()
        topic = REPLY_TOPIC if code in (REPLY, REPLY_V2) else "t"
        head, _ = await client.ask(code, bytes(31), **fields_of(code, b=topic))
        assert head.code == ResponseCode.MESSAGE_ILLEGAL
        assert "maxMessageSize" in (head.remark or "")


@pytest.mark.parametrize("code", STORING)
async def test_a_topic_without_write_permission_takes_nothing(tmp_path: Path, code: int) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        topic = "read-only"
        head, _ = await client.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, defaultTopic="TBW102",
            readQueueNums="4", writeQueueNums="4", perm="4", topicFilterType="SINGLE_TAG",
            topicSysFlag="0", order="false",
        )  # fmt: skip
        assert head.code == 0
        head, _ = await client.ask(code, ONE_MESSAGE, **fields_of(code, b=topic))
        assert head.code == ResponseCode.NO_PERMISSION


async def test_what_waits_is_not_sent_back(tmp_path: Path) -> None:
    """A half message, or a delayed one, can be named by its offset; it is nobody's to copy."""
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        beat = {
            "clientID": "c@1", "producerDataSet": [],
            "consumerDataSet": [{
                "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [],
            }],
        }  # fmt: skip
        client.post(RequestCode.HEART_BEAT, msgspec.json.encode(beat))
        told, _ = await client.frame()
        head, _ = await client.frame()
        assert {told.code, head.code} == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0}
        for properties, flag in (
            ("TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U1", "4"),
            ("DELAY\x0118\x02UNIQ_KEY\x01U2", "0"),
        ):
            place = running.broker.store.written_offset
            head, _ = await client.ask(SEND_V2, b"x", **send_fields(e="0", f=flag, i=properties))
            assert head.code == 0
            before = running.broker.store.written_offset
            head, _ = await client.ask(
                RequestCode.CONSUMER_SEND_MSG_BACK, offset=str(place), group="g", delayLevel="1",
                originMsgId="", originTopic="t", unitMode="false", maxReconsumeTimes="16",
            )  # fmt: skip
            assert (head.code, running.broker.store.written_offset) == (1, before)
            assert "look message by offset failed" in (head.remark or "")


async def test_strangers_end_nobody_s_transaction(tmp_path: Path) -> None:
    """An op message by 324 ended an acknowledged half message for good, as a restart showed."""
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        prepared = send_fields(e="0", f="4", i="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U")
        head, _ = await client.ask(SEND_V2, b"half", **prepared)
        assert head.code == 0
        for topic in (OP_HALF_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC):
            for code in (REPLY, REPLY_V2):
                fields = fields_of(code, b=topic, i="TAGS\x01d")
                assert (await client.ask(code, b"0", **fields))[0].code == 16
    async with running_broker(tmp_path) as running:
        half, op = (
            running.broker.store.find_queue(name, 0) for name in (HALF_TOPIC, OP_HALF_TOPIC)
        )
        assert half is not None
        assert half.max_offset == 1
        assert op is None or op.max_offset == 0
