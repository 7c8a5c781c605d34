"""Checks of a store after a start, whatever happened before; each function checks one promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.message.record import MAGIC_BLANK, PREFIX, Record, decode_one
from cometmq.store.index import ENTRY, ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, file_bytes
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES, index_hash, topic_prefix
from cometmq.store.messagestore import MessageStore
from tests.simulation.store.history import Entry, Fate, History, Message, QueueKey

_KEYS_LOOKED_UP = 8

#: Records decoded before, by physical offset: the bytes and the record.
Decoded = dict[int, tuple[bytes, Record]]
Places = list[tuple[int, Entry]]


@dataclass(frozen=True, slots=True)
class Held:
    """Records of the log of a started store: in order, and by the names of the messages."""

    store: MessageStore
    records: list[Record]
    names: dict[bytes, Record]


def name_of(body: bytes) -> bytes:
    """Return the name at the beginning of a message's body."""
    return body.partition(b":")[0]


def look(store: MessageStore, decoded: Decoded) -> Held:
    """Read the log; check that its records are whole, ordered by time, and stored once."""
    records: list[Record] = []
    names: dict[bytes, Record] = {}
    last_ms = 0
    for file in store.log.segments.files:
        at, view = file.base, file.view
        while at < min(file.end, store.log.written):
            rest = view[at - file.base :]
            size, magic = PREFIX.unpack_from(rest)
            if magic == MAGIC_BLANK and size == len(rest):
                break
            record = _record(at, bytes(rest[:size]), decoded)
            assert record.physical_offset == at
            assert record.store_ms >= last_ms, f"{at} was stored earlier than the record before it"
            name = name_of(record.body)
            assert name not in names, f"{name!r} is stored twice"
            names[name] = record
            records.append(record)
            last_ms = record.store_ms
            at += size
    assert store.state.last_ms >= last_ms, (
        f"the store continues at {store.state.last_ms}, before {last_ms}"
    )
    return Held(store, records, names)


def _record(at: int, raw: bytes, decoded: Decoded) -> Record:
    known = decoded.get(at)
    if known is None or known[0] != raw:
        known = decoded[at] = raw, decode_one(raw)
    return known[1]


def check_messages(held: Held, history: History, *, lossy: bool) -> None:
    """Check that acknowledged messages are there, as sent, and that lost ones stay lost.

    ``lossy`` allows the loss of the end of the log that was never reported as durable.
    """
    start, end = held.store.log.segments.start, held.store.log.written
    assert start <= history.log_start, f"the log begins at {start}, above {history.log_start}"
    assert end >= history.durable, f"the log ends at {end}, {history.durable} was durable"
    for name, message in history.messages.items():
        record = held.names.get(name)
        if record is not None:
            _compare(message, record)
            continue
        if message.fate is Fate.ACKNOWLEDGED and message.phys >= start:
            assert lossy, f"{name!r} was acknowledged at {message.phys} and is lost"
            assert message.phys >= end, f"{name!r} is lost, but later records are not"
        if message.phys < 0 or message.phys >= start:
            message.fate = Fate.LOST
    unknown = held.names.keys() - history.messages.keys()
    assert not unknown, f"messages were never sent: {unknown}"


def _compare(message: Message, record: Record) -> None:
    name = message.name
    assert message.fate is not Fate.LOST, f"{name!r} was gone and came back"
    assert record.body == message.body, f"{name!r} has another body"
    assert record.properties == message.properties, f"{name!r} has other properties"
    assert (record.topic, record.queue_id) == (message.topic, message.queue_id)
    if message.phys >= 0:
        assert record.physical_offset == message.phys, f"{name!r} moved"
    if message.offset >= 0:
        assert record.queue_offset == message.offset, f"{name!r} moved in its queue"


def check_queues(held: Held, history: History) -> dict[QueueKey, list[tuple[int, bytes]]]:
    """Check that queues match the log, without gaps; return the offsets and names of each."""
    expected: dict[QueueKey, list[tuple[int, Entry, bytes]]] = {
        (topic, queue_id): []
        for topic, queue_ids in held.store.topics().items()
        for queue_id in queue_ids
    }
    for name, record in held.names.items():
        message = history.messages[name]
        if not record.sys_flag & 4:
            key = message.topic, message.queue_id
            entries = expected.setdefault(key, [])
            offset = record.queue_offset
            if entries and offset != entries[-1][0] + 1:
                assert offset <= entries[-1][0], f"{key} lacks offsets before {offset}"
                assert message.topic in history.remade, f"{key} has offset {offset} twice"
                entries.clear()
            entries.append((offset, message.entry(record), name))
    for topic in {topic for topic, _ in expected}:
        queues = {key: each for key, each in expected.items() if key[0] == topic}
        found = {key: entries_of(held.store, key) for key in queues}
        # A deleted topic must be gone or present as a whole.
        possible = [
            end
            for end in history.ends.get(topic, [0])
            if all(_holds(found[key], _since(end, each), history) for key, each in queues.items())
        ]
        assert possible, f"{found}, the log {queues}, deleted at {history.ends.get(topic)}"
    return {key: [(offset, name) for offset, _, name in found] for key, found in expected.items()}


def _since(end: int, entries: list[tuple[int, Entry, bytes]]) -> Places:
    return [(offset, entry) for offset, entry, _ in entries if entry[0] >= end]


def _holds(found: Places, wanted: Places, history: History) -> bool:
    if found == wanted:
        return True
    # Log files whose removal was lost may be back, without the entries of their records.
    skipped = max(len(wanted) - len(found), 0)
    old = wanted[:skipped]
    return found == wanted[skipped:] and all(entry[0] < history.log_start for _, entry in old)


def entries_of(store: MessageStore, key: QueueKey) -> Places:
    """Return all entries of a queue with their offsets; check that none is a hole."""
    queue = store.find_queue(*key)
    if queue is None:
        return []
    assert queue.next_offset == queue.max_offset
    found: Places = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        raw = queue.read(offset, 100)
        assert raw, f"{key} has no entry {offset}, it ends at {queue.max_offset}"
        assert len(raw) % QUEUE_ENTRY_BYTES == 0
        for entry in QUEUE_ENTRY.iter_unpack(raw):
            found.append((offset, entry))
            offset += 1
    holes = [offset for offset, entry in found if entry[1] == HOLE_SIZE]
    assert not holes, f"{key} has holes at {holes}"
    return found


def check_index(held: Held, history: History) -> None:
    """Check that the index finds every record by its keys, once.

    It may lack records from before the deletion of their topic, even if a crash undid the deletion,
    and records in log files that came back because their removal was lost.
    """
    store = held.store
    store.dispatcher.write_index(store.clock.wall_ms())
    if store.dispatcher.problem is not None:
        return  # entries stay in memory until the disk accepts them
    by_key: dict[tuple[str, str], list[int]] = {}
    for name, record in held.names.items():
        message = history.messages[name]
        for key in message.keys:
            by_key.setdefault((message.topic, key), []).append(record.physical_offset)
    indexed = _indexed(store)
    for (topic, key), wanted in by_key.items():
        found = indexed.get(index_hash(topic_prefix(topic), key), [])
        if history.faults:
            # An entry whose write failed half-way is written again.
            found = sorted(set(found))
        sure = max(history.remade.get(topic, 0), history.log_start)
        wanted = [place for place in wanted if place >= sure or place in found]
        assert found == wanted, f"{topic}#{key}: {found}, not {wanted}"
    for topic, key in list(by_key)[-_KEYS_LOOKED_UP:]:
        found = indexed.get(index_hash(topic_prefix(topic), key), [])
        chained = store.index.query(topic, key, 1 << 30, 0, 1 << 60)
        low = store.log.segments.start
        kept = [place for place in reversed(chained) if place >= low]
        assert kept == found, f"{topic}#{key}: {kept} by its slot, {found} in all"


def _indexed(store: MessageStore) -> dict[int, list[int]]:
    """Return the physical offsets of each hash in the index, oldest first, within the log."""
    found: dict[int, list[int]] = {}
    slots, most = store.config.max_hash_slot_num, store.config.max_index_num
    low = store.log.segments.start
    for file in store.index.files:
        handle = store.files.open(file.path)
        raw = store.files.pread(handle, file_bytes(slots, most), 0)
        store.files.close(handle)
        first = HEADER_BYTES + slots * SLOT_BYTES + ENTRY_BYTES
        entries = raw[first : first + (file.count - 1) * ENTRY_BYTES]
        for key_hash, place, _, _ in ENTRY.iter_unpack(entries):
            if place >= low:
                found.setdefault(key_hash, []).append(place)
    return found


def check_seen(
    held: Held,
    history: History,
    queues: Mapping[QueueKey, list[tuple[int, bytes]]],
    *,
    lossy: bool,
) -> None:
    """Check that messages that a consumer has read are still at their offsets."""
    for key, seen in history.seen.items():
        there = dict(queues.get(key, ()))
        queue = held.store.find_queue(*key)
        low = queue.min_offset if queue is not None else 0
        for offset, name in list(seen.items()):
            message = history.messages[name]
            if lossy and message.fate is Fate.LOST and there.get(offset) != name:
                # Also below the queue's first message: the queue may restart at the next start.
                del seen[offset]
                continue
            if offset < low or there.get(offset) == name:
                continue
            if message.phys < held.store.log.segments.start:
                continue
            raise AssertionError(f"{key} {offset} was {name!r}, is {there.get(offset)!r}")


def check_commits(held: Held, history: History, loaded: Mapping[QueueKey, int]) -> None:
    """Check that offsets are not older than the saved ones, nor beyond the queue's end."""
    for key in loaded.keys() | history.commits.keys():
        offset = loaded.get(key, -1)
        commits = history.commits[key]
        assert offset in commits.values[commits.saved :], f"{key}: {offset}, not {commits}"
        queue = held.store.find_queue(*key)
        end = queue.max_offset if queue is not None else 0
        may_be_beyond = history.shortened or key[0] in history.remade
        assert may_be_beyond or offset <= end, f"{key} was read up to {offset}, ends at {end}"
