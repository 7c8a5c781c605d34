"""Which queue a message goes to, and what leaves together; on a real broker."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from cometmq.client.blocking import Client
from cometmq.client.delivery import by_key
from cometmq.core.errors import RouteNotFound
from cometmq.message.model import MessageQueue, StoredMessage
from cometmq.spark.write import sender
from cometmq.spark.write.options import parse
from cometmq.spark.write.rows import Outgoing
from cometmq.spark.write.sender import SPREAD, Sender, SendFailed
from cometmq.testing.cluster import Cluster
from tests.spark.topics import make_topic


def message(topic: str, at: int, key: str | None = None, *, delayed: bool = False) -> Outgoing:
    text = f"UNIQ_KEY\x01{topic}-{at}" + ("\x02DELAY\x011" if delayed else "")
    return Outgoing(topic, key, f"{topic}-{at}", at, b"%d" % at, text.encode(), delayed)


def send(cluster: Cluster, messages: list[Outgoing], task: int = 0, **options: str) -> None:
    sending = Sender(parse({"nameservers": cluster.namesrv, **options}), task)
    for each in messages:
        sending.add(each)
    sending.finish()


def stored(client: Client, queues: list[MessageQueue]) -> dict[MessageQueue, list[StoredMessage]]:
    found: dict[MessageQueue, list[StoredMessage]] = {}
    for queue in queues:
        found[queue] = []
        while True:
            result = client.puller.pull(queue, len(found[queue]))
            if not result.messages:
                break
            found[queue] += result.messages
    return found


def test_messages_go_to_all_queues_and_again_to_the_same(
    cometmq_session_cluster: Cluster,
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "SinkSpread", 4)
        messages = [message("SinkSpread", at) for at in range(400)]
        send(cometmq_session_cluster, messages)
        first = stored(client, queues)
        send(cometmq_session_cluster, messages[::-1])
        again = stored(client, queues)
    assert all(60 < len(found) < 140 for found in first.values())
    for queue in queues:
        bodies = Counter(each.body for each in again[queue])
        assert bodies == Counter(each.body for each in first[queue] * 2)
    (one,) = [each for each in first[queues[0]] if each.body == first[queues[0]][0].body]
    assert (one.flag, one.unique_key) == (int(one.body), f"SinkSpread-{int(one.body)}")


def test_a_key_goes_where_other_producers_send_it_and_keeps_its_order(
    cometmq_session_cluster: Cluster,
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "SinkKeys", 4)
        keys = [f"key-{at % 9}" for at in range(300)]
        messages = [message("SinkKeys", at, key) for at, key in enumerate(keys)]
        send(cometmq_session_cluster, messages, maxBatchMessages="7", maxBatchBytes="300")
        found = stored(client, queues)
    for queue, its in found.items():
        numbers = [int(each.body) for each in its]
        assert numbers == sorted(numbers)
        assert {by_key(queues, keys[number]) for number in numbers} <= {queue}
    assert sum(map(len, found.values())) == 300


def test_delayed_messages_leave_alone_behind_what_came_before(
    cometmq_session_cluster: Cluster,
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "SinkDelays", 1)
        messages = [message("SinkDelays", at, delayed=at == 5) for at in range(10)]
        send(cometmq_session_cluster, messages)
        found = [int(each.body) for each in stored(client, queues)[queues[0]]]
    assert [at for at in found if at != 5] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_task_uses_some_of_many_queues_and_the_next_task_others(
    cometmq_session_cluster: Cluster,
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "SinkWide", 3 * SPREAD)
        for task in range(2):
            messages = [message("SinkWide", at) for at in range(200)]
            send(cometmq_session_cluster, messages, task)
            used = {queue.queue_id for queue, found in stored(client, queues).items() if found}
            assert used == set(range((task + 1) * SPREAD))


def test_a_topic_that_nobody_made_is_an_error_soon(
    cometmq_session_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "UNKNOWN_TOPIC_MS", 300)
    begun_s = time.monotonic()
    with pytest.raises(SendFailed, match="create it first") as raised:
        send(cometmq_session_cluster, [message("SinkTypo", 0)], retryFor="60s")
    assert isinstance(raised.value.cause, RouteNotFound)
    assert time.monotonic() - begun_s < 10
