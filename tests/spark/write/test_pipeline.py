"""Requests are sent again until they are stored, in the order of their queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cometmq.message import batch
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Request
from cometmq.spark.write.options import parse
from cometmq.spark.write.rows import Outgoing
from cometmq.spark.write.sender import Sender, SendFailed
from tests.spark.scripted import Answer, Script, ScriptedCluster

TOPIC = "Scripted"
STORED: Answer = (0, {"msgId": "x", "queueId": "0", "queueOffset": "0"}, b"")


def message(at: int) -> Outgoing:
    return Outgoing(TOPIC, None, f"id-{at}", 0, b"%d" % at, b"UNIQ_KEY\x01id-%d" % at, False)


def bodies(request: Request[Any]) -> list[int]:
    assert request.header.topic == TOPIC
    if request.code == RequestCode.SEND_BATCH_MESSAGE:
        return [int(entry.body) for entry in batch.split(request.body)]
    return [int(request.body)]


class Broker:
    """Stores what it answers with success; ``says`` may give other answers, by request."""

    def __init__(self, says: Callable[[int], Answer | None]) -> None:
        self.stored: list[int] = []
        self.asked = 0
        self._says = says

    def script(self, request: Request[Any]) -> Answer | None:
        self.asked += 1
        answer = self._says(self.asked)
        if answer is not None and answer[0] in (0, ResponseCode.FLUSH_DISK_TIMEOUT):
            self.stored += bodies(request)
        return answer


def send(script: Script, count: int, **options: str) -> Sender:
    with ScriptedCluster(TOPIC, script) as cluster:
        given = {"nameservers": cluster.namesrv, "topic": TOPIC, "maxBatchMessages": "10"}
        sender = Sender(parse(given | options), task=0)
        try:
            for at in range(count):
                sender.add(message(at))
            sender.finish()
        finally:
            sender.close()
    return sender


def test_all_is_stored_in_order() -> None:
    broker = Broker(lambda asked: STORED)
    sender = send(broker.script, 95)
    assert broker.stored == list(range(95))
    assert (broker.asked, sender.rows, sender.retries) == (10, 95, 0)


@pytest.mark.parametrize(
    "problem",
    [
        (ResponseCode.SYSTEM_BUSY, {"remark": "busy"}, b""),
        (ResponseCode.TOPIC_NOT_EXIST, {"remark": "not yet"}, b""),
        None,
    ],
)
def test_what_failed_is_sent_again_before_what_follows(problem: Answer | None) -> None:
    broker = Broker(lambda asked: problem if asked in (2, 3) else STORED)
    sender = send(broker.script, 50)
    assert broker.stored == list(range(50))
    assert sender.retries == 2


def test_what_is_stored_less_safely_than_promised_is_sent_again() -> None:
    unsafe = (ResponseCode.FLUSH_DISK_TIMEOUT, {"remark": "slow disk"}, b"")
    broker = Broker(lambda asked: unsafe if asked == 1 else STORED)
    send(broker.script, 10)
    assert broker.stored == [*range(10), *range(10)]


def test_a_refusal_for_good_names_topic_rows_and_cause() -> None:
    refused = (ResponseCode.MESSAGE_ILLEGAL, {"remark": "too long"}, b"")
    broker = Broker(lambda asked: refused if asked == 2 else STORED)
    with pytest.raises(SendFailed, match=r"10 rows for topic 'Scripted' .*too long"):
        send(broker.script, 50)
    assert broker.stored == list(range(10))


def test_a_broker_that_stays_away_fails_the_task_in_time() -> None:
    with pytest.raises(SendFailed, match="closed"):
        send(lambda request: None, 10, retryFor="300ms")


def test_a_topic_that_nobody_knows_fails_the_task() -> None:
    with ScriptedCluster(TOPIC, lambda request: STORED) as cluster:
        cluster.unknown.add(TOPIC)
        given = {"nameservers": cluster.namesrv, "retryFor": "300ms"}
        with pytest.raises(SendFailed, match="create it first"):
            Sender(parse(given), task=0).add(message(0))
    assert len(cluster.routes_asked) > 1
