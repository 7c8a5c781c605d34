"""Kombu's transport on Java brokers 4.9.7 and 5.5.0, and on ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest

import cometmq.kombu
from tests.client.shared_broker import fresh_name
from tests.compat.conftest import Target

DEADLINE_S = 40


@pytest.fixture
def connection(target: Target) -> Iterator[kombu.Connection]:
    assert cometmq.kombu.Transport.driver_type == "cometmq"
    # A test machine may be busy, and a fresh JVM is slow.
    options = {"send_timeout_ms": 10_000, "send_attempt_timeout_ms": 0, "queues": 2}
    with kombu.Connection(f"cometmq://{target.namesrv}//", transport_options=options) as made:
        yield made


def drain(connection: kombu.Connection, found: list[Any], count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        connection.drain_events(timeout=deadline - time.monotonic())


def test_tasks_wait_for_their_eta_and_come_again(connection: kombu.Connection) -> None:
    name = fresh_name("kombu") + ".q"
    queue = kombu.Queue(name, kombu.Exchange(name), routing_key=name)
    found: list[Any] = []
    with connection.channel() as channel:
        producer = kombu.Producer(channel, queue.exchange, routing_key=name)
        eta = datetime.now(UTC) + timedelta(seconds=5)
        # 4.9.7 has no timers: it delivers at once, and delay levels bring the task closer.
        producer.publish("later", declare=[queue], headers={"eta": eta.isoformat()})
        producer.publish("now")
    with kombu.Consumer(connection, [queue], on_message=found.append):
        drain(connection, found, 2)
        assert [each.payload for each in found] == ["now", "later"]
        assert datetime.now(UTC) > eta - timedelta(seconds=1.6)
        found.pop(0).ack()
        found.pop().requeue()
        drain(connection, found, 1)
        assert found[0].delivery_info["redelivered"] is True
        found[0].ack()


def test_broadcasts_replies_and_purge(connection: kombu.Connection) -> None:
    name = fresh_name("kombu")
    exchange = kombu.Exchange(name, type="fanout")
    found: list[Any] = []
    with kombu.Consumer(
        connection,
        [kombu.Queue(f"{name}.mine", exchange, auto_delete=True)],
        on_message=found.append,
    ):
        kombu.Producer(connection, exchange).publish("all")
        drain(connection, found, 1)
    assert found[0].payload == "all"
    lasting = kombu.Queue(name, kombu.Exchange(f"{name}.direct"), routing_key=name)
    kombu.Producer(connection, lasting.exchange, routing_key=name).publish("x", declare=[lasting])
    bound = lasting(connection.default_channel)
    # A Java broker counts a message when it is in its queue, a little after it was stored.
    deadline = time.monotonic() + DEADLINE_S
    while bound.queue_declare(passive=True).message_count < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert bound.purge() == 1
