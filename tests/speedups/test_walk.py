"""Walks over a log: both cores find the same records in any bytes, those that record.py finds."""

from __future__ import annotations

import random
from array import array
from struct import Struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cometmq.message.record import (
    BadRecord,
    Record,
    head_of,
    host_flags,
    iter_spans,
    pack,
    record_of,
    takes_queue_slot,
)
from cometmq.speedups.plain.hashing import index_hashes, java_hash
from cometmq.speedups.plain.walk import WALKED_COLUMNS, Walked
from cometmq.store.dispatch import code_and_keys
from cometmq.store.layout import QUEUE_ENTRY, SCHEDULE_TOPIC
from tests.conftest import cores
from tests.speedups.test_batches import PAIRS, TEXTS

ROW = Struct(f"={WALKED_COLUMNS}q")
BASE = 1 << 40
V4, V6 = bytes(range(8)), bytes(range(20))
DELAYS_MS = (1_000, 5_000, 60_000)
HOSTS = [(V4, V4), (V6, V4), (V4, V6), (V6, V6)]


def packed(
    place: int,
    topic: str = "orders",
    properties: bytes = b"TAGS\1red\2UNIQ_KEY\1k1",
    *,
    queue_id: int = 1,
    queue_offset: int = 7,
    sys_flag: int = 0,
    body: bytes = b"body",
    hosts: tuple[bytes, bytes] = (V4, V4),
    store_ms: int = 1_800_000_000_000,
) -> bytes:
    """A record that begins at a place."""
    born, store = hosts
    return pack(
        Record(
            0, 0, queue_id, 3, queue_offset, place, sys_flag, 5, born, store_ms, store, 0, 0, body,
            topic, properties,
        )
    )  # fmt: skip


def as_v2(record: bytes, place: int) -> bytes:
    """The same record with a topic length of two bytes."""
    ((_, head, body_at, body_end, topic_at, topic_end),) = iter_spans(record)
    grown = bytearray(record[:body_end] + b"\0" + record[body_end:])
    grown[0:8] = (len(grown)).to_bytes(4, "big") + b"\xda\xa3\x20\xab"
    assert head[6] == place
    assert body_at < topic_at < topic_end
    return bytes(grown)


def log_of(*changes: dict[str, Any]) -> bytes:
    """Records one behind the other from BASE on."""
    log = b""
    for change in changes:
        is_v2 = change.pop("v2", False)
        record = packed(BASE + len(log), **change)
        log += as_v2(record, BASE + len(log)) if is_v2 else record
    return log


def rows_of(walked: Walked) -> list[tuple[int, ...]]:
    return list(ROW.iter_unpack(walked.rows))


def walked(core: SimpleNamespace, data: bytes, start: int = 0, **changes: Any) -> Walked:
    settings: dict[str, Any] = {"check_crc": True} | changes
    base = settings.pop("base", BASE)
    found: Walked = core.walk(data, start, len(data), base, DELAYS_MS, **settings)
    return found


def expected(data: bytes, base: int | None = BASE) -> tuple[list[object], int]:
    """What is known of each record, and where the first begins that is none."""
    found: list[object] = []
    stop = 0
    try:
        for span in iter_spans(data, base=base):
            record = record_of(data, span)
            code, keys = code_and_keys(
                record.topic, record.sys_flag, record.store_ms, record.properties, DELAYS_MS
            )
            # The hash is of the bytes as Python decodes them.
            prefix = java_hash(record.topic + "#")
            hashes = index_hashes([prefix] * len(keys), keys)
            found.append(
                (
                    span[0], record.size_bytes, (record.topic, record.queue_id),
                    record.queue_offset, code, record.store_ms, record.sys_flag, tuple(hashes),
                    span[2:],
                )
            )  # fmt: skip
            stop = span[0] + record.size_bytes
    except BadRecord as error:
        stop = error.position
    return found, stop


def seen(walked: Walked) -> tuple[list[object], int]:
    """The same from a walk."""
    hashes = memoryview(walked.hashes).cast("I").tolist()
    found: list[object] = [
        (
            row[0], row[1], walked.queues[row[2]][:2], *row[3:7],
            tuple(hashes[row[7] : row[7] + row[8]]), row[10:],
        )
        for row in rows_of(walked)
    ]  # fmt: skip
    return found, walked.stop


def test_each_record_is_a_row(core: SimpleNamespace) -> None:
    log = log_of(
        {}, {"topic": "ü漢", "properties": b"KEYS\1a  b\xe6\xbc\xa2 \2KEYS\1\2UNIQ_KEY\1u"},
        {"hosts": (V6, V4)}, {"hosts": (V4, V6)}, {"hosts": (V6, V6), "v2": True}, {"v2": True},
        {"sys_flag": 0xC}, {"sys_flag": 0x4}, {"properties": b""}, {"body": b""},
        {"queue_id": 2}, {"properties": b"TAGS\1a\1b\2TAGS\1"},
    )  # fmt: skip
    found = walked(core, log)
    assert seen(found) == expected(log)
    assert (found.row_count, found.stop, found.is_open) == (12, len(log), False)
    assert found.queues == [("orders", 1, True), ("ü漢", 1, True), ("orders", 2, True)]
    assert [row[8] for row in rows_of(found)][6] == 0
    assert found.begin(1) == found.end(0)
    assert found.store_ms(1) == 1_800_000_000_000


@pytest.mark.parametrize(
    ("level", "code"),
    [
        (b"1", 1_000), (b"3", 60_000), (b"77", 60_000), (b"000000002", 5_000), (b"0", 0),
        (b"0000000002", 0), (b"-1", 0), (b"", 0), (b"1x", 0), (b"\xd9\xa1", 0),
        (b"99999999999999999999", 60_000),
    ],
)  # fmt: skip
def test_a_delayed_message_has_its_time_of_delivery(
    core: SimpleNamespace, level: bytes, code: int
) -> None:
    log = log_of({"topic": SCHEDULE_TOPIC, "properties": b"TAGS\1a\2DELAY\1" + level})
    assert seen(walked(core, log)) == expected(log)
    (row,) = rows_of(walked(core, log))
    assert row[4] == (1_800_000_000_000 + code if code else ord("a"))
    (row,) = rows_of(core.walk(log, 0, len(log), BASE, (), check_crc=True))
    assert row[4] == (1_800_000_001_000 if code else ord("a"))


def test_a_time_of_delivery_may_be_any_number(core: SimpleNamespace) -> None:
    last_ms = (1 << 63) - 1
    log = log_of({"topic": SCHEDULE_TOPIC, "properties": b"DELAY\x011", "store_ms": last_ms})
    (row,) = rows_of(walked(core, log))
    assert row[4] == -(1 << 63) + 999


@pytest.mark.parametrize(
    "change",
    [
        {"queue_id": -1}, {"queue_offset": -1}, {"topic": ""}, {"topic": "."}, {"topic": ".."},
        {"topic": "a/b"}, {"topic": "a\0"}, {"topic": "a�"}, {"properties": b"a\1b\2\0"},
    ],
)  # fmt: skip
def test_what_no_broker_stores_is_odd(core: SimpleNamespace, change: dict[str, Any]) -> None:
    log = log_of({}, dict(change), {"topic": "..."}, {"topic": "ä"})
    assert [row[9] for row in rows_of(walked(core, log))] == [0, 1, 0, 0]
    raw = bytearray(log_of({"topic": "xy"}))
    raw[raw.index(b"xy")] = 0xFF
    assert [row[9] for row in rows_of(walked(core, bytes(raw)))] == [1]


def test_a_filler_is_in_no_queue(core: SimpleNamespace) -> None:
    log = log_of(
        {"sys_flag": 4, "properties": b"", "topic": "-"}, {"sys_flag": 4, "topic": "a"},
        {"properties": b"", "topic": "b"},
    )  # fmt: skip
    assert walked(core, log).queues == [("-", 1, False), ("a", 1, True), ("b", 1, True)]


def test_a_walk_keeps_to_its_part(core: SimpleNamespace) -> None:
    log = log_of({}, {}, {})
    size = len(log) // 3
    found: Walked = core.walk(log, size, len(log) - 1, BASE, (), check_crc=False)
    assert (found.row_count, found.begin(0), found.stop) == (1, size, 2 * size)
    for start in (0, size, len(log)):
        empty = core.walk(log, start, start, BASE, (), check_crc=True)
        assert empty == Walked(b"", b"", [], start, False)
        assert core.check_records(log, start, start, BASE) == start
    for start, stop in ((-1, 1), (2, 1), (0, len(log) + 1)):
        with pytest.raises(ValueError, match="outside the data"):
            core.walk(log, start, stop, BASE, (), check_crc=True)
        with pytest.raises(ValueError, match="outside the data"):
            core.check_records(log, start, stop, BASE)
    assert core.walk(b"", 0, 0, None, (), check_crc=True).row_count == 0


def test_a_body_is_compared_with_its_crc_when_that_is_asked_for(core: SimpleNamespace) -> None:
    log = bytearray(log_of({"body": b"x" * 100}))
    log[90] ^= 1
    data = bytes(log)
    assert walked(core, data).row_count == core.check_records(data, 0, len(data), BASE) == 0
    assert walked(core, data, check_crc=False).row_count == 1
    log[8:12] = bytes(4)
    assert walked(core, bytes(log)).row_count == 1


def test_very_many_queues_are_taken_in_parts(core: SimpleNamespace) -> None:
    log = b""
    for number in range(2_500):
        log += packed(BASE + len(log), f"t{number % 1_250}", b"", queue_id=number // 1_250)
    at, found, is_open, walks = 0, [], True, 0
    while is_open:
        part = walked(core, log, at)
        found += seen(part)[0]
        at, is_open, walks = part.stop, part.is_open, walks + 1
    assert walks == 3
    assert (found, at) == expected(log)
    # With just as many as there is room for, the end is the end.
    part = walked(core, log[: walked(core, log).stop])
    assert (part.row_count, part.is_open) == (1_024, False)


LOG = log_of(
    {"body": b"ab"}, {"topic": "t", "properties": b"KEYS\1a b"}, {"hosts": (V6, V6), "v2": True}
)


def test_every_flipped_bit_and_every_cut(core: SimpleNamespace) -> None:
    rows = 0
    for bit in range(len(LOG) * 8):
        raw = bytearray(LOG)
        raw[bit // 8] ^= 1 << bit % 8
        data = bytes(raw)
        found = seen(walked(core, data))
        assert found == expected(data)
        assert core.check_records(data, 0, len(data), BASE) == found[1]
        assert seen(walked(core, data, base=None)) == expected(data, None)
        rows += len(found[0])
    assert rows > len(LOG) * 8
    for cut in range(len(LOG)):
        assert seen(walked(core, LOG[:cut])) == expected(LOG[:cut])
        assert seen(walked(core, LOG[cut:], base=BASE + cut)) == expected(LOG[cut:], BASE + cut)


RECORDS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["t", "orders", "ü漢", SCHEDULE_TOPIC, ".", "a/b"]),
        "properties": st.one_of(
            PAIRS, TEXTS, st.sampled_from([b"DELAY\x012", b"DELAY\x019\2TAGS\1a", b"\0"])
        ),
        "queue_id": st.sampled_from([0, 1, 2, -1]),
        "queue_offset": st.integers(-1, 9),
        "sys_flag": st.sampled_from([0, 0, 4, 8, 0xC, 1]),
        "body": st.binary(max_size=90),
        "hosts": st.sampled_from(HOSTS),
        "v2": st.booleans(),
    }
)
TAKEN = {"rows": 0, "logs": 0}


@given(st.lists(RECORDS, max_size=12), st.randoms(use_true_random=False), st.integers(0, 3))
@example([], random.Random(0), 0)
def test_both_cores_walk_alike(
    records: list[dict[str, Any]], chance: random.Random, flips: int
) -> None:
    raw = bytearray(log_of(*map(dict, records)))
    for _ in range(flips if raw else 0):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    data = bytes(raw)
    found = [walked(core, data) for core in cores()]
    assert all(each == found[0] for each in found)
    assert seen(found[0]) == expected(data)
    TAKEN["rows"] += found[0].row_count
    TAKEN["logs"] += 1
    start = chance.randrange(len(data) + 1)
    for check_crc, base in ((False, BASE), (True, None)):
        found = [
            core.walk(memoryview(data), start, len(data), base, (), check_crc=check_crc)
            for core in cores()
        ]
        assert all(each == found[0] for each in found)


def test_most_of_what_was_compared_was_walked_over() -> None:
    if not TAKEN["logs"]:
        test_both_cores_walk_alike()
    assert TAKEN["rows"] > TAKEN["logs"]


@given(st.binary(max_size=400))
def test_both_cores_refuse_the_same(data: bytes) -> None:
    found = [walked(core, data) for core in cores()]
    assert all(each == found[0] for each in found)


# ---- rows of a walk in a write batch


def queue_of(core: SimpleNamespace, number: int, next_offset: int = 7) -> Any:
    queue = core.QueueState()
    queue.queue_id = number
    queue.next_offset = queue.max_offset = next_offset
    queue.tail = bytearray()
    return queue


def adopted(
    core: SimpleNamespace, log: bytes, queues: list[Any], **changes: Any
) -> tuple[Any, int]:
    batch = core.WriteBatch()
    found = walked(core, log)
    return batch, batch.adopt(found.rows, found.hashes, queues, BASE, **changes)


def test_rows_of_a_walk_are_dispatched(core: SimpleNamespace) -> None:
    log = log_of({}, {"sys_flag": 4, "queue_offset": 0}, {"queue_id": 2}, {"queue_offset": 8})
    queue = queue_of(core, 1)
    batch, stop = adopted(core, log, [queue, None])
    assert (stop, batch.count, batch.end, batch.last_ms) == (
        4,
        3,
        BASE + len(log),
        1_800_000_000_000,
    )
    size = len(log) // 4
    assert batch.unnamed_queues(queue.number + 1) == [queue]
    assert batch.unnamed_queues(queue.number) == []
    assert len(batch.entry_rows()) == 2 * 36
    assert memoryview(batch.index_columns()[1]).cast("q").tolist() == [
        BASE, BASE + size, BASE + 3 * size
    ]  # fmt: skip
    assert batch.dispatch(1 << 20) == ([queue], (3, 3 * size), [queue], [], True)
    code = java_hash("red")
    assert bytes(queue.tail) == QUEUE_ENTRY.pack(BASE, size, code) + QUEUE_ENTRY.pack(
        BASE + 3 * size, size, code
    )
    assert (queue.max_offset, queue.next_offset) == (9, 7)


def test_a_row_out_of_order_is_passed(core: SimpleNamespace) -> None:
    queue = queue_of(core, 1)
    batch, _ = adopted(core, log_of({}, {"queue_offset": 9}, {"queue_offset": 8}), [queue])
    *_, in_order = batch.dispatch(1 << 20)
    assert not in_order
    assert batch.pass_row()[:2] == (queue, 9)
    *_, in_order = batch.dispatch(1 << 20)
    assert in_order
    assert (queue.max_offset, batch.dispatched_count) == (9, 3)
    with pytest.raises(IndexError):
        batch.pass_row()


def test_rows_of_a_start(core: SimpleNamespace) -> None:
    log = log_of({"queue_offset": 5}, {}, {"queue_offset": 8}, {"queue_offset": 10})
    size = len(log) // 4
    queue = queue_of(core, 1)
    begins = [BASE + size]
    batch, stop = adopted(core, log, [queue], begins=begins, in_order=True, with_keys=False)
    assert (stop, batch.count, queue.next_offset) == (3, 2, 9)
    batch, stop = adopted(core, log, [queue], begins=begins)
    assert (stop, batch.count, queue.next_offset) == (4, 4, 9)
    assert [row[1] for row in batch.rows_from(0)] == [-1, 7, 8, 10]
    batch, stop = adopted(core, log, [queue], first=1, limit=BASE + 3 * size)
    assert (stop, batch.count) == (3, 2)
    odd = log_of({}, {"queue_id": -1})
    assert adopted(core, odd, [queue_of(core, 1), None], in_order=True)[1] == 1
    assert adopted(core, odd, [queue_of(core, 1), None])[1] == 2
    # What takes no place now is not known to follow on a queue that has nothing yet.
    empty = queue_of(core, 1, 0)
    assert adopted(core, log, [empty], begins=[1 << 62], in_order=True)[1] == 4
    assert adopted(core, log, [empty], begins=[0], in_order=True)[1] == 0


def test_rows_that_share_hashes_have_room_for_each_of_them(core: SimpleNamespace) -> None:
    found = walked(core, log_of({}))
    columns = array("q", found.rows)
    columns[7], columns[8] = 0, 1_000  # first hash, and number of hashes
    batch = core.WriteBatch()
    rows, hashes = columns.tobytes() * 500, array("I", range(1_000)).tobytes()
    assert batch.adopt(rows, hashes, [queue_of(core, 1)], BASE) == 500
    found_hashes, _, _ = batch.index_columns()
    assert bytes(found_hashes) == array("q", range(1_000)).tobytes() * 500


def test_rows_of_another_walk_are_refused(core: SimpleNamespace) -> None:
    found = walked(core, log_of({}, {"queue_id": 2}))
    queue = queue_of(core, 1)
    for rows, hashes, queues in (
        (found.rows, found.hashes, [queue]),
        (found.rows, found.hashes[:4], [queue, queue]),
        (found.rows, b"", [queue, queue]),
    ):
        batch = core.WriteBatch()
        with pytest.raises(ValueError, match="another walk"):
            batch.adopt(rows, hashes, queues, BASE)
        assert batch.count == 0
    batch = core.WriteBatch()
    with pytest.raises(ValueError, match="begins"):
        batch.adopt(found.rows, found.hashes, [queue, queue], BASE, begins=[0])
    assert batch.adopt(b"", b"", [], BASE) == 0
    assert batch.dispatch(0) == ([], (0, 0), [], [], True)


@given(
    st.lists(RECORDS, max_size=12), st.integers(0, 12), st.booleans(), st.booleans(),
    st.lists(st.one_of(st.none(), st.sampled_from([0, BASE + 150, 1 << 62])), max_size=3),
    st.sampled_from([1 << 62, BASE + 300]),
)  # fmt: skip
def test_both_cores_adopt_alike(
    records: list[dict[str, Any]], first: int, with_keys: bool, in_order: bool,
    begins: list[int | None], limit: int,
) -> None:  # fmt: skip
    log = log_of(*map(dict, records))
    outcomes = []
    for core in cores():
        found = walked(core, log)
        queues = [queue_of(core, number, number) for number in range(len(found.queues))]
        given_queues = [
            None if number < len(begins) and begins[number] is None else queue
            for number, queue in enumerate(queues)
        ]
        froms = [0 if begin is None else begin for begin in begins] + [0] * len(queues)
        batch = core.WriteBatch()
        stop = batch.adopt(
            found.rows, found.hashes, given_queues, BASE, first, limit, with_keys=with_keys,
            begins=froms[: len(queues)] if begins else None, in_order=in_order,
        )  # fmt: skip
        rows = [(queues.index(row[0]), *row[1:]) for row in batch.rows_from(0)]
        columns, entries = batch.index_columns(), batch.entry_rows()
        *_, is_done = batch.dispatch(1 << 20)
        while not is_done:
            batch.pass_row()
            *_, is_done = batch.dispatch(1 << 20)
        outcomes.append(
            (
                stop, rows, columns, entries, batch.count, batch.size_bytes,
                [(queue.next_offset, queue.max_offset, bytes(queue.tail)) for queue in queues],
            )
        )  # fmt: skip
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_the_layout_of_heads_is_that_of_records() -> None:
    """The walk has its own; this is where a change of the other would be seen."""
    assert head_of(0).size == 88
    assert head_of(host_flags(V6, V6)).size == 88 + 24
    assert takes_queue_slot(8)
    assert not takes_queue_slot(4)
