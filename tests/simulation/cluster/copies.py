"""Comparison of a slave with its master: bytes of the log, queues and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.message.record import MAGIC_BLANK, PREFIX, BadRecord, decode_one
from cometmq.protocol.fastjson import parse_json
from cometmq.replication.slave import first_difference
from cometmq.store.layout import QUEUE_ENTRY_BYTES
from tests.simulation.faults.disk import Disk, File, Folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.broker.app import Broker
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from tests.simulation.cluster.history import Place

_LOG: Final = "/store/commitlog"


def log_files(disk: Disk) -> Iterator[tuple[int, File]]:
    """Yield the files of the log on a disk, with the physical offset at which each begins."""
    folder = disk.find(_LOG)
    if isinstance(folder, Folder):
        for name in sorted(folder.names):
            node = folder.names[name]
            if isinstance(node, File):
                yield int(name), node


def parting(one: Disk, two: Disk, end: int) -> int:
    """Return the offset at which the logs on two disks begin to differ.

    Compare up to the physical offset ``end``; return -1 if they are equal.
    """
    others = dict(log_files(two))
    for base, file in log_files(one):
        other = others.get(base)
        size = min(end - base, file.size)
        if other is None or size <= 0:
            continue
        size = min(size, other.size)
        ours, theirs = file.data[:size], other.data[:size]
        if ours != theirs:
            return base + first_difference(bytes(ours), bytes(theirs))
    return -1


class Stored(NamedTuple):
    """Fields of a log record that the simulation compares."""

    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    body: str
    store_ms: int = 0

    @property
    def place(self) -> Place:
        """Topic, queue id and queue offset."""
        return self.topic, self.queue_id, self.queue_offset


def stored(disk: Disk, end: int, start: int = 0) -> list[Stored]:
    """Return all records of the log on a disk, up to the first incomplete one.

    ``start`` and ``end`` are physical offsets.
    """
    found: list[Stored] = []
    for base, file in log_files(disk):
        at, stop = 0, min(file.size, end - base)
        while stop - at >= PREFIX.size:
            size, magic = PREFIX.unpack_from(file.data, at)
            if magic == MAGIC_BLANK:
                break
            if base + at < start:
                at += size
                continue
            try:
                record = decode_one(bytes(file.data[at : min(at + max(size, 0), stop)]))
            except BadRecord:
                return found
            body = record.body.decode(errors="replace")
            found.append(
                Stored(
                    base + at,
                    record.topic,
                    record.queue_id,
                    record.queue_offset,
                    body,
                    record.store_ms,
                )
            )
            at += size
    return found


async def differences(master: Broker, slave: Broker) -> list[str]:
    """Return the differences between a slave and its master, as texts."""
    found = []
    ends = master.store.written_offset, slave.store.written_offset
    if ends[0] != ends[1]:
        found.append(f"logs end at {ends[0]} and {ends[1]}")
    queues = _queues(master), _queues(slave)
    if queues[0] != queues[1]:
        found.append(f"queues are {_unlike(*queues)}")
    for what, theirs, ours in zip(
        ("topics", "groups", "consumer offsets", "delay offsets"),
        await _tables(master),
        await _tables(slave),
        strict=True,
    ):
        if isinstance(theirs, bytes) and theirs != ours:  # may differ in order only
            theirs, ours = (parse_json(each)["offsetTable"] for each in (theirs, ours))
        if theirs != ours:
            found.append(f"{what} are {_unlike(theirs, ours)}")
    return found


def _queues(broker: Broker) -> dict[str, Any]:
    """Return the bounds and entries of every queue that is not empty.

    The offset at which an empty queue continues is not in the log, so a slave that copied the log
    from its start may not know of the queue.
    """
    found = {}
    for topic, queue_ids in broker.store.topics().items():
        for queue_id in queue_ids:
            queue = broker.store.find_queue(topic, queue_id)
            if queue is not None and queue.max_offset > queue.min_offset:
                found[f"{topic}-{queue_id}"] = queue.min_offset, queue.max_offset, _entries(queue)
    return found


def _entries(queue: ConsumeQueue) -> bytes:
    found, at = b"", queue.min_offset
    while at < queue.max_offset:
        piece = queue.read(at, queue.max_offset - at)
        found += piece
        at += len(piece) // QUEUE_ENTRY_BYTES
    return found


async def _tables(broker: Broker) -> tuple[Any, ...]:
    """Return the tables, or their texts."""
    topics, consumers = broker.topics.table, broker.consumers
    configs = {topic: topics.get(topic) for topic in topics}
    offsets = await consumers.offsets.text()
    return configs, consumers.groups.values(), offsets, broker.scheduled.delay.text()


def _unlike(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    names = [name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)]
    name = min(names)
    return f"not the same, as {name}: {theirs.get(name)} and {ours.get(name)}"[:400]
