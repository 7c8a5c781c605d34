"""Real Celery workers on our broker: as processes, killed, and through a restart of the broker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import kombu
import kombu.pools
import pytest
from celery import Celery, chord, group

from cometmq.testing.cluster import ProcessCluster
from tests.cluster.servers import BrokerProcess, NamesrvProcess
from tests.kombu import tasks

pytestmark = pytest.mark.operation

DEADLINE_S = 90


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("broker")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def app(broker: ProcessCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    """The application, as the process that sends tasks has it."""
    results = tmp_path_factory.mktemp("results")
    url = f"cometmq://{broker.namesrv}//"
    tasks.app.conf.update(
        broker_url=url,
        broker_write_url=url,
        broker_read_url=url,
        result_backend=f"file://{results}",
    )
    yield tasks.app
    tasks.app.pool.force_close_all()
    kombu.pools.reset()


@contextmanager
def worker(app: Celery, log: Path, *, pool: str = "prefork") -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker until the block ends; it is killed then."""
    environment = {
        **os.environ,
        "COMETMQ_TEST_URL": app.conf.broker_url,
        "COMETMQ_TEST_RESULTS": app.conf.result_backend,
        "COMETMQ_TEST_ENDS_WITH_INPUT": "1",
    }
    words = ["celery", "-A", "tests.kombu.tasks", "worker", "-c", "2", "-P", pool, "-l", "INFO"]
    with log.open("ab") as file:
        name = f"w{time.monotonic_ns()}@here"
        process = subprocess.Popen(
            [sys.executable, "-m", *words, "-n", name],
            env=environment,
            stdin=subprocess.PIPE,  # it closes when this process ends, in whatever way
            stdout=file,
            stderr=file,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        try:
            wait_for(lambda: b" ready." in log.read_bytes(), "worker", log)
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, 9)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def wait_for(condition: Callable[[], Any], what: str, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {log.read_text()[-3000:]}"
        time.sleep(0.05)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_tasks_retries_countdowns_canvas_and_control(
    app: Celery, tmp_path: Path, pool: str
) -> None:
    with worker(app, tmp_path / "log", pool=pool):
        assert tasks.add.delay(1, 2).get(timeout=DEADLINE_S) == 3
        later = tasks.add.apply_async((5, 5), countdown=2.5)
        assert tasks.third_time.delay().get(timeout=DEADLINE_S) == 2
        pairs = group(tasks.add.s(n, n) for n in range(5))
        assert pairs().get(timeout=DEADLINE_S) == [0, 2, 4, 6, 8]
        assert chord(pairs)(tasks.total.s()).get(timeout=DEADLINE_S) == 20
        assert later.get(timeout=DEADLINE_S) == 10
        replies = asked(lambda: app.control.ping(timeout=3))
        assert [list(reply.values()) for reply in replies] == [[{"ok": "pong"}]]
        active = asked(lambda: app.control.inspect(timeout=3).active_queues())
        assert [[each["name"] for each in queues] for queues in active.values()] == [["celery"]]


def asked(ask: Callable[[], Any]) -> Any:
    """The answer of workers: a busy one may miss a question."""
    deadline = time.monotonic() + DEADLINE_S
    while not (answer := ask()):
        assert time.monotonic() < deadline
    return answer


def processes_of(group: int) -> list[int]:
    """The processes of a group, without those that only wait to be collected."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = path.read_text().rpartition(") ")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(int(path.parent.name))
    return found


def test_a_worker_and_its_pool_end_with_the_run_that_started_it(
    app: Celery, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with worker(app, log) as process:
        assert len(processes_of(process.pid)) >= 3
        assert process.stdin is not None
        process.stdin.close()  # as the end of this process would
        wait_for(lambda: process.poll() is not None, "end", log)
        wait_for(lambda: not processes_of(process.pid), "end of the pool", log)


def test_a_killed_worker_leaves_its_task_to_another_one(app: Celery, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with worker(app, tmp_path / "first") as first:
        tasks.slow.delay(str(path), 300)
        wait_for(lambda: lines(path) == ["begun"], "task", tmp_path / "first")
        os.killpg(first.pid, 9)
        first.wait()
    with worker(app, tmp_path / "second") as second:
        wait_for(lambda: lines(path) == ["begun", "begun"], "task", tmp_path / "second")
        os.killpg(second.pid, 9)
        second.wait()
    # What it would still do is not for the next test.
    app.control.purge()


def test_a_worker_goes_on_when_the_broker_is_back(
    app: Celery, broker: ProcessCluster, tmp_path: Path
) -> None:
    with worker(app, tmp_path / "log"):
        assert tasks.add.delay(1, 2).get(timeout=DEADLINE_S) == 3
        broker.kill()
        broker.start()
        again = tasks.add.apply_async(
            (3, 4), retry=True, retry_policy={"max_retries": 20, "interval_start": 0.2}
        )
        assert again.get(timeout=DEADLINE_S) == 7


def test_a_worker_whose_broker_is_gone_ends_at_sigterm(
    app: Celery, broker: ProcessCluster, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with worker(app, log) as process:
        assert tasks.add.delay(1, 2).get(timeout=DEADLINE_S) == 3
        broker.kill()
        try:
            # The worker's heartbeat is published again and again.
            refused = b"unavailable address=" + broker.namesrv.encode()
            wait_for(lambda: log.read_bytes().count(refused) >= 3, "attempts", log)
            process.terminate()
            assert process.wait(15) == 0
        finally:
            broker.start()


def test_a_worker_ends_at_sigterm_though_only_the_name_server_is_left(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "results").mkdir()
    namesrv = NamesrvProcess(tmp_path)
    namesrv.start()
    broker = BrokerProcess(tmp_path, namesrv.namesrv)
    broker.start()
    try:
        url = f"cometmq://{namesrv.namesrv}//"
        conf = SimpleNamespace(broker_url=url, result_backend=f"file://{tmp_path}/results")
        with worker(cast("Celery", SimpleNamespace(conf=conf)), log) as process:
            broker.kill()
            failed = b"error=" + broker.broker.encode()
            wait_for(lambda: failed in log.read_bytes(), "attempts", log)
            process.terminate()
            assert process.wait(25) == 0
    finally:
        broker.kill()
        namesrv.kill()


def test_a_connection_ends_in_time_though_its_broker_is_gone(
    app: Celery, broker: ProcessCluster
) -> None:
    queue = kombu.Queue("held", kombu.Exchange("held"), routing_key="held")
    found: list[Any] = []
    connection = kombu.Connection(app.conf.broker_url)
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        for number in range(60):
            producer.publish(number, exchange="held", routing_key="held", declare=[queue])
    kombu.Consumer(connection, [queue], on_message=found.append).consume()
    while len(found) < 60:
        connection.drain_events(timeout=DEADLINE_S)
    broker.kill()
    begun = time.monotonic()
    try:
        connection.close()
        assert time.monotonic() - begun < 8
    finally:
        broker.start()
    with kombu.Connection(app.conf.broker_url) as second:
        again: set[int] = set()
        consumer = kombu.Consumer(
            second, [queue], on_message=lambda message: again.add(message.payload)
        )
        consumer.consume()
        while len(again) < 60:
            second.drain_events(timeout=DEADLINE_S)
