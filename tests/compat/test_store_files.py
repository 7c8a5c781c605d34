"""One store directory, two brokers in turn: each opens what the other left, stopped or killed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from cometmq.core.clock import SystemClock
from cometmq.message import batch
from cometmq.message import properties as props
from cometmq.store.config import DamagePolicy, StoreConfig
from cometmq.store.files import PosixFiles
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.opening import Rebuild, open_store
from tests.compat import anchor
from tests.compat.driver import Driver, Json
from tests.store.stores import STORE_HOST, assert_consistent, copied, log_of, put, shared

TOPIC = "ours-then-theirs"
QUEUES = 3
COUNT = 2_400
TOPICS = {
    "dataVersion": {"counter": 1, "timestamp": 1},
    "topicConfigTable": {
        TOPIC: {
            "order": False, "perm": 6, "readQueueNums": QUEUES, "topicFilterType": "SINGLE_TAG",
            "topicName": TOPIC, "topicSysFlag": 0, "writeQueueNums": QUEUES,
        }
    },
}  # fmt: skip


def config_of(root: Path) -> StoreConfig:
    """The sizes that the Java broker of the tests has."""
    settings = anchor.TEST_SETTINGS
    return replace(
        StoreConfig(store_path_root_dir=str(root)),
        mapped_file_size_commit_log=int(settings["mappedFileSizeCommitLog"]),
        mapped_file_size_consume_queue=int(settings["mappedFileSizeConsumeQueue"]),
        max_hash_slot_num=int(settings["maxHashSlotNum"]),
        max_index_num=int(settings["maxIndexNum"]),
    )


def opened(root: Path) -> MessageStore:
    """The store with these sizes."""
    store = open_store(config_of(root), SystemClock())
    store.store_host = STORE_HOST
    return store


def body_of(number: int) -> bytes:
    return b"%05d" % number + b"." * (number % 5 * 1_000)


def fill(store: MessageStore) -> None:
    """Over two log files: single messages, batches at the end, a round of upkeep half way."""
    for number in range(COUNT - 60):
        tag = "even" if number % 2 else "odd"
        put(
            store,
            TOPIC,
            number % QUEUES,
            body_of(number),
            tag=tag,
            keys=(f"K{number}", "all", f"key{number}"),
        )
        if number % 50 == 49:
            store.commit()
        if number == COUNT // 2:
            asyncio.run(store.maintenance.flush_entries())
    for first in range(COUNT - 60, COUNT, 20):
        numbers = range(first, first + 20)
        raw = batch.pack(
            (0, body_of(number), props.encode({"UNIQ_KEY": f"K{number}"})) for number in numbers
        )
        queue = store.queue(TOPIC, 0)
        store.append_batch(queue, raw, shared(store, b"WAIT\x01true"))
    store.commit()


@pytest.fixture(params=["stopped", "killed"])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A store that ours wrote, and how it was left."""
    how = cast("str", request.param)
    store = opened(tmp_path / "ours")
    (tmp_path / "ours" / "config").mkdir()
    (tmp_path / "ours" / "config" / "topics.json").write_text(json.dumps(TOPICS))
    fill(store)
    assert len(store.log.segments.files) >= 2
    if how == "stopped":
        store.close()
        yield how, tmp_path / "ours"
    else:
        root = copied(tmp_path / "ours", "killed")
        store.close()
        yield how, root


@pytest.mark.runs("4.9.7")
def test_java_opens_ours_and_ours_opens_java_s(
    left: tuple[str, Path], jars: Path, driver: Driver, tmp_path: Path
) -> None:
    how, root = left
    cluster = anchor.JavaCluster(jars, tmp_path / "java", store=root)
    cluster.start()
    try:
        facts = cast("dict[str, Json]", driver.ask("pullAll", namesrv=cluster.namesrv, topic=TOPIC))
        rows = cast("list[dict[str, Json]]", facts["messages"])
        heads = sorted(str(row["body"])[:5] for row in rows)
        assert heads == [f"{number:05d}" for number in range(COUNT)]
        for queue_id in range(QUEUES):
            offsets = [row["queueOffset"] for row in rows if row["queueId"] == queue_id]
            assert offsets == list(range(len(offsets)))
        shown = anchor.mqadmin(
            jars,
            tmp_path / "java",
            "queryMsgByKey",
            "-n",
            cluster.namesrv,
            "-t",
            TOPIC,
            "-k",
            "key77",
        )
        assert "K77" in shown
        driver.send(cluster.namesrv, TOPIC, prefix="java-", count=50)
    finally:
        ending = signal.SIGTERM if how == "stopped" else signal.SIGKILL
        cluster.broker_server.stop(ending)
        cluster.kill()
    again = opened(root)
    assert again.report is not None
    assert again.report.crashed is (how == "killed")
    records = [record for record in assert_consistent(again) if record.topic == TOPIC]
    assert len(records) == COUNT + 50
    for number, record in enumerate(records[:COUNT]):
        assert record.body == body_of(number)
    again.close()


@pytest.mark.runs("4.9.7")
def test_java_steps_over_what_was_left_out(jars: Path, driver: Driver, tmp_path: Path) -> None:
    """Fillers in the log and holes in the queues, in the place of damaged records."""
    root = tmp_path / "ours"
    store = opened(root)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps(TOPICS))
    fill(store)
    records = log_of(store)
    store.close()
    file_bytes = int(anchor.TEST_SETTINGS["mappedFileSizeCommitLog"])
    second = [n for n, record in enumerate(records) if record.physical_offset >= file_bytes]
    # The first of a file; one alone; several in a row; the last of its queue.
    lost = [second[0], second[200], *second[300:305], COUNT - 63]
    path = root / "commitlog" / f"{file_bytes:020d}"
    with path.open("r+b") as file:
        for number in lost:
            file.seek(records[number].physical_offset - file_bytes + 4)
            file.write(b"????")
    reading = Rebuild(log_from=0)
    settings = replace(config_of(root), damage_policy=DamagePolicy.SKIP)
    repaired = open_store(settings, SystemClock(), PosixFiles(), reading)
    assert repaired.report is not None
    assert len(repaired.report.damages) == 4
    repaired.close()
    left = [number for number in range(COUNT) if number not in lost]
    # Without a clean stop it reads the log instead of the queues' ends: without a checkpoint all of
    # it. By one it reads the newest file alone, if what it sent before was flushed in time, and its
    # index, made again, forgets the keys of the older.
    for how in ("stopped", "killed"):
        if how == "killed":
            (root / "abort").touch()
            (root / "checkpoint").unlink()
        cluster = anchor.JavaCluster(jars, tmp_path / how, store=root)
        cluster.start()
        try:
            facts = driver.ask("pullAll", namesrv=cluster.namesrv, topic=TOPIC)
            rows = cast("list[dict[str, Json]]", cast("dict[str, Json]", facts)["messages"])
            found = sorted(int(str(row["body"])[:5]) for row in rows if "java" not in str(row))
            assert found == left
            for row in rows:
                head = str(row["body"])[:5]
                if head.isdigit():
                    assert row["queueOffset"] == records[int(head)].queue_offset
            driver.send(cluster.namesrv, TOPIC, prefix=f"java-{how}-", count=20)
        finally:
            cluster.broker_server.stop(signal.SIGTERM)
            cluster.kill()
    again = opened(root)
    bodies = [record.body for record in log_of(again) if record.topic == TOPIC]
    assert len(bodies) == len(left) + 40
    assert_consistent(again, lost=[records[number] for number in lost])
    again.close()
