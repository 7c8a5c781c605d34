"""Small stores for tests: made, filled, crashed, and compared with their own log."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cometmq.core.clock import VirtualClock
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.batch import SharedFields
from cometmq.message.ids import pack_host
from cometmq.message.record import Record, iter_decode
from cometmq.message.tombstone import FILLER_KEY
from cometmq.store.config import StoreConfig
from cometmq.store.dispatch import row_of
from cometmq.store.files import Files, PosixFiles
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY
from cometmq.store.log.scan import Scan
from cometmq.store.messagestore import MessageStore
from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.read.reader import ReadStatus
from cometmq.store.recovery.opening import open_store

#: How a hole is compared, wherever it says that its record was.
HOLE_ENTRY = (0, HOLE_SIZE, 0)
BORN = pack_host("10.0.0.9", 4321)
STORE_HOST = pack_host("10.0.0.1", 10911)
SMALL = StoreConfig(
    mapped_file_size_commit_log=16_384,
    mapped_file_size_consume_queue=20 * 40,
    max_hash_slot_num=64,
    max_index_num=100,
)


def config(root: Path, **changes: object) -> StoreConfig:
    """Small files under ``root``."""
    return replace(SMALL, store_path_root_dir=str(root), **changes)  # type: ignore[arg-type]


def opened(
    root: Path, clock: VirtualClock | None = None, files: Files | None = None, **changes: object
) -> MessageStore:
    """A store under ``root``."""
    store = open_store(config(root, **changes), clock or VirtualClock(), files)
    store.store_host = STORE_HOST
    return store


class OtherBoot(PosixFiles):
    """The machine has been started again."""

    def boot_id(self) -> str:
        return "another"


def run_round(store: MessageStore, *, thorough: bool = False) -> None:
    """One round of upkeep, with everything synced when ``thorough``."""
    if thorough:
        store.flusher.sync_now()
        assert isinstance(store.clock, VirtualClock)
        store.clock.advance(store.config.flush_consume_queue_thorough_interval)
    asyncio.run(store.maintenance.flush_entries())


def put(
    store: MessageStore,
    topic: str = "t",
    queue_id: int = 0,
    body: bytes = b"body",
    *,
    tag: str = "",
    keys: tuple[str, ...] = (),
    sys_flag: int = 0,
    more: dict[str, str] | None = None,
) -> tuple[int, int]:
    """Append one message without committing it."""
    found = dict(more or {})
    if tag:
        found[props.TAGS] = tag
    if keys:
        found[props.UNIQ_KEY] = keys[0]
    if keys[1:]:
        found[props.KEYS] = " ".join(keys[1:])
    return store.append(
        store.queue(topic, queue_id),
        body,
        props.encode(found),
        flag=0,
        sys_flag=sys_flag,
        born_ms=1,
        born_host=BORN,
        tag_code=tag_code(tag),
        keys=keys,
    )


def shared(store: MessageStore, properties: bytes = b"") -> SharedFields:
    """What the messages of a batch have in common."""
    return SharedFields(0, 1, BORN, store.store_host, 0, properties)


def fill(
    store: MessageStore, count: int, *, queues: int = 3, turn: int = 7, first: int = 0
) -> None:
    """Append numbered messages, some of them longer, in turns."""
    for number in range(first, first + count):
        body = b"%06d" % number + bytes(number * 37 % 200)
        put(store, "t", number % queues, body, tag=f"g{number % 4}", keys=(f"k{number}", "all"))
        if number % turn == turn - 1:
            store.commit()
    store.commit()


def copied(root: Path, name: str) -> Path:
    """The directory as a ``kill -9`` leaves it now: a copy beside it."""
    target = root.parent / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root, target)
    return target


def log_of(store: MessageStore) -> list[Record]:
    """Every record of the log."""
    return list(Scan(store.log.segments, store.log.segments.start))


def bodies(store: MessageStore, topic: str, queue_id: int, offset: int = 0) -> list[bytes]:
    """The bodies that a consumer of a queue reads from ``offset`` on."""
    found: list[bytes] = []
    while True:
        result = store.read(topic, queue_id, offset, 32)
        if result.status is not ReadStatus.FOUND:
            return found
        for chunk in result.chunks:
            found += [record.body for record in iter_decode(chunk)]
        offset = result.next_offset


def entries_of(queue: ConsumeQueue) -> list[tuple[int, int, int]]:
    """Every entry of a queue."""
    found: list[tuple[int, int, int]] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        raw = queue.read(offset, 32)
        assert raw, (queue.topic, queue.queue_id, offset)
        found += QUEUE_ENTRY.iter_unpack(raw)
        offset = queue.min_offset + len(found)
    return found


def assert_consistent(store: MessageStore, lost: Sequence[Record] = ()) -> list[Record]:
    """Queues and index hold exactly what the log holds; gives the log's records.

    Where ``lost`` records were, queues may have holes.
    """
    records = log_of(store)
    gone_places = {record.physical_offset for record in lost}
    gone = {(record.topic, record.queue_id, record.queue_offset) for record in lost}
    expected: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    by_key: dict[tuple[str, str], set[int]] = {}
    for record in records:
        queue = store.queue(record.topic, record.queue_id)
        row = row_of(record, queue, store.delays_ms)
        if row[1] >= 0:
            place = (record.topic, record.queue_id)
            entries = expected.setdefault(place, [])
            while (*place, queue.min_offset + len(entries)) in gone:
                entries.append(HOLE_ENTRY)
            assert row[1] == queue.min_offset + len(entries)
            entries.append(row[2:5])
        for key in row[6]:
            by_key.setdefault((record.topic, key), set()).add(record.physical_offset)
    for topic, ids in store.topics().items():
        for queue_id in ids:
            queue = store.queue(topic, queue_id)
            entries = entries_of(queue)
            if not lost:
                entries = [entry for entry in entries if entry[1] != HOLE_SIZE]
            entries = [HOLE_ENTRY if entry[1] == HOLE_SIZE else entry for entry in entries]
            assert entries == expected.get((topic, queue_id), [])
            assert queue.next_offset == queue.max_offset
    store.dispatcher.write_index(store.clock.wall_ms())
    for (topic, key), places in by_key.items():
        found = store.index.query(topic, key, 10_000, 0, 1 << 62)
        assert places <= set(found)
        assert not gone_places.intersection(found)
        assert len(found) == len(set(found)) or key in ("twice", FILLER_KEY)
    return records
