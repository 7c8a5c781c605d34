"""Stores that a real Java 4.9.7 broker wrote: opened, read, rebuilt, written to."""

import shutil
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.message.model import from_record
from cometmq.message.record import iter_decode
from cometmq.store.config import StoreConfig
from cometmq.store.index import ENTRY, HEADER, HEADER_BYTES
from cometmq.store.messagestore import MessageStore
from cometmq.store.read.reader import ReadStatus
from cometmq.store.recovery.opening import open_store
from tests.golden import library
from tests.store.stores import STORE_HOST, assert_consistent, log_of, put

LATER_MS = 1_900_000_000_000


def opened(name: str, root: Path) -> MessageStore:
    settings = library.stores()[name]["settings"]
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=settings["mappedFileSizeCommitLog"],
        mapped_file_size_consume_queue=settings["mappedFileSizeConsumeQueue"],
        max_hash_slot_num=settings["maxHashSlotNum"],
        max_index_num=settings["maxIndexNum"],
    )
    store = open_store(config, VirtualClock(wall_ms=LATER_MS))
    store.store_host = STORE_HOST
    return store


def queue_bytes(root: Path) -> dict[str, bytes]:
    """Every queue file by its place."""
    folder = root / "consumequeue"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def index_entries(path: Path) -> tuple[list[tuple[int, int, int]], bytes]:
    """(hash, physical offset, previous entry) of each entry, and the slots, of an index file."""
    raw = path.read_bytes()
    count = HEADER.unpack(raw[:HEADER_BYTES])[5]
    slots_end = HEADER_BYTES + 4 * 100
    entries = list(ENTRY.iter_unpack(raw[slots_end : slots_end + 20 * count]))[1:]
    return [(entry[0], entry[1], entry[3]) for entry in entries], raw[HEADER_BYTES:slots_end]


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_every_message_is_served_as_the_java_broker_served_it(tmp_path: Path, name: str) -> None:
    store = opened(name, library.unpack_store(name, tmp_path))
    assert store.report is not None
    assert store.report.crashed is (name == "killed")
    assert not store.report.torn
    assert_consistent(store)
    for topic, facts in library.stores()[name]["topics"].items():
        for queue_id, limits in facts["queues"].items():
            queue = store.find_queue(topic, int(queue_id))
            assert (queue.min_offset, queue.max_offset) if queue else (
                limits["min"], limits["max"],
            ) == (0, 0)  # fmt: skip
        for fact in facts["messages"]:
            result = store.read(topic, fact["queueId"], fact["queueOffset"], 1)
            assert result.status is ReadStatus.FOUND
            (record,) = iter_decode(result.chunks[0], fact["commitLogOffset"])
            message = from_record(record)
            assert message.size_bytes == fact["storeSize"]
            assert message.store_ms == fact["storeTimestamp"]
            assert message.reconsume_times == fact["reconsumeTimes"]
            assert message.message_id == fact["msgId"]
            assert message.properties.get("KEYS") == fact.get("keys")
            assert len(message.body) == fact["bodySize"]
            assert message.body[:64] == fact["body"].encode()
    store.close()


def test_a_clean_stop_is_believed(tmp_path: Path) -> None:
    store = opened("clean", library.unpack_store("clean", tmp_path))
    assert store.report is not None
    assert (store.report.reason, store.report.records) == ("clean stop by another broker", 0)
    store.close()


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_queues_and_index_made_again_are_the_java_broker_s(tmp_path: Path, name: str) -> None:
    root = library.unpack_store(name, tmp_path)
    queues = queue_bytes(root)
    index = [index_entries(path) for path in sorted((root / "index").iterdir())]
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    opened(name, root).close()
    assert queue_bytes(root) == queues
    again = [index_entries(path) for path in sorted((root / "index").iterdir())]
    assert again == index


@pytest.mark.parametrize("name", ["clean", "killed"])
async def test_keys_are_found_in_the_java_broker_s_index(tmp_path: Path, name: str) -> None:
    store = opened(name, library.unpack_store(name, tmp_path))
    for topic, facts in library.stores()[name]["topics"].items():
        for fact in facts["messages"][::7]:
            found = await store.query_index(topic, fact["msgId"], 64, 0, LATER_MS)
            places = [next(iter_decode(raw)).physical_offset for raw in found.records]
            assert fact["commitLogOffset"] in places
    store.close()


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_the_store_goes_on(tmp_path: Path, name: str) -> None:
    root = library.unpack_store(name, tmp_path)
    store = opened(name, root)
    before = len(log_of(store))
    offset = store.queue("golden", 0).max_offset
    for number in range(200):
        assert put(store, "golden", 0, bytes(500), keys=(f"n{number}",))[1] == offset + number
        store.commit()
    store.close()
    again = opened(name, root)
    assert len(assert_consistent(again)) == before + 200
    again.close()
