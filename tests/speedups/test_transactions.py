"""Transactions taken many at a time: both cores take the same of any stream, and give the same."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.message.properties import decode
from cometmq.message.record import decode_one, iter_decode
from cometmq.speedups.plain.hashing import java_hash
from tests.conftest import cores
from tests.speedups.test_sends import (
    BODY_MAX_BYTES,
    BORN,
    FILE_BYTES,
    HOST,
    HOST_TEXT,
    PIECES,
    PROPERTIES,
    SUFFIX,
    framed,
    header_of,
    known_queues,
)

NOW_MS = 1_800_000_000_000
PREPARED = "UNIQ_KEY\x01k1\x02WAIT\x01true\x02TAGS\x01red\x02TRAN_MSG\x01true\x02PGROUP\x01g"
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
COMMIT, ROLLBACK = "8", "12"


class World:
    """A core with a topic of two queues and the two topics of transactions, and its log."""

    def __init__(self, core: SimpleNamespace, limit: int = FILE_BYTES) -> None:
        self.core = core
        self.limit = limit
        self.queues = {b"t": [self.queue("t", 0), self.queue("t", 1)]}
        self.open = core.OpenTransactions()
        self.open.half_queue = self.queue(HALF_TOPIC, 0)
        self.open.op_queue = self.queue(OP_TOPIC, 0)
        self.open.immunity_ms, self.open.due_ms = 6_000, 7_000
        self.open.planned_end = 6
        self.log = bytearray(64)  # something lies before
        self.batch = core.TransactionBatch(HOST, FILE_BYTES)

    def queue(self, topic: str, number: int) -> Any:
        queue = self.core.QueueState()
        raw = topic.encode()
        queue.next_offset = queue.max_offset = 5
        queue.queue_id = number
        queue.tail = bytearray()
        queue.topic_tail = bytes((len(raw),)) + raw
        queue.topic_hash = java_hash(topic + "#") & 0xFFFFFFFF
        return queue

    def append(self, data: bytes, *, at: int = 0, admit: bool = True) -> tuple[int, int, int]:
        """Take what is plain in `data`; what was taken before is in memory."""
        log = (bytes(self.log), 0, 64, len(self.log))
        taken, at, state, packed = self.batch.append_all(
            data, at, known_queues(self.core, self.queues), BORN, SUFFIX, BODY_MAX_BYTES,
            len(self.log), self.limit, NOW_MS, 100, 1 << 20,
            self.open if admit else None, log if admit else None,
        )  # fmt: skip
        self.log += packed
        return taken, at, state

    def prepare(self, body: bytes = b"half", **changed: str) -> tuple[int, int]:
        """Take a half message; gives its queue offset and its place."""
        offset, place = self.open.half_queue.next_offset, len(self.log)
        header = header_of({"f": "4", "i": PREPARED} | changed)
        assert self.append(framed(header, body))[0] == 1
        return offset, place

    def end(
        self, half: tuple[int, int], kind: str = COMMIT, *, flag: int = 0, **changed: str
    ) -> int:
        """The rows that an end of it adds."""
        count = self.batch.count
        self.append(framed(end_header(half, kind, flag, **changed), b""))
        return int(self.batch.count - count)

    @property
    def records(self) -> list[Any]:
        return [*iter_decode(bytes(self.log[64:]))]

    def outcome(self) -> object:
        """All that can be seen."""
        batch, count, known = self.batch, self.batch.count, self.open
        queues = [*self.queues[b"t"][:2], known.half_queue, known.op_queue]
        rows = [(queues.index(row[0]), *row[1:]) for row in batch.rows_from(0)]
        seen = (
            bytes(self.log), count, batch.size_bytes, batch.end_count, rows, batch.index_columns(),
            batch.answers(0, count, PIECES), batch.opaques(0, count), batch.entry_rows(),
            [queue.next_offset for queue in queues], self.halves(),
        )  # fmt: skip
        grown, sums, *_, in_order = batch.dispatch(1 << 20)
        return seen, [queues.index(queue) for queue in grown], sums, in_order

    def halves(self) -> object:
        known = self.open
        return known.planned_end, [
            (
                at, half.physical_offset, half.group, half.stored_ms, half.immunity_ms,
                half.due_ms, half.checks, half.ending,
            )
            for at, half in known.halves.items()
        ]  # fmt: skip


def end_header(half: tuple[int, int], kind: str = COMMIT, flag: int = 0, **changed: str) -> bytes:
    fields = {
        "commitLogOffset": str(half[1]), "commitOrRollback": kind, "fromTransactionCheck": "false",
        "msgId": "U1", "producerGroup": "g", "tranStateTableOffset": str(half[0]),
        "transactionId": "U1",
    } | changed  # fmt: skip
    head = {
        "code": 37, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": 9,
        "serializeTypeCurrentRPC": "JSON", "version": 399,
    }  # fmt: skip
    return json.dumps(head, separators=(",", ":")).encode()


def test_a_half_message_waits_with_its_place(core: SimpleNamespace) -> None:
    world = World(core)
    assert world.prepare() == (5, 64)
    (record,) = world.records
    assert (record.topic, record.queue_id, record.queue_offset) == (HALF_TOPIC, 0, 5)
    assert (record.sys_flag, record.prepared_offset, record.body) == (0, 0, b"half")
    assert record.properties.decode() == (
        "UNIQ_KEY\x01k1\x02TAGS\x01red\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02"
        "REAL_TOPIC\x01t\x02REAL_QID\x011\x02CLUSTER\x01c"
    )
    half = world.open.halves[5]
    assert (half.physical_offset, half.group, half.stored_ms) == (64, "g", NOW_MS)
    assert (half.immunity_ms, half.due_ms, half.ending) == (6_000, 7_000, False)
    assert world.open.planned_end == 5
    answer = b'{"msgId":"%b%016X","q":"1","o":"5","id":7}' % (HOST_TEXT.encode(), 64)
    assert world.batch.answers(0, 1, PIECES) == framed(answer, b"")
    assert world.batch.opaques(0, 1) == [(7, False, 1, 5, [64], False)]


def test_a_commit_delivers_what_waited_and_says_so(core: SimpleNamespace) -> None:
    world = World(core)
    half = world.prepare(j="3", h="9", f="5")
    assert world.end(half) == 2
    waiting, copy, op = world.records
    assert (copy.topic, copy.queue_id, copy.queue_offset) == ("t", 1, 5)
    assert (copy.sys_flag, copy.prepared_offset, copy.flag, copy.reconsume_times) == (9, 64, 9, 3)
    assert (copy.body, copy.properties) == (waiting.body, waiting.properties)
    assert (copy.born_ms, copy.born_host) == (waiting.born_ms, waiting.born_host)
    assert (op.topic, op.body, op.queue_offset) == (OP_TOPIC, b"5", 5)
    assert (op.sys_flag, op.prepared_offset, decode(op.properties)) == (0, 0, {"TAGS": "d"})
    assert (op.born_host, op.store_host, op.born_ms, op.store_ms) == (HOST, HOST, NOW_MS, NOW_MS)
    assert [row[4] for row in world.batch.rows_from(0)] == [
        java_hash("red"), java_hash("red"), java_hash("d"),
    ]  # fmt: skip
    assert len(world.batch.index_columns()[0]) == 16
    assert world.batch.answers(1, 3, PIECES) == framed(b'{"id":9}', b"")
    assert world.batch.end_count == 1


def test_a_transaction_ends_once(core: SimpleNamespace) -> None:
    world = World(core)
    half = world.prepare()
    assert world.end(half, ROLLBACK) == 1
    assert world.end(half, ROLLBACK) == world.end(half) == 0
    assert world.batch.settle(0, 2, stored=False) == (5, [5])
    assert world.end(half) == 2
    assert world.batch.settle(2, 4, stored=True) == (6, [5])
    assert not world.open.halves
    assert world.end(half) == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"commitLogOffset": "65"}, {"commitLogOffset": "064"}, {"tranStateTableOffset": "6"},
        {"producerGroup": "G"}, {"producerGroup": "gg"}, {"producerGroup": ""}, {"msgId": ""},
        {"commitOrRollback": "0"}, {"commitOrRollback": "4"}, {"commitOrRollback": "-8"},
        {"fromTransactionCheck": "1"}, {"fromTransactionCheck": "é"}, {"msgId": "\\"},
        {"commitLogOffset": "9223372036854775808"}, {"flag": 1},
    ],
)  # fmt: skip
def test_odd_ends_are_left(core: SimpleNamespace, changed: dict[str, Any]) -> None:
    world = World(core)
    half = world.prepare()
    assert world.end(half, **changed) == 0
    assert not world.open.halves[5].ending
    assert world.end(half) == 2


@pytest.mark.parametrize("name", ["producerGroup", "msgId", "commitLogOffset", "commitOrRollback"])
def test_an_end_without_a_field_is_left(core: SimpleNamespace, name: str) -> None:
    world = World(core)
    header = end_header(world.prepare())
    assert world.append(framed(header.replace(name.encode(), b"x" + name.encode()), b""))[0] == 0
    field = b'"%b":' % name.encode()
    assert world.append(framed(header.replace(b'"transactionId":', field), b""))[0] == 0
    assert world.append(framed(header, b"a body"))[0] == 0
    assert world.append(framed(header, b""))[0] == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"f": "8"}, {"f": "12"}, {"f": "16"}, {"b": "none"}, {"e": "2"},
        {"i": PREPARED.replace("true\x02PG", "TRUE\x02PG")}, {"i": PREPARED + "\x02PGROUP\x01g"},
        {"i": PREPARED + "\x02DELAY\x011"}, {"i": PREPARED + "\x02REAL_TOPIC\x01t"},
        {"i": PREPARED + "\x02REAL_QID\x011"}, {"i": PREPARED + "\x02TRAN_MSG\x01true"},
        {"i": PREPARED + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x011"},
        {"i": PREPARED + "\x02TIMER_DELAY_SEC\x011"}, {"i": PREPARED + "\x02x\x01" + "y" * 32_700},
    ],
)  # fmt: skip
def test_odd_half_messages_are_left(core: SimpleNamespace, changed: dict[str, str]) -> None:
    world, plain = World(core), framed(header_of())
    odd = framed(header_of({"f": "4", "i": PREPARED} | changed))
    assert world.append(plain + odd)[:3] == (1, len(plain), 1)
    assert not world.open.halves


def test_without_a_known_queue_or_leave_nothing_of_transactions_is_taken(
    core: SimpleNamespace,
) -> None:
    world = World(core)
    half = world.prepare()
    frames = framed(header_of({"i": PREPARED})) + framed(end_header(half), b"") * 2
    plain = framed(header_of())
    assert world.append(plain + frames + plain, admit=False) == (1, len(plain), 3)
    world.open.op_queue, ops = None, world.open.op_queue
    assert world.end(half) == 0
    world.open.op_queue, world.open.half_queue = ops, None
    assert world.append(frames)[0] == 0
    world.open = core.OpenTransactions()
    with pytest.raises(ValueError, match="of another broker"):
        world.append(frames)


def test_only_what_is_in_memory_and_whole_is_copied(core: SimpleNamespace) -> None:
    for at in (*range(12), *range(20, 36), 39, 84, 87, 88, 92, 93):
        world = World(core)
        half = world.prepare()
        world.log[64 + at] ^= 0x20
        assert (at, world.end(half)) == (at, 0)
    world = World(core)
    half = world.prepare()
    frame, log = framed(end_header(half), b""), bytes(world.log)
    for begin, end in ((65, len(log)), (64, len(log) - 1), (64, 80), (64, 64), (0, 0)):
        found = world.batch.append_all(
            frame, 0, known_queues(core, world.queues), BORN, SUFFIX, 100, 500, FILE_BYTES,
            NOW_MS, 9, 1 << 20, world.open, (log, 0, begin, end),
        )  # fmt: skip
        assert found[0] == 0
    cut = world.batch.append_all(
        frame, 0, known_queues(core, world.queues), BORN, SUFFIX, 100, 500, FILE_BYTES,
        NOW_MS, 9, 1 << 20, world.open, (log[:-1], 0, 64, len(log)),
    )  # fmt: skip
    assert cut[0] == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"REAL_TOPIC", b"real_topic"), (b"\x01t\x02", b"\x01s\x02"), (b"QID\x011", b"QID\x012"),
        (b"QID\x011", b"QID\x01x"), (b"TAGS\x01red", b"TIMER_DEL"),
    ],
)  # fmt: skip
def test_a_half_message_that_goes_another_way(
    core: SimpleNamespace, old: bytes, new: bytes
) -> None:
    world = World(core)
    half = world.prepare()
    assert world.log.count(old) == 1
    world.log[:] = world.log.replace(old, new)
    assert world.end(half) == 0
    world.log[:] = world.log.replace(new, old)
    world.queues[b"t"][1].delay_ms = 5
    assert world.end(half) == 0
    assert world.end(half, ROLLBACK) == 1


def test_ends_at_the_end_of_a_file(core: SimpleNamespace) -> None:
    sizes = World(core)
    assert sizes.end(sizes.prepare()) == 2
    copy_bytes, op_bytes = [record.size_bytes for record in sizes.records[1:]]
    for room, expected in (
        (copy_bytes + op_bytes + 8, (1, 0)), (copy_bytes + op_bytes + 7, (0, 1)),
        (copy_bytes + 8, (0, 1)), (copy_bytes + 7, (0, -1)),
    ):  # fmt: skip
        world = World(core)
        half = world.prepare()
        world.limit = len(world.log) + room
        taken, _, state = world.append(framed(end_header(half), b""))
        assert (taken, state) == expected
        assert world.open.halves[5].ending == bool(taken)
    world = World(core)
    half = world.prepare()
    world.limit = len(world.log) + op_bytes + 7
    assert world.append(framed(end_header(half, ROLLBACK), b""))[2] == -1
    world.limit += 1
    assert world.append(framed(end_header(half, ROLLBACK), b""))[0] == 1


def test_what_is_taken_back_was_never_there(core: SimpleNamespace) -> None:
    world = World(core)
    kept = world.prepare()
    before = world.halves()
    world.batch = core.TransactionBatch(HOST, FILE_BYTES)
    gone = world.prepare()
    assert world.end(gone) == world.end(kept) == 2
    world.batch.take_back()
    assert world.halves() == before
    assert world.open.half_queue.next_offset == 6
    assert [queue.next_offset for queue in world.queues[b"t"][:2]] == [5, 5]
    assert world.batch.settle(0, 5, stored=False) == (5, [6, 5])
    world.open.planned_end = 9
    world.prepare()
    assert world.open.planned_end == 6


def test_what_fails_in_the_middle_takes_nothing(core: SimpleNamespace) -> None:
    world = World(core)
    half = world.prepare()
    before = world.halves()
    world.open.op_queue.topic_tail = None if core.name == "compiled" else 0
    frames = framed(header_of()) + framed(header_of({"i": PREPARED}))
    frames += framed(end_header(half), b"")
    with pytest.raises(TypeError):
        world.append(frames)
    assert (world.halves(), world.batch.count) == (before, 1)
    assert world.open.half_queue.next_offset == 6


def test_an_empty_batch_settles_nothing(core: SimpleNamespace) -> None:
    batch = core.TransactionBatch(HOST, FILE_BYTES)
    assert batch.settle(0, 0, stored=True) == (-1, [])
    assert batch.append_all(
        b"", 0, core.KnownQueues(), BORN, SUFFIX, 1, 0, FILE_BYTES, 0, 1, 1,
        core.OpenTransactions(), (b"", 0, 0, 9),
    ) == (0, 0, 0, b"")  # fmt: skip
    with pytest.raises(IndexError):
        batch.settle(0, 1, stored=True)
    batch.take_back()


def test_one_way_ends_are_not_answered(core: SimpleNamespace) -> None:
    world = World(core)
    half = world.prepare()
    assert world.end(half, COMMIT, flag=2) == 2
    assert world.batch.answers(1, 3, PIECES) == b""


STEP = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(["0", "1"])),
    st.tuples(st.just("half"), st.sampled_from(["0", "1"]), st.one_of(st.just(""), PROPERTIES)),
    st.tuples(st.just("end"), st.integers(0, 6), st.sampled_from([COMMIT, COMMIT, ROLLBACK, "0"])),
    st.tuples(st.just("wrong"), st.integers(0, 6), st.sampled_from(["g", "h", "ü"])),
    st.tuples(st.just("settle"), st.booleans()),
    st.tuples(st.just("damage"), st.integers(0, 2_000), st.integers(0, 255)),
    st.tuples(st.just("flip"), st.integers(0, 2_000), st.integers(0, 255)),
    st.tuples(st.just("back")),
)


def test_both_cores_take_the_same_of_any_transactions() -> None:
    ended = 0

    @settings(max_examples=5 * settings().max_examples)
    @given(st.lists(STEP, min_size=1, max_size=14))
    def same(steps: list[tuple[Any, ...]]) -> None:
        nonlocal ended
        found = []
        for core in cores():
            world = World(core)
            outcomes = [_step(world, step) for step in steps]
            ended += world.batch.end_count
            found.append((outcomes, world.outcome()))
        assert found[1:] == found[:1] * (len(found) - 1)

    same()
    # Or it would prove nothing.
    assert ended > settings().max_examples // 4


def _step(world: World, step: tuple[Any, ...]) -> object:
    kind, *values = step
    halves = [(at, half.physical_offset) for at, half in world.open.halves.items()]
    if kind == "settle":
        return world.batch.settle(0, world.batch.count, stored=values[0])
    if kind == "back":
        world.batch.take_back()
        del world.log[64:]
        for queue in (*world.queues[b"t"][:2], world.open.half_queue, world.open.op_queue):
            queue.next_offset = queue.max_offset = 5
        world.batch = world.core.TransactionBatch(HOST, FILE_BYTES)
        world.open.halves.clear()
        return world.halves()
    if kind == "flip":
        if values[0] < len(world.log):
            world.log[values[0]] = values[1]
        return None
    if kind == "send":
        frames = framed(header_of({"e": values[0]}))
    elif kind == "half":
        text = PREPARED + "\x02" * bool(values[1]) + values[1]
        frames = framed(header_of({"e": values[0], "f": "4", "i": text}), b"half")
    elif kind == "damage":
        half = halves[0] if halves else (5, 64)
        data = bytearray(framed(header_of({"f": "4", "i": PREPARED})))
        data += framed(end_header(half), b"")
        data[values[0] % len(data)] = values[1]
        frames = bytes(data)
    else:
        half = halves[values[0] % len(halves)] if halves else (5, 64)
        ends, group = (values[1], "g") if kind == "end" else (COMMIT, values[1])
        frames = framed(end_header(half, ends, producerGroup=group), b"") * 2
    return world.append(frames), world.halves()


def test_a_copy_reads_as_its_half_message_does(core: SimpleNamespace) -> None:
    world = World(core)
    text = "KEYS\x01a b\x02UNIQ_KEY\x01漢\x02x\x01😀\x02TRAN_MSG\x01true"
    half = world.prepare(i=text)
    assert world.end(half) == 0  # its group is another one
    assert world.open.halves[5].group == ""
    half = world.prepare(i=text + "\x02PGROUP\x01g")
    assert world.end(half) == 2
    copy = decode_one(bytes(world.log), world.records[2].physical_offset)
    assert decode(copy.properties)["UNIQ_KEY"] == "漢"
    assert len(world.batch.index_columns()[0]) == 9 * 8
