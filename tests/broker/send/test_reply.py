"""Request-reply over sockets: one connection asks, another answers through a whole broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import JSON, encode_head
from tests.broker.serving import BrokerClient, RunningBroker, running_broker, send_fields

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PROPERTIES = (
    "CORRELATION_ID\x01c7\x02REPLY_TO_CLIENT\x01asker@1\x02TTL\x013000\x02MSG_TYPE\x01reply"
)


def reply_fields(**changes: str) -> dict[str, Any]:
    return send_fields(b=REPLY_TOPIC, e="0", i=PROPERTIES) | changes


async def asker_of(running: RunningBroker, *groups: str) -> BrokerClient:
    asker = await running.connect()
    beat = {
        "clientID": "asker@1", "consumerDataSet": [],
        "producerDataSet": [{"groupName": group} for group in groups or ("askers",)],
    }  # fmt: skip
    head, _ = await asker.ask(RequestCode.HEART_BEAT, msgspec.json.encode(beat))
    assert head.code == 0
    return asker


def answer_push(asker: BrokerClient, opaque: int, code: int = 0) -> None:
    asker.writer.write(
        encode_head(code=code, opaque=opaque, flag=1, ext={}, codec=JSON, body_bytes=0)
    )


async def test_an_answer_reaches_who_asked(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        asker, replier = await asker_of(running), await running.connect()
        replier.post(REPLY, b"the answer", **reply_fields())
        push, body = await asker.frame()
        assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        assert body == b"the answer"
        assert push.ext["topic"] == REPLY_TOPIC
        assert PROPERTIES in push.ext["properties"]
        assert "PUSH_REPLY_TIME\x01" in push.ext["properties"]
        assert push.ext["bornHost"].startswith("127.0.0.1:")
        assert push.ext["storeHost"] == f"127.0.0.1:{running.broker.port}"
        answer_push(asker, push.opaque)
        answer, _ = await replier.frame()
        assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
        assert len(answer.ext["msgId"]) == 32
        _, records = await replier.pull(topic=REPLY_TOPIC, queueId="0")
        assert [record.body for record in records] == [b"the answer"]


async def test_an_answer_need_not_be_stored(tmp_path: Path) -> None:
    async with running_broker(tmp_path, storeReplyMessageEnable="false") as running:
        asker, replier = await asker_of(running), await running.connect()
        replier.post(RequestCode.SEND_REPLY_MESSAGE, b"x", **v1_fields())
        push, _ = await asker.frame()
        answer_push(asker, push.opaque)
        answer, _ = await replier.frame()
        assert (answer.code, answer.ext["msgId"]) == (0, "0")
        assert running.broker.store.find_queue(REPLY_TOPIC, 0) is None


def v1_fields() -> dict[str, Any]:
    return {
        "producerGroup": "repliers", "topic": REPLY_TOPIC, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "-1", "sysFlag": "0",
        "bornTimestamp": "1700000000000", "flag": "0", "properties": PROPERTIES,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"i": "CORRELATION_ID\x01c7"}, 1, "REPLY_TO_CLIENT is null"),
        ({"i": "REPLY_TO_CLIENT\x01nobody"}, 1, "channel of nobody not found"),
        ({"b": "unknown"}, 17, "DefaultCluster_REPLY_TOPIC"),
        ({"e": "5"}, 1, "queueId[5] is illegal"),
    ],
)
async def test_answers_that_cannot_be_given(
    tmp_path: Path, changes: dict[str, str], code: int, words: str
) -> None:
    async with running_broker(tmp_path) as running:
        replier = await running.connect()
        answer, _ = await replier.ask(REPLY, b"x", **reply_fields(**changes))
        assert answer.code == code
        assert words in (answer.remark or "")


async def test_an_answer_over_the_limit(tmp_path: Path) -> None:
    async with running_broker(tmp_path, maxMessageSize="10") as running:
        replier = await running.connect()
        answer, _ = await replier.ask(REPLY, b"x" * 11, **reply_fields())
        assert (answer.code, "maxMessageSize" in (answer.remark or "")) == (13, True)


async def test_a_replier_hears_when_the_asker_refuses_or_leaves(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        asker, replier = await asker_of(running, "one", "two"), await running.connect()
        replier.post(REPLY, b"x", **reply_fields())
        push, _ = await asker.frame()
        answer_push(asker, push.opaque, ResponseCode.SYSTEM_ERROR)
        refused, _ = await replier.frame()
        assert (refused.code, "it answered 1" in (refused.remark or "")) == (1, True)
        left, _ = await asker.ask(
            RequestCode.UNREGISTER_CLIENT, clientID="asker@1", producerGroup="one"
        )
        assert left.code == 0
        replier.post(REPLY, b"x", **reply_fields())
        push, _ = await asker.frame()
        asker.writer.close()
        gone, _ = await replier.frame()
        assert (gone.code, "closed" in (gone.remark or "")) == (1, True)
        async with asyncio.timeout(60):
            while running.broker.consumers.members.producer("asker@1") is not None:
                await asyncio.sleep(0.001)
        # Stored all the same: an answer is not lost.
        _, records = await replier.pull(topic=REPLY_TOPIC, queueId="0")
        assert len(records) == 2
