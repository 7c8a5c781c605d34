"""Consumers without an event loop against a real CometMQ broker: polls, positions, plain pulls."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from cometmq.client import pull
from cometmq.client.blocking import Client, PullConsumer, Puller
from cometmq.client.consumer import pullconsumer
from cometmq.message.model import Message
from cometmq.testing.cluster import Cluster
from tests.client.shared_broker import fresh_topic


@pytest.fixture
def client(cometmq_session_cluster: Cluster) -> Iterator[Client]:
    with Client(cometmq_session_cluster.namesrv) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    return client.wait(fresh_topic(client.inner, queues=2))


#: What a session and the rebalancer ask of a consumer.
FOR_OTHERS = {"describe", "topics", "rebalance_soon", "assigned", "apply"}
FOR_OTHERS |= {"positions", "running_info", "reset", "consume_directly"}


@pytest.mark.parametrize(
    ("own", "asynchronous"), [(PullConsumer, pullconsumer.PullConsumer), (Puller, pull.Puller)]
)
def test_they_have_the_names_of_the_asyncio_ones(own: type, asynchronous: type) -> None:
    calls = {
        name: call
        for name, call in vars(asynchronous).items()
        if inspect.isfunction(call) and not name.startswith("_")
    }
    assert set(calls) - FOR_OTHERS <= set(vars(own))
    for name in set(calls) - FOR_OTHERS - {"read_range"}:
        assert inspect.signature(getattr(own, name)) == inspect.signature(calls[name])


def test_a_group_s_share_is_polled_moved_in_and_committed(client: Client, topic: str) -> None:
    queues = client.queues(topic)
    for at in range(6):
        client.send(topic, b"%d" % at, queue=queues[at % 2])
    found: set[bytes] = set()
    with client.pull_consumer(topic, group=f"g-{topic}", start="first") as consumer:
        while len(found) < 6:
            found.update(message.body for message in consumer.poll())
        assert consumer.assignment() == queues
        consumer.pause(queues[0])
        assert consumer.paused() == queues[:1]
        consumer.seek_to_begin()
        assert consumer.position(queues[1]) == 0
        for message in consumer:
            assert message.queue == queues[1]
            break
        consumer.resume(queues[0])
        consumer.seek_to_end()
        consumer.seek(queues[0], 1)
        consumer.seek_to_time(0, queues[1])
        assert [consumer.position(queue) for queue in queues] == [1, 0]
        assert consumer.offset_for_time(queues[0], 2**60) == 3
        consumer.commit({queues[0]: 2, queues[1]: 3})
        assert [consumer.committed(queue) for queue in queues] == [2, 3]


def test_a_block_that_raises_leaves_the_last_poll_undone(client: Client, topic: str) -> None:
    queue = client.queues(topic)[0]
    client.send_many([Message(topic, b"%d" % at) for at in range(3)], order_key=None)

    def work() -> None:
        with client.pull_consumer(group=f"g-{topic}", start="first") as consumer:
            consumer.assign(client.queues(topic))
            while not consumer.poll(max_messages=1):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with client.pull_consumer(group=f"g-{topic}") as consumer:
        assert consumer.committed(queue) in (None, 0)


def test_a_closed_consumer_s_iteration_ends(client: Client, topic: str) -> None:
    consumer = client.pull_consumer(topic, group=f"g-{topic}")
    consumer.start()
    consumer.close()
    assert list(consumer) == []


def test_queues_are_read_at_offsets_of_one_s_own(client: Client, topic: str) -> None:
    queue = client.queues(topic)[0]
    for at in range(5):
        client.send(topic, b"%d" % at, queue=queue)
    puller = client.puller
    assert (puller.min_offset(queue), puller.max_offset(queue)) == (0, 5)
    assert [each.body for each in puller.pull(queue, 3).messages] == [b"3", b"4"]
    first_ms = puller.earliest_store_ms(queue)
    assert puller.offset_at(queue, first_ms) == puller.search_offset(queue, first_ms) == 0
    parts = puller.read_range(queue, 1, 4, batch_messages=2)
    assert [[each.body for each in part] for part in parts] == [[b"1", b"2"], [b"3"]]
    for part in puller.read_range(queue, 0, 5, batch_messages=1):
        assert [each.body for each in part] == [b"0"]
        break
