"""Kombu's operations against our broker."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import _state
from celery.exceptions import WorkerShutdown
from celery.worker import state
from kombu.pools import reset as reset_pools

from cometmq.admin.api import Admin
from cometmq.core.errors import BrokerRefused
from cometmq.kombu.link import Link
from cometmq.kombu.naming import topic_of
from cometmq.message.model import Message
from cometmq.testing.cluster import cluster_in_thread
from tests.kombu.conftest import Connect


def queue_named(name: str, **options: Any) -> kombu.Queue:
    return kombu.Queue(name, kombu.Exchange(name), routing_key=name, **options)


def publish(connection: kombu.Connection, queue: kombu.Queue, body: object, **options: Any) -> None:
    with connection.channel() as channel:
        kombu.Producer(channel).publish(
            body,
            exchange=queue.exchange,
            routing_key=queue.routing_key,
            declare=[queue],
            **options,
        )


def receive(
    connection: kombu.Connection, queue: kombu.Queue, count: int, timeout: float = 60
) -> list[Any]:
    """Return ``count`` messages, unacknowledged; the consumer stays."""
    found: list[Any] = []
    consumer = kombu.Consumer(connection, [queue], on_message=found.append)
    consumer.consume()
    deadline = time.monotonic() + timeout
    while len(found) < count:
        connection.drain_events(timeout=deadline - time.monotonic())
    return found


def test_a_message_is_acknowledged_once(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    publish(connect(), queue, {"n": 1}, headers={"h": "ä"})
    with connect() as reader:
        (message,) = receive(reader, queue, 1)
        assert (message.payload, message.headers["h"]) == ({"n": 1}, "ä")
        message.ack()
    with connect() as second, pytest.raises(TimeoutError):
        receive(second, queue, 1, timeout=1.5)


def test_unacknowledged_messages_of_a_lost_connection_come_again(
    connect: Connect, name: str
) -> None:
    queue = queue_named(name)
    sender = connect()
    for number in range(6):
        publish(sender, queue, number)
    lost = connect()
    taken = receive(lost, queue, 6)
    # Out of order: the second of each pair is acknowledged, the first is not.
    kept = {each.payload for each in taken if each.payload % 2 == 0}
    for each in taken:
        if each.payload % 2:
            each.ack()
    # As if the process had ended: nothing is sent back.
    lost.transport.link.close()
    lost.transport._link = None
    again = receive(connect(), queue, len(kept))
    assert kept <= {each.payload for each in again}


def test_closing_sends_unacknowledged_messages_back(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    publish(connect(), queue, "work")
    with connect() as first:
        receive(first, queue, 1)
    (message,) = receive(connect(), queue, 1)
    assert message.payload == "work"
    assert message.delivery_info["redelivered"] is True


def test_reject_and_requeue(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    connection = connect()
    publish(connection, queue, "a")
    (message,) = receive(connection, queue, 1)
    message.requeue()
    (again,) = receive(connection, queue, 1)
    again.reject()
    with pytest.raises(TimeoutError):
        receive(connection, queue, 1, timeout=0.7)


def test_prefetch_limits_what_is_delivered(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    connection = connect()
    for number in range(5):
        publish(connection, queue, number)
    connection.default_channel.basic_qos(0, 2, False)
    found = receive(connection, queue, 2)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.7)
    for message in list(found):
        message.ack()
    connection.drain_events(timeout=60)
    assert len(found) > 2


def test_urgent_messages_come_first(connect: Connect, name: str) -> None:
    queue = queue_named(name, max_priority=9)
    connection = connect(priority_steps=[3, 6])
    for body, priority in (("low", 3), ("high", 8), ("none", 0), ("low too", 4)):
        publish(connection, queue, body, priority=priority)
    # What is urgent goes before what is there, not before what comes later.
    feed = connection.transport.link.read(name)
    until(lambda: feed.waiting == 4)
    bodies = [each.payload for each in receive(connection, queue, 4)]
    assert bodies[0] == "high"
    assert bodies[-1] == "none"


def test_a_broadcast_reaches_each_process(connect: Connect, name: str) -> None:
    exchange = kombu.Exchange(name, type="fanout")
    readers = [connect(), connect()]
    found: list[str] = []
    for number, reader in enumerate(readers):
        queue = kombu.Queue(f"{name}.{number}", exchange, auto_delete=True)
        kombu.Consumer(
            reader, [queue], callbacks=[lambda body, message: found.append(body)]
        ).consume()
    with connect().channel() as channel:
        kombu.Producer(channel, exchange).publish("all")
    for reader in readers:
        reader.drain_events(timeout=60)
    assert found == ["all", "all"]


def test_a_reply_finds_the_queue_of_the_process_that_asked(connect: Connect, name: str) -> None:
    asker = connect()
    replies = kombu.Queue(name, exclusive=True, auto_delete=True, durable=False)
    found: list[str] = []
    with kombu.Consumer(asker, [replies], callbacks=[lambda body, message: found.append(body)]):
        kombu.Producer(connect()).publish("reply", routing_key=name, exchange="")
        asker.drain_events(timeout=60)
    assert found == ["reply"]


def test_topic_bindings_choose_queues(connect: Connect, name: str) -> None:
    exchange = kombu.Exchange(name, type="topic")
    wanted = kombu.Queue(f"{name}.a", exchange, routing_key="shop.*")
    other = kombu.Queue(f"{name}.b", exchange, routing_key="news.#")
    connection = connect()
    with connection.channel() as channel:
        producer = kombu.Producer(channel, exchange)
        producer.publish("order", routing_key="shop.order", declare=[wanted, other])
    assert receive(connection, wanted, 1)[0].payload == "order"
    with pytest.raises(TimeoutError):
        receive(connect(), other, 1, timeout=1)


def test_size_purge_and_delete(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    connection = connect()
    for number in range(3):
        publish(connection, queue, number)
    bound = queue(connection.default_channel)
    assert bound.queue_declare(passive=True).message_count == 3
    assert bound.purge() == 3
    assert bound.queue_declare(passive=True).message_count == 0
    bound.delete()
    with pytest.raises(connection.channel_errors):
        bound.queue_declare(passive=True)


@pytest.mark.parametrize("delays", ["timers", "levels"])
def test_a_task_with_an_eta_waits_at_the_broker(connect: Connect, name: str, delays: str) -> None:
    connection = connect(delays=delays)
    for wait_s in (3, 12, 48):
        queue = queue_named(f"{name}.{wait_s}")
        eta = datetime.now(UTC) + timedelta(seconds=wait_s)
        publish(connection, queue, "later", headers={"eta": eta.isoformat()})
        publish(connection, queue, "now")
        first = receive(connection, queue, 1)[0].payload
        begun = datetime.now(UTC)
        second = receive(connection, queue, 1)[0].payload
        assert datetime.now(UTC) > eta - timedelta(seconds=1.6)
        if begun < eta - timedelta(seconds=1.6):
            assert (first, second) == ("now", "later")
            return
    pytest.fail("the machine is too slow to show anything")


def test_a_task_that_comes_early_goes_back_with_a_delay_level(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    eta = datetime.now(UTC) + timedelta(seconds=3)
    # Sent as to a broker that knows no timers.
    publish(connect(delays="worker"), queue, "later", headers={"eta": eta.isoformat()})
    (message,) = receive(connect(), queue, 1)
    assert datetime.now(UTC) > eta - timedelta(seconds=1.6)
    message.ack()


def test_an_expired_message_is_not_delivered(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    connection = connect()
    publish(connection, queue, "old", expiration=0.001)
    publish(connection, queue, "fresh", expiration=60)
    assert receive(connection, queue, 1)[0].payload == "fresh"


def _publish_in_child(connection: kombu.Connection, queue: kombu.Queue) -> None:
    publish(connection, queue, "from the child")


# Python 3.12 warns of what the test is about.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_opens_a_link_of_its_own(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    connection = connect()
    publish(connection, queue, "from the parent")
    child = multiprocessing.get_context("fork").Process(
        target=_publish_in_child, args=(connection, queue)
    )
    child.start()
    child.join(60)
    assert child.exitcode == 0
    bodies = {each.payload for each in receive(connection, queue, 2)}
    assert bodies == {"from the parent", "from the child"}
    reset_pools()


def test_a_wrong_address_is_a_connection_error(connect: Connect) -> None:
    connection = kombu.Connection(
        "cometmq://127.0.0.1:1//", transport_options={"request_timeout_ms": 500}
    )
    with pytest.raises(connection.connection_errors):
        connection.connect()


BAD = [
    b"\xff",
    b"text",
    b"[]",
    b'{"properties": 5}',
    b'{"properties": {"expiration": "soon"}}',
    b'{"properties": {}, "headers": [1]}',
    b'{"properties": {"delivery_info": [1]}}',
    b'{"properties": {"body_encoding": "base64"}, "body": "a"}',
    b'{"properties": {"body_encoding": "rot13"}, "body": "?"}',
]


def test_what_is_no_message_of_kombu_becomes_a_dead_letter(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    connection = connect()
    publish(connection, queue, "first")
    (first,) = receive(connection, queue, 1)
    link: Link = connection.transport.link
    for body in BAD:
        link.send(Message(topic_of(name), body))
    publish(connection, queue, "good")
    (good,) = receive(connection, queue, 1)
    assert good.payload == "good"
    first.ack()
    good.ack()
    # All that is there was taken when the feed has nothing left.
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=1.5)
    feed = link._feeds[name]
    until(lambda: feed.held == 0)

    def dead() -> int:
        topic = f"%DLQ%{link.group_of(name)}"
        stats = link._run(Admin(link._client.session).topic_stats(topic))
        return sum(each.max_offset for each in stats.values())

    until(lambda: dead() >= len(BAD))
    assert dead() == len(BAD)


def test_a_strange_message_to_temporary_queues_is_left_out(connect: Connect, name: str) -> None:
    asker = connect()
    replies = kombu.Queue(name, exclusive=True, auto_delete=True, durable=False)
    found: list[str] = []
    with kombu.Consumer(asker, [replies], callbacks=[lambda body, message: found.append(body)]):
        link: Link = asker.transport.link
        for address in ("5", "[1, 2]", '["", ["a"]]', "{", '[""]'):
            properties = {"kombuAddress": address}
            link.send(Message(link.options.transient_topic, b"", properties=properties))
        link.send(Message(link.options.transient_topic, b""))
        kombu.Producer(connect()).publish("reply", routing_key=name, exchange="")
        asker.drain_events(timeout=60)
    assert found == ["reply"]


@pytest.mark.parametrize("task_id", ["import 2026", "a\x02TAGS\x01b", "\tx", ""])
def test_any_text_is_a_task_id(connect: Connect, name: str, task_id: str) -> None:
    queue = queue_named(name)
    connection = connect()
    publish(connection, queue, "work", correlation_id=task_id)
    (message,) = receive(connection, queue, 1)
    assert message.properties["correlation_id"] == task_id


def test_unacknowledged_messages_go_back_in_order(connect: Connect, name: str) -> None:
    queue = queue_named(name)
    with connect(queues=1) as first:
        for number in range(4):
            publish(first, queue, number)
        receive(first, queue, 4)
    again = receive(connect(), queue, 4)
    assert [each.payload for each in again] == [0, 1, 2, 3]


ACCOUNTS = """\
accounts:
- accessKey: admin-key
  secretKey: secret-of-admin
  admin: true
- accessKey: sender-key
  secretKey: secret-of-sender
  defaultTopicPerm: PUB
  defaultGroupPerm: SUB
"""


def test_a_worker_that_may_not_read_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    queue = queue_named(name)
    with cluster_in_thread(tmp_path, aclEnable=True, rocketmqHome=str(tmp_path)) as cluster:
        servers = cluster.namesrv
        with kombu.Connection(f"cometmq://admin-key:secret-of-admin@{servers}//") as admin:
            publish(admin, queue, "work")
        with kombu.Connection(f"cometmq://sender-key:secret-of-sender@{servers}//") as sender:
            with pytest.raises(BrokerRefused) as refused:
                receive(sender, queue, 1)
            assert isinstance(refused.value, sender.channel_errors)


def test_threads_may_wait_and_clear_at_once(connect: Connect) -> None:
    link: Link = connect().connect().link
    waiting = threading.Thread(target=link.wait, args=(1.0,))
    waiting.start()
    while waiting.is_alive():
        link.clear()
    waiting.join()


def test_what_waits_for_kombu_moves_with_its_queue(connect: Connect, name: str) -> None:
    """A worker that joins takes over messages that the first one has read and not begun."""
    queue = queue_named(name)
    first, second = connect(), connect()
    for number in range(40):
        publish(first, queue, number)
    links: list[Link] = [each.connect().link for each in (first, second)]
    feeds = [links[0].read(name)]
    until(lambda: feeds[0].waiting == 40)
    feeds.append(links[1].read(name))
    until(lambda: feeds[1].waiting == 20)
    found = []
    for link in links:
        while (delivery := link.take(name)) is not None:
            found.append(delivery.body)
            link.settle(delivery)
    assert len(found) == len(set(found)) == 40
    until(lambda: not feeds[0].held)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_fails_ends_a_worker_that_was_told_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = kombu.Connection(
        "cometmq://127.0.0.1:1//", transport_options={"request_timeout_ms": 500}
    )
    with pytest.raises(connection.connection_errors):
        connection.connect()
    monkeypatch.setattr(state, "should_stop", 0)
    with pytest.raises(WorkerShutdown):
        connection.connect()
    # A task that runs in this thread is left to end.
    _state._task_stack.push(object())
    try:
        with pytest.raises(connection.connection_errors):
            connection.connect()
    finally:
        _state._task_stack.pop()
