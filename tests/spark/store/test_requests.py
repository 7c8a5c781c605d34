"""How many requests reads of a store on S3 make, by their kind."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from cometmq.spark.schema import NAMES
from cometmq.spark.store import planning
from cometmq.spark.store.holdings import StoreHoldings
from cometmq.spark.store.options import parse
from cometmq.spark.store.planning import LogPart, QueuePart, plan
from cometmq.spark.store.reader import batches
from cometmq.spark.store.urls import AHEAD_BYTES_MAX, RemoteFile
from tests.spark.store.s3server import S3Server, s3_server
from tests.store.stores import opened, put, run_round

TOPICS = 25
QUEUES = 10
MESSAGES = 3
BODY = bytes(1_000)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> str:
    """A store with 250 queues of a few messages each."""
    root = tmp_path_factory.mktemp("many") / "store"
    store = opened(
        root, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 100
    )
    for _ in range(MESSAGES):
        for topic in range(TOPICS):
            for queue_id in range(QUEUES):
                put(store, f"t{topic}", queue_id, BODY, tag="g")
        store.commit()
    run_round(store, thorough=True)
    store.close()
    return s3.copy(root, "many/store")


class Spent:
    """The requests since it was made, or since it was last asked."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._before = server.operations()

    def take(self, of: str) -> Counter[str]:
        """The requests so far, which are also printed."""
        now = self._server.operations()
        found = now - self._before
        self._before = now
        print(of, dict(found))
        return found


def test_a_whole_log_of_many_queues(s3: S3Server, many: str) -> None:
    log_bytes = TOPICS * QUEUES * MESSAGES * len(BODY)
    read = parse({"store": many, "brokerName": "b", "maxBytesPerPartition": str(log_bytes // 100)})
    spent = Spent(s3)
    tasks = plan(read)
    of_plan = spent.take("plan")
    # A HEAD opens a file, a GET has the end and the beginning of the queue.
    assert of_plan.keys() <= {"LIST", "HEAD", "GET"}
    assert of_plan["LIST"] <= 5
    assert of_plan["HEAD"] <= TOPICS * QUEUES + 10
    assert of_plan["GET"] <= TOPICS * QUEUES + 20
    assert len(tasks) >= 100
    assert all(isinstance(part, LogPart) for task in tasks for part in task)
    found = [batch.num_rows for task in tasks for batch in batches(task, read, NAMES)]
    assert sum(found) == TOPICS * QUEUES * MESSAGES
    of_tasks = spent.take(f"{len(tasks)} tasks")
    parts = sum(map(len, tasks))
    assert of_tasks["LIST"] == 0
    assert of_tasks["HEAD"] <= parts
    assert of_tasks["GET"] <= 2 * parts


def test_one_topic_of_many_queues(s3: S3Server, many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LAST_MOMENTS_BYTES", 0)
    read = parse({"store": many, "brokerName": "b", "topic": "t7", "maxBytesPerPartition": "1"})
    spent = Spent(s3)
    tasks = plan(read)
    assert spent.take("plan").total() <= 2 * TOPICS * QUEUES + 30
    parts = [part for task in tasks for part in task]
    assert sum(isinstance(part, QueuePart) for part in parts) == QUEUES * MESSAGES
    found = [batch.num_rows for task in tasks for batch in batches(task, read, NAMES)]
    assert sum(found) == QUEUES * MESSAGES
    of_tasks = spent.take(f"{len(tasks)} tasks")
    # The queue's file and that of the log: a HEAD and a GET for each, and two GETs of a record that
    # is in two pages.
    assert of_tasks["LIST"] == 0
    assert of_tasks.total() <= 4 * len(parts) + 5


def test_what_a_store_holds_beside_other_places(s3: S3Server, many: str) -> None:
    read = parse({"store": many, "brokerName": "b"})
    spent = Spent(s3)
    held = StoreHoldings(read.roots[0], read).held()
    assert sum(map(len, held)) == TOPICS * QUEUES * MESSAGES
    # All entries are read, for which some pages are fetched again.
    assert spent.take("holdings").total() <= 3 * TOPICS * QUEUES + 40


class Source:
    """An open file of Arrow's that notes what is asked for."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.asked: list[tuple[int, int]] = []
        self.second = threading.Event()

    def read_at(self, count: int, at: int) -> bytes:
        self.asked.append((at, at + count))
        if len(self.asked) == 2:
            self.second.set()
        return at.to_bytes(8, "big") + bytes(count - 8)


def test_a_task_fetches_ahead_and_not_beyond_its_part() -> None:
    source, piece, stop = Source(64 << 20), 2 << 20, 33 << 20
    with RemoteFile("s3://b/f", source, source.size_bytes) as file:
        file.read_on(stop)
        file.seek(0)
        assert file.read(piece)[:8] == bytes(8)
        assert source.second.wait(30)  # before anyone asks for these bytes
        for _ in range(piece, stop, piece):
            file.read(piece)
        assert file.read(100)[:8] == (34 << 20).to_bytes(8, "big")
    edges = [*range(0, stop, AHEAD_BYTES_MAX), stop]
    assert source.asked[:5] == list(itertools.pairwise(edges))
    assert all(start >= stop for start, _ in source.asked[5:])
    assert sum(end - start for start, end in source.asked) < stop + (3 << 20)
