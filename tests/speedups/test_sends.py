"""Plain sends: both cores take the same of any stream, give the same bytes for it, and send each
connection the same answers, whatever sockets take.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.message import batch
from cometmq.message.record import decode_one, iter_decode
from cometmq.net import eventloop
from cometmq.protocol.frame import lengths
from cometmq.speedups.plain.hashing import index_hashes, java_hash
from cometmq.store.layout import QUEUE_ENTRY
from tests.conftest import cores

HOST = bytes((127, 0, 0, 1, 0, 0, 0x1F, 0x90))
BORN = bytes((10, 0, 0, 7, 0, 0, 1, 2))
SUFFIX = b"CLUSTER\x01c"
BODY_MAX_BYTES = 4_096
FILE_BYTES = 1 << 20
#: Above the number of each queue.
ALL = 1 << 62
HOST_TEXT = HOST.hex().upper()
PIECES = (
    b'{"msgId":"' + HOST_TEXT.encode(), b'","q":"', b'","o":"', b'","id":', b"}", b'{"id":'
)  # fmt: skip
NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
    "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes",
    "batch", "bname",
)  # fmt: skip
FIELDS = {
    "a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000",
    "h": "0", "i": "UNIQ_KEY\x01k1\x02WAIT\x01true\x02TAGS\x01red", "j": "0", "k": "false",
    "m": "false",
}  # fmt: skip


def header_of(
    fields: dict[str, str] | None = None,
    *,
    code: int = 310,
    opaque: int = 7,
    flag: int = 0,
    escaped: bool = False,
) -> bytes:
    """A header as Java's clients write it, or with escapes for all that is not ASCII."""
    ext = FIELDS | (fields or {})
    if code == 10:
        ext = {NAMES[ord(name) - ord("a")]: value for name, value in ext.items()}
    head = {
        "code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON", "version": 399,
    }  # fmt: skip
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=escaped)
    return text.encode("utf-8", "surrogatepass")


def framed(header: bytes, body: bytes = b"body") -> bytes:
    return lengths(len(header), len(body)) + header + body


def known_queues(core: SimpleNamespace, queues: dict[bytes, list[Any]]) -> Any:
    """The table of all these queues."""
    known = core.KnownQueues()
    for each in queues.values():
        for queue in each:
            if queue is not None:
                known.add(queue)
    return known


@dataclass
class World:
    """A core with two topics, and what it made of streams."""

    core: SimpleNamespace
    queues: dict[bytes, list[Any]] = field(default_factory=dict)
    position: int = 0

    def __post_init__(self) -> None:
        for topic, count in (("t", 2), ("ü漢", 1)):
            self.queues[topic.encode()] = [self.queue(topic, number) for number in range(count)]
        self.batch = self.core.SendBatch(HOST, FILE_BYTES)

    def queue(self, topic: str, number: int) -> Any:
        """A queue of this core."""
        queue = self.core.QueueState()
        raw = topic.encode()
        queue.next_offset = queue.max_offset = 5
        queue.queue_id = number
        queue.tail = bytearray()
        queue.topic_tail = bytes((len(raw),)) + raw
        queue.topic_hash = java_hash(topic + "#") & 0xFFFFFFFF
        queue.is_dirty = False
        return queue

    def append(
        self, data: bytes, *, rows: int = 1_000, size: int = 1 << 30, known: Any = None
    ) -> tuple[int, int, int, bytes]:
        """Take what is plain at the begin of `data`."""
        found: tuple[int, int, int, bytes] = self.batch.append(
            data, 0, known or known_queues(self.core, self.queues), BORN, SUFFIX, BODY_MAX_BYTES,
            self.position, FILE_BYTES, 1_800_000_000_000, rows, size,
        )  # fmt: skip
        self.position += len(found[3])
        return found

    def outcome(self) -> object:
        """All that can be seen of a batch, then of its queues once it is dispatched."""
        batch, count = self.batch, self.batch.count
        known = [queue for queues in self.queues.values() for queue in queues if queue]
        rows = [(known.index(row[0]), *row[1:]) for row in batch.rows_from(0)]
        seen = (
            count, len(batch), batch.end, batch.last_ms, batch.size_bytes, rows,
            batch.index_columns(), batch.answers(0, count, PIECES), batch.opaques(0, count),
            batch.places(0, count), batch.message_ids(0, count, b"AB"), batch.entry_rows(),
            [known.index(queue) for queue in batch.unnamed_queues(ALL)],
        )  # fmt: skip
        grown, sums, soiled, due, in_order = batch.dispatch(60)
        return (
            seen,
            sums,
            [[known.index(queue) for queue in each] for each in (grown, soiled, due)],
            (in_order, batch.dispatched_count),
            [(queue.next_offset, queue.max_offset, bytes(queue.tail)) for queue in known],
            [(queue.put_count, queue.put_bytes, queue.put_times) for queue in known],
            [(queue.fifo_count, queue.fifo_bytes) for queue in known],
        )


def test_a_record_its_entry_its_keys_and_its_answer(core: SimpleNamespace) -> None:
    world = World(core)
    header = header_of(
        {"i": "UNIQ_KEY\x01ünique\x02KEYS\x01 a  b漢 \x02WAIT\x01true\x02TAGS\x01r\x02x\x01😀"}
    )
    taken, at, state, packed = world.append(framed(header, b"hello"))
    assert (taken, at, state) == (1, len(framed(header, b"hello")), 0)
    record = decode_one(packed)
    assert (record.body, record.topic, record.queue_id) == (b"hello", "t", 1)
    assert (record.queue_offset, record.physical_offset) == (5, 0)
    assert (record.born_host, record.store_host) == (BORN, HOST)
    assert (record.born_ms, record.store_ms) == (1_700_000_000_000, 1_800_000_000_000)
    assert record.properties.decode() == (
        "UNIQ_KEY\x01ünique\x02KEYS\x01 a  b漢 \x02TAGS\x01r\x02x\x01😀\x02CLUSTER\x01c"
    )
    hashes, places, times_ms = world.batch.index_columns()
    prefix = java_hash("t#") & 0xFFFFFFFF
    assert [*array("q", hashes)] == index_hashes([prefix] * 3, ["ünique", "a", "b漢"])
    assert [*array("q", places)] == [0, 0, 0]
    assert {*array("q", times_ms)} == {1_800_000_000_000}
    grown, sums, soiled, due, in_order = world.batch.dispatch(21)
    queue = world.queues[b"t"][1]
    assert (grown, sums, due) == ([queue], (1, len(packed)), [])
    assert (soiled, in_order, queue.max_offset, queue.next_offset) == ([queue], True, 6, 6)
    assert queue.tail == QUEUE_ENTRY.pack(0, len(packed), java_hash("r"))
    answer = f'{{"msgId":"{HOST_TEXT}{0:016X}","q":"1","o":"5","id":7}}'
    assert world.batch.answers(0, 1, PIECES) == framed(answer.encode(), b"")


def test_sends_with_a_sharding_key_are_counted(core: SimpleNamespace) -> None:
    world = World(core)
    queue = world.queues[b"t"][1]
    for properties in (
        "__SHARDINGKEY\x01a",
        "",
        "x\x01__SHARDINGKEY",
        "b\x01c\x02__SHARDINGKEY\x01d",
    ):
        taken, _, _, packed = world.append(framed(header_of({"i": properties})))
        assert taken == 1
    assert queue.fifo_count == 2
    assert len(packed) < queue.fifo_bytes < 2 * len(packed)


@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize(
    "changed",
    [
        {}, {"i": ""}, {"i": "WAIT\x01true"}, {"i": "a\x01b\x02"}, {"k": "true"},
        {"i": 'quote\x01"\\/\b\f\n\r\t'}, {"n": "broker-a"}, {"l": "16"}, {"f": "1"},
        {"b": "ü漢", "e": "0"}, {"g": "9223372036854775807"}, {"h": "2147483647"},
    ],
)  # fmt: skip
def test_plain_sends_are_taken(core: SimpleNamespace, code: int, changed: dict[str, str]) -> None:
    frame = framed(header_of(changed, code=code))
    assert World(core).append(frame)[:3] == (1, len(frame), 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"e": "-1"}, {"e": "01"}, {"e": "+1"}, {"e": ""},
        {"e": "1 "}, {"e": "2147483648"}, {"e": "9" * 30}, {"g": "9223372036854775808"},
        {"m": "true"}, {"m": ""}, {"k": "1"}, {"j": "null"}, {"f": "4"}, {"f": "16"}, {"a": "é"},
        {"i": "WAIT\x01false"}, {"i": "DELAY\x011"}, {"i": "TRAN_MSG\x01false"},
        {"i": "TIMER_DELAY_SEC\x011"}, {"i": "x\x01TIMER_DE"}, {"i": "a"}, {"i": "a\x01"},
        {"i": "\x01b"}, {"i": "a\x01b\x02\x02c\x01d"}, {"i": "a\x01b\x01c"}, {"i": "\x02"},
        {"i": "TAGS\x01a\x02TAGS\x01b"}, {"i": "KEYS\x01a\x02KEYS\x01b"},
        {"i": "WAIT\x01true\x02WAIT\x01true"}, {"i": "UNIQ_KEY\x01a\x02UNIQ_KEY\x01b"},
        {"i": "x\x01" + "y" * 32_760}, {"i": "KEYS\x01" + "k " * 65}, {"i": "x\x01\ud800"},
    ],
)  # fmt: skip
def test_odd_sends_are_left(core: SimpleNamespace, changed: dict[str, str]) -> None:
    odd, plain = framed(header_of(changed)), framed(header_of())
    world = World(core)
    assert world.append(plain + odd + odd + plain)[:3] == (1, len(plain), 2)
    assert world.batch.count == 1


@pytest.mark.parametrize("changed", [{"b": "unknown"}, {"e": "2"}, {"e": "3"}])
def test_a_queue_that_is_not_known_is_left_to_be_learned(
    core: SimpleNamespace, changed: dict[str, str]
) -> None:
    frame = framed(header_of(changed))
    assert World(core).append(frame * 3)[:3] == (0, 0, 1)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"{}", b"[]", b'{"code":310}', header_of()[:-1], header_of() + b" ",
        header_of().replace(b":310", b": 310"), header_of().replace(b":310", b":11"),
        header_of().replace(b'"flag":0', b'"flag":1'), header_of().replace(b'"flag":0', b'"new":0'),
        header_of().replace(b'"opaque":7', b'"opaque":7.0'),
        header_of().replace(b'"opaque":7', b'"opaque":-7'),
        header_of().replace(b'"opaque":7', b'"opaque":"7"'),
        header_of().replace(b'"version":399', b'"opaque":7'),
        header_of().replace(b'"a":"g",', b""), header_of().replace(b'"a":"g",', b'"b":"g",'),
        header_of().replace(b'"a":"g"', b'"a":1'),
        header_of().replace(b'"a":"g"', b'"a":"\\u0067"'),
        header_of().replace(b'"a":"g"', b'"a":"\x01"'), header_of().replace(b'"a"', b'"\\u0061"'),
        header_of().replace(b"UNIQ_KEY", b"\\xNIQ_KEY"), header_of().replace(b"UNIQ", b"\\u00g0"),
        header_of().replace(b"UNIQ", b"\xff\xfe"), header_of().replace(b"UNIQ", b"\xed\xa0\x80"),
        header_of().replace(b"UNIQ", b"\xc0\x80"),
        header_of().replace(b"UNIQ", b"\xf4\x90\x80\x80"),
    ],
)  # fmt: skip
def test_headers_that_only_the_tolerant_reader_judges(core: SimpleNamespace, header: bytes) -> None:
    frame = framed(header)
    assert World(core).append(frame + frame)[:3] == (0, 0, 2)


def test_frames_that_are_not_whole_or_no_frames(core: SimpleNamespace) -> None:
    whole = framed(header_of())
    for cut in range(len(whole)):
        assert World(core).append(whole + whole[:cut])[:3] == (1, len(whole), 0)
    binary = bytearray(whole)
    binary[4] = 1
    assert World(core).append(bytes(binary) + whole)[:3] == (0, 0, 1)
    assert World(core).append(b"\0\0\0\x04\0\0\0\x05" + whole)[:3] == (0, 0, 1)


def test_a_body_may_be_empty_and_not_over_the_limit(core: SimpleNamespace) -> None:
    for size, taken in ((0, 1), (BODY_MAX_BYTES, 1), (BODY_MAX_BYTES + 1, 0)):
        world = World(core)
        assert world.append(framed(header_of(), b"x" * size))[0] == taken
    short = core.SendBatch(b"short", FILE_BYTES)
    for made, at, host, problem in (
        (world.batch, -1, BORN, "outside the data"), (world.batch, 1, BORN, "outside the data"),
        (world.batch, 0, b"", "8 bytes"), (short, 0, BORN, "8 bytes"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=problem):
            made.append(b"", at, core.KnownQueues(), host, SUFFIX, 1, 0, FILE_BYTES, 0, 1, 1)


def test_the_checksum_is_right_for_bodies_of_any_length(core: SimpleNamespace) -> None:
    noise = random.Random(5).randbytes(2_000)
    for size in [*range(300), 511, 512, 513, 1_024, 1_999]:
        _, _, _, packed = World(core).append(framed(header_of(), noise[:size]))
        assert decode_one(packed).body == noise[:size]


def test_enough_is_taken_and_a_full_file_ends_it(core: SimpleNamespace) -> None:
    frame = framed(header_of())
    world = World(core)
    size = len(World(core).append(frame)[3])
    assert world.append(frame * 5, rows=2)[:3] == (2, 2 * len(frame), 0)
    assert world.append(frame * 5, size=size + 1)[:3] == (2, 2 * len(frame), 0)
    world.position = FILE_BYTES - 2 * size
    assert world.append(frame * 5)[:3] == (1, len(frame), -1)
    small = core.SendBatch(HOST, size)
    found = small.append(
        frame,
        0,
        known_queues(core, world.queues),
        BORN,
        SUFFIX,
        BODY_MAX_BYTES,
        0,
        size,
        0,
        9,
        1 << 30,
    )
    assert found == (0, 0, 1, b"")


def test_one_way_sends_are_stored_and_not_answered(core: SimpleNamespace) -> None:
    world = World(core)
    frames = [framed(header_of(opaque=number, flag=2 * (number % 2))) for number in range(4)]
    assert world.append(b"".join(frames))[0] == 4
    assert world.batch.answers(0, 4, PIECES).count(b"msgId") == 2
    assert [row[:2] for row in world.batch.opaques(1, 3)] == [(1, True), (2, False)]
    assert world.batch.answers(2, 2, PIECES) == b""
    for first, stop in ((-1, 2), (0, 5), (3, 2)):
        with pytest.raises(IndexError):
            world.batch.answers(first, stop, PIECES)
        with pytest.raises(IndexError):
            world.batch.opaques(first, stop)
        with pytest.raises(IndexError):
            world.batch.places(first, stop)
        with pytest.raises(IndexError):
            world.batch.message_ids(first, stop, b"")


def test_an_empty_batch_survives_everything(core: SimpleNamespace) -> None:
    batch = World(core).batch
    assert (batch.count, len(batch), batch.end, batch.last_ms) == (0, 0, 0, 0)
    assert batch.dispatch(0) == ([], (0, 0), [], [], True)
    assert batch.rows_from(0) == batch.rows_from(9) == []
    assert batch.index_columns() == (b"", b"", b"")
    assert batch.answers(0, 0, PIECES) == batch.message_ids(0, 0, b"A") == b""
    assert (batch.places(0, 0), batch.unnamed_queues(ALL), batch.entry_rows()) == ([], [], b"")
    batch.drop(set())
    batch.take_back()


def test_a_queue_that_lost_its_topic_takes_nothing(core: SimpleNamespace) -> None:
    world = World(core)
    known = known_queues(core, world.queues)
    world.queues[b"t"][1].topic_tail = b"\x01u"
    frame = framed(header_of()) if core.name == "compiled" else framed(header_of({"b": "v"}))
    assert world.append(frame, known=known)[:3] == (0, 0, 1)
    if core.name == "compiled":
        world.queues[b"t"][1].topic_tail = None
        assert world.append(frame, known=known)[:3] == (0, 0, 1)


def test_offsets_are_given_again_when_nothing_was_stored(core: SimpleNamespace) -> None:
    world = World(core)
    frames = framed(header_of()) * 3 + framed(header_of({"e": "0"}))
    assert world.append(frames)[0] == 4
    queues = world.queues[b"t"]
    assert [queue.next_offset for queue in queues[:2]] == [6, 8]
    world.batch.take_back()
    assert [queue.next_offset for queue in queues[:2]] == [5, 5]
    assert world.batch.dispatch(0) == ([], (0, 0), [], [], True)
    assert world.batch.index_columns() == (b"", b"", b"")
    assert world.batch.answers(0, 4, PIECES).count(b"msgId") == 4


def test_rows_of_queues_that_go_away_are_dropped(core: SimpleNamespace) -> None:
    world = World(core)
    world.append(framed(header_of()) + framed(header_of({"e": "0"})))
    first, second = world.queues[b"t"][:2]
    world.batch.drop({second})
    assert [row[0] for row in world.batch.rows_from(0)] == [first]
    assert world.batch.dispatch(20)[0::3] == ([first], [first])
    assert (len(first.tail), len(second.tail)) == (20, 0)
    assert len(world.batch.index_columns()[0]) == 8


def test_a_row_that_is_not_behind_its_queue_ends_the_dispatch(core: SimpleNamespace) -> None:
    world = World(core)
    world.append(framed(header_of({"e": "0"})) + framed(header_of()) * 2)
    late = world.queues[b"t"][1]
    late.max_offset = 4
    grown, _, soiled, _, in_order = world.batch.dispatch(1 << 20)
    assert (grown, soiled, in_order) == ([world.queues[b"t"][0]] * 1, [*grown], False)
    assert world.batch.dispatched_count == 1
    rest = world.batch.rows_from(world.batch.dispatched_count)
    assert [row[:2] for row in rest] == [(late, 5), (late, 6)]


def test_keys_of_an_index_file(core: SimpleNamespace) -> None:
    slots = memoryview(bytearray(4 * 4)).cast("i")
    columns = [
        array("q", column) for column in ([1, 5, 2, 1], [10, 20, 30, 40], [900, 2_000, 0, 5])
    ]
    raw, used = core.put_keys(slots, *columns, 1_000, 7)
    assert used == 2
    assert slots.tolist() == [0, 10, 9, 0]
    assert raw.hex(" ", 4) == (
        "00000001 00000000 0000000a 00000000 00000000 "
        "00000005 00000000 00000014 00000001 00000007 "
        "00000002 00000000 0000001e 00000000 00000000 "
        "00000001 00000000 00000028 00000000 00000008"
    )
    far = array("q", [1 << 50])
    one = array("q", [1])
    assert core.put_keys(slots, one, far, far, 0, 1)[0][12:16] == b"\x7f\xff\xff\xff"
    assert core.put_keys(slots, array("q"), array("q"), array("q"), 0, 1) == (b"", 0)
    with pytest.raises(ValueError, match="different lengths"):
        core.put_keys(slots, far, array("q"), far, 0, 1)


TEXT = st.text(
    st.one_of(
        st.sampled_from('\x01\x02aT漢😀ü "\\'),
        st.characters(codec="utf-8", exclude_categories=["Cs"]),
    ),
    max_size=30,
)
PAIR = st.tuples(
    st.sampled_from(
        ["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a", "b", "DELAY", "TIMER_X", "x漢", "__SHARDINGKEY"]
    ),
    st.one_of(st.sampled_from(["true", "false", "k1 k2", "😀"]), TEXT),
)
PROPERTIES = st.one_of(
    st.lists(PAIR, max_size=5, unique_by=lambda pair: pair[0]).map(
        lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    ),
    TEXT,
)
CHANGED = st.fixed_dictionaries(
    {"e": st.sampled_from(["0", "1"]), "i": PROPERTIES},
    optional={"b": st.sampled_from(["ü漢", "none"]), "g": st.integers().map(str), "k": TEXT},
)


BATCH_BODIES = st.lists(
    st.tuples(
        st.integers(-5, 5),
        st.binary(max_size=20),
        PROPERTIES.map(lambda text: text.encode("utf-8", "replace")),
    ),
    max_size=5,
).map(batch.pack)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Frames of sends, good and odd, some of them damaged or cut off."""
    frames = []
    for changed in draw(st.lists(st.one_of(st.just({}), CHANGED), min_size=1, max_size=6)):
        code = draw(st.sampled_from([10, 310, 320]))
        if code == 320 and draw(st.booleans()):
            own = draw(st.sampled_from(["a\x01b", "UNIQ_KEY\x01k", "a\x01b\x02UNIQ_KEY\x01k"]))
            changed = changed | {"i": own, "m": "true"}
        header = header_of(changed, code=code, escaped=draw(st.booleans()))
        body = draw(st.binary(max_size=40) if code != 320 else BATCH_BODIES)
        frames.append(framed(header, body))
    stream = bytearray(b"".join(frames))
    for at, value in draw(
        st.lists(st.tuples(st.integers(0, len(stream) - 1), st.integers(0, 255)), max_size=1)
    ):
        stream[at] = value
    return bytes(stream[: draw(st.integers(0, len(stream)))] if draw(st.booleans()) else stream)


def test_both_cores_take_the_same_of_any_stream() -> None:
    taken = batched = 0

    @settings(max_examples=5 * settings().max_examples)
    @given(streams())
    def same(stream: bytes) -> None:
        nonlocal taken, batched
        worlds = [World(core) for core in cores()]
        assert len({world.append(stream) for world in worlds}) == 1
        first, *others = [world.outcome() for world in worlds]
        assert others == [first] * len(others)
        taken += worlds[0].batch.count
        count = worlds[0].batch.count
        batched += sum(len(row[4]) > 1 for row in worlds[0].batch.opaques(0, count))

    same()
    # Or it would prove nothing.
    assert taken > settings().max_examples
    assert batched > settings().max_examples // 10


@pytest.mark.parametrize("odd_at", [0, 1, 15, 16, 17, 40, 99])
@pytest.mark.parametrize("broken", [b"", b"\1", framed(header_of({"b": "unknown"}))])
def test_many_frames_are_taken_up_to_the_first_odd_one(odd_at: int, broken: bytes) -> None:
    frames = [
        framed(header_of({"e": str(n % 2), "i": f"UNIQ_KEY\x01k{n}"}, opaque=n)) for n in range(100)
    ]
    if broken == b"\1":  # a binary header
        frame = frames[odd_at]
        frames[odd_at] = frame[:4] + broken + frame[5:]
    elif broken:
        frames[odd_at] = broken
    stream = b"".join(frames)
    worlds = [World(core) for core in cores()]
    for rows, size in ((1_000, 1 << 30), (1, 1 << 30), (20, 1 << 30), (1_000, 5_000)):
        assert len({world.append(stream, rows=rows, size=size) for world in worlds}) == 1
    first, *others = [world.outcome() for world in worlds]
    assert others == [first] * len(others)
    assert worlds[0].batch.count >= min(odd_at, 20)


def test_long_properties_of_many_frames(core: SimpleNamespace) -> None:
    texts = [("x" * 999 + "\x01" + "v" * (30_000 - n)) for n in range(20)]
    world = World(core)
    stream = b"".join(framed(header_of({"i": text})) for text in texts)
    taken, at, state, packed = world.append(stream)
    assert (taken, at, state) == (20, len(stream), 0)
    kept = [record.properties.decode() for record in iter_decode(packed, 0)]
    assert kept == [f"{text}\x02CLUSTER\x01c" for text in texts]


@given(stream=streams(), sizes=st.lists(st.integers(1, 400), min_size=1, max_size=30))
def test_pieces_of_a_stream_give_the_records_of_the_whole(stream: bytes, sizes: list[int]) -> None:
    compiled = cores()[-1]
    whole = World(compiled)
    expected = whole.append(stream)
    pieces, at, end, records = World(compiled), 0, 0, b""
    for size in (*sizes, len(stream)):
        end = min(end + size, len(stream))
        _, moved, state, packed = pieces.append(stream[at:end])
        at, records = at + moved, records + packed
        if state:
            break
    assert (at, records) == (expected[1], expected[3])
    assert len([*iter_decode(records, 0)]) == whole.batch.count >= expected[0]


def test_answers_with_other_pieces_are_refused(core: SimpleNamespace) -> None:
    world = World(core)
    world.append(framed(header_of()))
    for pieces in ((), PIECES[:5], (*PIECES, b"")):
        with pytest.raises(ValueError, match="unpack"):
            world.batch.answers(0, 1, pieces)
    with pytest.raises(ValueError, match="store host"):
        world.batch.answers(0, 1, (b"short", *PIECES[1:]))


@dataclass(eq=False)
class Owner:
    """A connection to `far`, whose transport keeps `unsent`."""

    core: SimpleNamespace
    near: socket.socket
    far: socket.socket
    unsent: int = 0
    queued: list[bytes | memoryview] = field(default_factory=list)
    outlet: Any = None

    def __post_init__(self) -> None:
        self.outlet = self.core.Outlet(self.near.fileno(), self.queued, lambda: self.unsent)

    def received(self) -> bytes:
        """What came to the other end."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while part := self.far.recv(1 << 16):
                data += part
        return data


@contextlib.contextmanager
def owners(core: SimpleNamespace, count: int, room: int = 0) -> Iterator[list[Owner]]:
    """Connections; their sockets take little more than `room` bytes if that is given."""
    made = []
    for _ in range(count):
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        if room:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        made.append(Owner(core, near, far))
    try:
        yield made
    finally:
        for owner in made:
            owner.near.close()
            owner.far.close()


def filled(core: SimpleNamespace, count: int) -> World:
    """A batch of that many sends; every third wants no answer."""
    world = World(core)
    for opaque in range(count):
        flag = 2 if opaque % 3 == 2 else 0
        assert world.append(framed(header_of(opaque=opaque, flag=flag)))[0] == 1
    return world


def test_each_connection_has_its_answers_once_and_in_order(core: SimpleNamespace) -> None:
    world = filled(core, 40)
    rng = random.Random(7)
    with owners(core, 5) as made:
        rows, wanted = [], dict.fromkeys(made, b"")
        for first in range(0, 40, 4):
            owner = rng.choice(made)
            rows.append((owner, world.batch, first, first + 4))
            wanted[owner] += world.batch.answers(first, first + 4, PIECES)
        left = core.send_answers(rows, PIECES)
        sent = {owner: owner.received() for owner in made}
        for owner, data in left:
            sent[owner] += data
    assert sent == wanted
    # The compiled core writes all of them itself, plain Python none.
    assert len(left) == (0 if core.name == "compiled" else sum(map(bool, wanted.values())))


def test_nothing_overtakes_what_waits(core: SimpleNamespace) -> None:
    world = filled(core, 2)
    answers = world.batch.answers(0, 2, PIECES)
    with owners(core, 4) as made:
        made[0].unsent = 1
        made[1].queued.append(b"before")
        made[2].outlet = None
        rows = [(owner, world.batch, 0, 2) for owner in made]
        left = core.send_answers(rows, PIECES)
        assert left[:3] == [(owner, answers) for owner in made[:3]]
        assert [owner.received() for owner in made[:3]] == [b""] * 3
        assert made[3].received() == answers if core.name == "compiled" else len(left) == 4


def test_what_a_socket_does_not_take_is_left(core: SimpleNamespace) -> None:
    world = filled(core, 900)
    answers = world.batch.answers(0, 900, PIECES)
    with owners(core, 1, room=4_096) as (owner,):
        data = b""
        for _ in range(8):
            ((_, rest),) = core.send_answers([(owner, world.batch, 0, 900)], PIECES)
            assert answers.endswith(rest)
            data += answers.removesuffix(rest)
        assert owner.received() == data
        # The first part fitted, and nothing did behind it.
        assert (len(data) > 0) == (core.name == "compiled")


def test_a_socket_that_is_gone_gets_nothing(core: SimpleNamespace) -> None:
    world = filled(core, 1)
    answers = world.batch.answers(0, 1, PIECES)

    def closed() -> int:
        raise RuntimeError("unable to perform operation; the handler is closed")

    with owners(core, 2) as (gone, broken):
        gone.outlet.unsent_bytes = closed
        broken.far.close()
        rows = [(gone, world.batch, 0, 1), (broken, world.batch, 0, 1)]
        assert core.send_answers(rows, PIECES) == [(gone, answers), (broken, answers)]
        # Its number is another's from then on.
        assert gone.outlet.handle == (-1 if core.name == "compiled" else gone.near.fileno())
        assert gone.received() == b""
        broken.far = gone.far


def test_nobody_and_nothing_to_say(core: SimpleNamespace) -> None:
    world = filled(core, 3)
    with owners(core, 1) as (owner,):
        assert core.send_answers([], PIECES) == []
        assert core.send_answers([(owner, world.batch, 2, 3)], PIECES) == []
        with pytest.raises(IndexError):
            core.send_answers([(owner, world.batch, 0, 4)], PIECES)


@pytest.mark.compiled
def test_strangers_are_refused() -> None:
    core = cores()[-1]
    world = filled(core, 1)
    with owners(core, 1) as (owner,):
        with pytest.raises(TypeError):
            core.send_answers([(owner, object(), 0, 1)], PIECES)
        owner.outlet = object()
        with pytest.raises(TypeError):
            core.send_answers([(owner, world.batch, 0, 1)], PIECES)


class Greeter(asyncio.Protocol):
    """Notes the socket's number of its transport."""

    handle = -2

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.handle = eventloop.direct_handle(transport)


async def _handle_of(greeter: Greeter) -> int:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: greeter, "127.0.0.1", 0)
    try:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(10):
            while greeter.handle == -2:
                await asyncio.sleep(0.001)
        writer.close()
    finally:
        server.close()
    return greeter.handle


def test_only_uvloops_own_connections_are_written_to_directly() -> None:
    assert eventloop.run(_handle_of(Greeter())) >= 0
    assert asyncio.run(_handle_of(Greeter())) == -1
