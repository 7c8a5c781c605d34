"""The blocking facade against a real CometMQ broker, from plain threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import cometmq
from cometmq.admin.api import Admin
from cometmq.client import client as asynchronous
from cometmq.client.blocking import Client, ReceivedMessage
from cometmq.core.errors import AlreadyInUse, MessageIllegal, NotConnected, NotOpen
from cometmq.message.model import Message, MessageQueue, MessageView
from cometmq.testing.cluster import Cluster
from tests.client.shared_broker import fresh_name, fresh_topic


@pytest.fixture
def client(cometmq_session_cluster: Cluster) -> Iterator[Client]:
    with Client(cometmq_session_cluster.namesrv) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    return client.wait(fresh_topic(client.inner, queues=2))


def test_it_is_exported() -> None:
    assert cometmq.BlockingClient is Client


def test_it_has_the_names_and_signatures_of_the_asyncio_client() -> None:
    calls = {
        name: call
        for name, call in vars(asynchronous.Client).items()
        if inspect.isfunction(call) and not name.startswith("_")
    }
    assert set(calls) <= set(vars(Client))
    for name, call in calls.items():
        own = inspect.signature(getattr(Client, name))
        assert own.parameters == inspect.signature(call).parameters
        assert getattr(Client, name).__doc__


def test_messages_go_out_and_come_in(client: Client, topic: str) -> None:
    sent = client.send(topic, b"1", tag="x", keys=["k"])
    client.send_oneway(Message(topic, b"2", tag="x"))
    client.send_many([Message(topic, b"3", tag="x"), Message(topic, b"4", tag="y")])
    found: dict[bytes, ReceivedMessage] = {}
    with client.subscribe(topic, group=f"g-{topic}", filter="x", start="first") as subscription:
        for message in subscription:
            with message.processing() as inside:
                found[inside.body] = message
            if len(found) == 3:
                break
    assert set(found) == {b"1", b"2", b"3"}
    assert found[b"1"].message_id == sent.message_id
    assert (found[b"1"].keys, found[b"1"].topic) == (("k",), topic)
    progress = client.wait(Admin(client.inner.session).consumer_progress(f"g-{topic}", topic))
    assert sum(each.consumer_offset for each in progress.values()) == 4


def test_ready_made_messages_queues_and_rows_of_the_callers_thread(
    client: Client, topic: str
) -> None:
    queues = client.queues(topic, "write")
    assert client.send(Message(topic, b"0"), queue=queues[1]).queue == queues[1]
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        rows = database.execute("select 'a' union select 'b'")  # no other thread may read them
        sent = client.send_many(Message(topic, row.encode()) for (row,) in rows)
        more = database.execute("select 'c'")
        client.send_many(messages=(Message(topic, row.encode()) for (row,) in more))
    assert len(sent) == 2


def test_messages_are_handed_over_and_threads_share_batches(
    cometmq_session_cluster: Cluster, topic: str
) -> None:
    with Client(cometmq_session_cluster.namesrv, linger_ms=5) as client:
        waiting = [client.send_soon(topic, b"%d" % at, order_key="k") for at in range(50)]
        illegal = Message(topic, b"", properties={"": "x"})
        with pytest.raises(MessageIllegal):
            client.send_soon(illegal)
        lost = client.send_soon(fresh_name(), b"", queue=MessageQueue(topic, "nowhere", 0))
        client.flush()
        with ThreadPoolExecutor(8) as threads:
            sent = list(threads.map(lambda at: client.send(topic, b"t%d" % at), range(50)))
        results = [each.result(timeout=10) for each in waiting]
    first = results[0].queue_offset
    assert [each.queue_offset - first for each in results] == list(range(50))
    assert len({each.message_id for each in (*results, *sent)}) == 100
    with pytest.raises(NotConnected):
        lost.result(timeout=10)


@pytest.mark.cometmq_handler_errors(raises=ValueError)
def test_a_failure_is_retried_and_goes_no_further(
    client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.send(topic, b"1")
    attempts = []
    with client.subscribe(topic, group=f"g-{topic}", start="first") as subscription:
        for message in subscription:
            with message.processing():
                attempts.append(message.reconsume_times)
                if message.reconsume_times == 0:
                    message.retry(1)
                    raise ValueError("once")
            if attempts[-1]:
                break
    assert attempts == [0, 1]
    assert "processing_failed" in caplog.text


def test_an_interrupt_gives_the_message_back(client: Client, topic: str) -> None:
    client.send(topic, b"1")

    def interrupted(message: ReceivedMessage) -> None:
        with message.processing():
            raise KeyboardInterrupt

    with client.subscribe(topic, group=f"g-{topic}", start="first") as subscription:
        first = next(subscription)
        with pytest.raises(KeyboardInterrupt):
            interrupted(first)
        second = next(subscription)
        assert (second.body, second.reconsume_times) == (b"1", 0)
        second.ack()


def test_a_handler_runs_in_threads_until_it_is_closed(client: Client, topic: str) -> None:
    client.send_many([Message(topic, b"%d" % at) for at in range(50)])
    seen: set[bytes] = set()
    threads: set[str] = set()
    done = threading.Event()
    together = threading.Barrier(3)

    def handle(message: ReceivedMessage) -> None:
        if len(threads) < 3:
            threads.add(threading.current_thread().name)
            together.wait(10)
        seen.add(message.body)
        if len(seen) == 50:
            done.set()

    subscription = client.subscribe(topic, group=f"g-{topic}", start="first", concurrency=3)
    runner = threading.Thread(target=subscription.run, args=(handle,))
    runner.start()
    assert done.wait(20)
    subscription.close()
    runner.join(20)
    assert not runner.is_alive()
    assert len(threads) == 3


def test_an_interrupt_ends_a_run(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = client.subscribe(topic, group=f"g-{topic}", concurrency=2)
    join = threading.Thread.join
    interrupts = iter([KeyboardInterrupt()])

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name.startswith("cometmq handler"):
            for interrupt in interrupts:
                raise interrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        subscription.run(lambda message: None)
    assert [message.body for message in subscription] == []
    assert not client.inner.session.members


def test_what_ends_a_subscription_ends_its_run(client: Client, topic: str) -> None:
    with client.subscribe(topic, group=f"g-{topic}"):
        second = client.subscribe(topic, group=f"g-{topic}", concurrency=2)
        with pytest.raises(AlreadyInUse):
            second.run(lambda message: None)


def test_closing_tells_the_calls_of_other_threads(
    cometmq_session_cluster: Cluster, topic: str
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client, ThreadPoolExecutor(1) as pool:
        client.send(topic, b"")
        asked = pool.submit(client.request, topic, b"nobody answers", timeout_ms=60_000)
        while client.inner._asker is None or not client.inner._asker._waiting:
            assert not asked.done()
        client.close()
        with pytest.raises(NotOpen):
            asked.result(20)


def test_a_start_that_fails_leaves_nothing() -> None:
    client = Client("127.0.0.1:1", trace=True, producer_group="no good")
    before = {*threading.enumerate()}
    with pytest.raises(MessageIllegal):
        client.start()
    # Other tests' brokers start threads too.
    left = {*threading.enumerate()} - before
    assert not [each for each in left if each.name == "cometmq client"]
    with pytest.raises(NotOpen):
        client.send("t", b"")


def test_errors_cross_the_thread(client: Client) -> None:
    with pytest.raises(MessageIllegal):
        client.send("no good", b"")


def test_a_client_that_is_not_open(cometmq_session_cluster: Cluster) -> None:
    client = Client(cometmq_session_cluster.namesrv)
    with pytest.raises(RuntimeError, match="not open"):
        client.subscribe("t", group="g")
    with pytest.raises(RuntimeError, match="not open"):
        client.send("t", b"")
    with pytest.raises(RuntimeError, match="not open"):
        client.wait(asyncio.sleep(0))
    client.start()
    client.start()
    client.close()
    client.close()


def test_a_transaction_commits_or_rolls_back(client: Client, topic: str) -> None:
    asked: list[str] = []

    @client.transaction_checker("blocking-shop", topic=topic)
    def check(message: object) -> bool | None:
        asked.append(repr(message))
        return None

    with client.transaction(topic, b"kept", group="blocking-shop") as kept:
        assert kept.message_id
    with (
        pytest.raises(ZeroDivisionError),
        client.transaction(topic, b"gone", group="blocking-shop"),
    ):
        raise ZeroDivisionError
    with client.transaction(topic, b"open", group="blocking-shop") as left_open:
        left_open.leave_open()
    assert left_open.result.queue_offset > kept.result.queue_offset
    client.send(topic, b"last")
    found: set[bytes] = set()
    with client.subscribe(topic, group=f"g-{topic}", start="first") as subscription:
        for message in subscription:
            with message.processing() as inside:
                found.add(inside.body)
            if found >= {b"kept", b"last"}:
                break
    assert found == {b"kept", b"last"}
    assert asked == []


def test_requests_are_answered(client: Client, topic: str) -> None:
    @client.replier(topic, group=f"g-{topic}", start="first")
    def answer(message: MessageView) -> bytes:
        return b"re: " + message.body

    assert client.request(topic, b"hello", timeout_ms=20_000).body == b"re: hello"


def test_functions_that_reply_may_send_large_messages(client: Client, topic: str) -> None:
    """Large bodies are packed in threads of the loop's own, which replies must not use up."""
    group = f"g-{topic}"
    begun = threading.Barrier(8)

    @client.replier(topic, group=group, start="first")
    def reply(message: MessageView) -> bytes:
        begun.wait(20)
        client.send(f"{topic}-log", bytes(100_000), timeout_ms=20_000)
        return message.body

    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(client.request, topic, b"%d" % at, timeout_ms=40_000) for at in range(8)
        ]
        assert {each.result(60).body for each in asked} == {b"%d" % at for at in range(8)}
