"""Answers to sends become results, or say what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.client.config import ClientConfig
from cometmq.client.outgoing import Packer
from cometmq.client.results import SendResult, SendStatus, read_results
from cometmq.core.errors import BadRequest, BrokerRefused, CometError
from cometmq.message.model import Message, MessageQueue
from cometmq.message.names import Namespace
from cometmq.protocol.frame import Response

QUEUE = MessageQueue("t", "a", 1)
PACKER = Packer(ClientConfig(("a:1",)), Namespace())
SINGLE = PACKER.single(Message("t", b""), "K", 0)
BATCH = PACKER.batch([Message("t", b"")] * 2, ["K1", "K2"], 0)


def answer(code: int = 0, remark: str | None = None, **ext: str) -> Response:
    return Response(code, 1, remark, ext, b"")


@pytest.mark.parametrize("status", SendStatus)
def test_a_stored_message(status: SendStatus) -> None:
    ext = {"msgId": "ID", "queueId": "1", "queueOffset": "5", "transactionId": "T"}
    (result,) = read_results("h:1", SINGLE, QUEUE, answer(status.value, **ext))
    assert result == SendResult(status, "K", "ID", QUEUE, 5, "T")


def test_a_message_that_waits_has_a_recall_handle() -> None:
    ext = {"msgId": "ID", "queueId": "1", "queueOffset": "5", "recallHandle": "H"}
    (result,) = read_results("h:1", SINGLE, QUEUE, answer(0, **ext))
    assert result.recall_handle == "H"


def test_a_broker_may_choose_another_queue() -> None:
    (result,) = read_results("h:1", SINGLE, QUEUE, answer(msgId="ID", queueId="3", queueOffset="5"))
    assert result.queue == MessageQueue("t", "a", 3)


def test_messages_of_a_batch_lie_behind_each_other() -> None:
    first, second = read_results(
        "h:1", BATCH, QUEUE, answer(msgId="ID1,ID2", queueId="1", queueOffset="5")
    )
    assert (first.message_id, first.offset_id, first.queue_offset) == ("K1", "ID1", 5)
    assert (second.message_id, second.offset_id, second.queue_offset) == ("K2", "ID2", 6)


def test_messages_of_a_batch_lie_apart_where_some_were_stored_before() -> None:
    ext: dict[str, Any] = {
        "msgId": "ID1,ID2",
        "queueId": "1",
        "queueOffset": "5",
        "queueOffsets": "5,3",
    }
    results = read_results("h:1", BATCH, QUEUE, answer(**ext))
    assert [result.queue_offset for result in results] == [5, 3]
    with pytest.raises(CometError, match="1 queue offsets for 2 messages"):
        read_results("h:1", BATCH, QUEUE, answer(**{**ext, "queueOffsets": "5,x"}))


def test_a_refusal() -> None:
    with pytest.raises(BrokerRefused, match="disk full") as caught:
        read_results("h:1", SINGLE, QUEUE, answer(14, "disk full"))
    assert (caught.value.code, caught.value.address) == (14, "h:1")


def test_answers_that_do_not_fit() -> None:
    with pytest.raises(CometError, match="1 ids for 2 messages"):
        read_results("h:1", BATCH, QUEUE, answer(msgId="ID", queueId="1", queueOffset="5"))
    with pytest.raises(BadRequest, match="queueId is missing"):
        read_results("h:1", SINGLE, QUEUE, answer(msgId="ID"))
    with pytest.raises(BadRequest, match="queueOffset"):
        read_results("h:1", SINGLE, QUEUE, answer(msgId="ID", queueId="1", queueOffset="x"))
