"""Batches: both cores make the same of any body, and it is what single messages would be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cometmq.filter.tags import tag_code
from cometmq.message import batch
from cometmq.message import properties as props
from cometmq.message.batch import SharedFields
from cometmq.message.ids import decode_offset_id, encode_offset_id
from cometmq.message.record import iter_decode
from cometmq.speedups.plain.hashing import index_hashes
from tests.conftest import cores
from tests.speedups.test_sends import (
    BODY_MAX_BYTES,
    BORN,
    FILE_BYTES,
    HOST,
    HOST_TEXT,
    PIECES,
    SUFFIX,
    World,
    framed,
    header_of,
    known_queues,
)

NOW_MS = 1_800_000_000_000
V6 = bytes(range(20))

Entries = list[tuple[int, bytes, bytes]]


def shared(properties: bytes = b"", store_host: bytes = HOST) -> SharedFields:
    return SharedFields(0, 11, BORN, store_host, 2, properties)


def append(
    world: World, body: bytes, common: SharedFields, topic: bytes = b"t", limit: int = FILE_BYTES
) -> tuple[int, bytes]:
    """Take a batch into queue 0 of a topic."""
    size, packed = world.core.append_batch(
        world.batch, body, world.queues[topic][0], common.middle(NOW_MS), common.properties,
        world.position, limit, NOW_MS,
    )  # fmt: skip
    world.position += len(packed)
    return size, packed


def outcome(world: World, body: bytes, common: SharedFields, topic: bytes = b"t") -> object:
    """What comes of a body: the records, or the problem."""
    try:
        return append(world, body, common, topic)
    except ValueError as error:
        return str(error)


NAMES = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"WAIT", b"X", b"XTAGS", b"XUNIQ_KEY", b"TAG", b"KEYS\x01", b""]
)
VALUES = st.one_of(
    st.sampled_from(
        [b"a", b"b c", b"", b" ", b"\xe6\xa0\x87", b"v\x01w", b"0123456789ABCDEF", b"\xff"]
    ),
    st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=6).map(lambda raw: raw.replace(b"\x02", b"")),
    st.lists(
        st.sampled_from(
            [b"\xc3", b"\xa0", b"\x80", b"\x9f", b"\x90", b"\x8f", b"\xe0", b"\xed", b"\xe6",
             b"\xf0", b"\xf4", b"\xf5", b"\xc1", b" ", b"k"]
        ),
        max_size=6,
    ).map(b"".join),
)  # fmt: skip
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
    lambda found: b"\x02".join(name + b"\x01" + value for name, value in found)
)
TEXTS = st.one_of(
    st.tuples(PAIRS, st.sampled_from([b"", b"\x02", b"\x02\x02"])).map(b"".join),
    st.binary(max_size=30),
)
ENTRIES = st.lists(
    st.tuples(st.integers(-5, 5), st.binary(max_size=20), TEXTS), min_size=1, max_size=12
)


@given(ENTRIES, TEXTS, st.sampled_from([HOST, V6]))
def test_records_say_what_was_given(many: Entries, of_all: bytes, store_host: bytes) -> None:
    for core in cores():
        world, common = World(core), shared(of_all, store_host)
        world.position = 1_000
        size, packed = append(world, batch.pack(many), common)
        records = list(iter_decode(packed, 1_000))
        assert (size, len(records)) == (len(packed), len(many))
        for number, (record, (flag, body, own)) in enumerate(zip(records, many, strict=True)):
            assert (record.flag, record.body, record.queue_offset) == (flag, body, 5 + number)
            assert record.properties == props.joined(own, of_all)
            assert (record.topic, record.queue_id, record.store_ms) == ("t", 0, NOW_MS)
            assert (record.born_host, record.store_host) == (BORN, store_host)
            assert (record.born_ms, record.reconsume_times) == (11, 2)
        queue, found = world.queues[b"t"][0], [props.decode(each.properties) for each in records]
        assert world.batch.rows_from(0) == [
            (
                queue, record.queue_offset, record.physical_offset, record.size_bytes,
                tag_code(pairs.get("TAGS")), NOW_MS, (),
            )
            for record, pairs in zip(records, found, strict=True)
        ]  # fmt: skip
        keys = [(key, record) for record, pairs in zip(records, found, strict=True)
                for key in props.index_keys(pairs)]  # fmt: skip
        hashes, places, times_ms = (
            [*memoryview(column).cast("q")] for column in world.batch.index_columns()
        )
        assert hashes == index_hashes([queue.topic_hash] * len(keys), [key for key, _ in keys])
        assert places == [record.physical_offset for _, record in keys]
        assert times_ms == [NOW_MS] * len(keys)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Batch bodies, some of them damaged or cut off."""
    body = bytearray(batch.pack(draw(ENTRIES)))
    for at, value in draw(
        st.lists(
            st.tuples(st.integers(0, len(body) - 1), st.sampled_from([0, 1, 127, 128, 255])),
            max_size=2,
        )
    ):
        body[at] = value
    return bytes(body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body)


def test_both_cores_make_the_same_of_any_body() -> None:
    taken = refused = 0

    @settings(max_examples=5 * settings().max_examples)
    @given(
        st.lists(
            st.tuples(st.one_of(bodies(), st.binary(max_size=60)), TEXTS, st.booleans()),
            min_size=1,
            max_size=4,
        ),
        st.sampled_from([0, 1_000]),
    )
    @example([(b"", b"", True)], 0)
    def same(batches: list[tuple[bytes, bytes, bool]], delay_ms: int) -> None:
        nonlocal taken, refused
        worlds = [World(core) for core in cores()]
        for world in worlds:
            world.queues["ü漢".encode()][0].delay_ms = delay_ms
        for body, of_all, second in batches:
            topic = "ü漢".encode() if second else b"t"
            first, *others = [outcome(world, body, shared(of_all), topic) for world in worlds]
            assert others == [first] * len(others)
            refused += isinstance(first, str)
            # Sends that come between batches join the same write batch.
            for world in worlds:
                assert world.append(framed(header_of()))[0] == 1
        first, *others = [world.outcome() for world in worlds]
        assert others == [first] * len(others)
        taken += worlds[0].batch.count - len(batches)

    same()
    # Or it would prove nothing.
    assert taken > settings().max_examples
    assert refused > settings().max_examples


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "no message"),
        (bytes(21), "batch body: 21 bytes left at 0, an entry has at least 22"),
        (bytes(22), "entry at 0 of size 0, its body 0, 22 left"),
        (b"\xff" * 40, "entry at 0 of size -1, its body -1, 40 left"),
        (b"\0\0\0\x17" + bytes(19), "is not the sum of its parts"),
        (b"\0\0\0\x16" + bytes(12) + b"\x7f\xff\xff\xff" + bytes(2), "its body 2147483647"),
        (batch.pack([(0, b"", b"")]) + bytes(3), "3 bytes left at 22"),
        (batch.pack([(0, b"", b"x" * 32_767)]), "are 32769 bytes long, the limit is 32767"),
    ],
)  # fmt: skip
def test_bodies_that_are_none(core: SimpleNamespace, body: bytes, problem: str) -> None:
    world = World(core)
    with pytest.raises(ValueError, match=problem):
        append(world, body, shared(b"y"))
    assert world.batch.count == world.batch.size_bytes == 0
    assert world.queues[b"t"][0].next_offset == 5


def test_a_batch_that_does_not_fit_takes_nothing(core: SimpleNamespace) -> None:
    world = World(core)
    body = batch.pack([(0, b"x", b"")] * 3)
    size, packed = append(World(core), body, shared())
    assert size == len(packed)
    assert append(world, body, shared(), limit=size + 7) == (size, b"")
    assert (world.batch.count, world.queues[b"t"][0].next_offset) == (0, 5)
    assert append(world, body, shared(), limit=size + 8) == (size, packed)
    assert (world.batch.count, world.batch.size_bytes, world.batch.end) == (3, size, size)


def test_messages_of_a_batch_have_no_answers_of_their_own(core: SimpleNamespace) -> None:
    world = World(core)
    assert world.append(framed(header_of()))[0] == 1
    append(world, batch.pack([(0, b"x", b"")] * 3), shared())
    assert world.append(framed(header_of()))[0] == 1
    assert world.batch.answers(0, 5, PIECES).count(b"msgId") == 2
    places = world.batch.places(1, 4)
    assert places == [row[2] for row in world.batch.rows_from(1)[:3]]
    ids = world.batch.message_ids(1, 4, HOST.hex().upper().encode()).decode().split(",")
    assert ids == [encode_offset_id(HOST, place) for place in places]
    assert [decode_offset_id(each).physical_offset for each in ids] == places


def test_a_batch_is_taken_back_and_dropped_as_sends_are(core: SimpleNamespace) -> None:
    body = batch.pack([(0, b"x", b"UNIQ_KEY\x01k")] * 3)
    world = World(core)
    append(world, body, shared())
    append(world, body, shared(), "ü漢".encode())
    queues = world.queues[b"t"][0], world.queues["ü漢".encode()][0]
    assert world.batch.unnamed_queues(1 << 62) == [*queues]
    world.batch.drop({queues[0]})
    assert world.batch.unnamed_queues(1 << 62) == [queues[1]]
    assert len(world.batch.entry_rows()) == 3 * 36
    assert world.batch.dispatch(1 << 20)[0] == [queues[1]]
    again = World(core)
    append(again, body, shared())
    append(again, body, shared())
    again.batch.take_back()
    assert again.queues[b"t"][0].next_offset == 5
    assert again.batch.dispatch(0) == ([], (0, 0), [], [], True)


def test_a_batch_in_parts_is_the_same_as_at_once(core: SimpleNamespace) -> None:
    body = batch.pack([(n, b"b" * n, b"UNIQ_KEY\x01k%d\x02TAGS\x01t" % n) for n in range(7)])
    at_once, in_parts = World(core), World(core)
    for world in (at_once, in_parts):
        world.queues[b"t"][0].delay_ms = 40
    _, packed = append(at_once, body, shared(b"x\x01y"))
    queue, common = in_parts.queues[b"t"][0], shared(b"x\x01y")
    total, parts = core.pack_batch(body, queue, common.middle(0), common.properties, 1 << 20, 3)
    assert (total, [rows.count for rows, _ in parts]) == (len(packed), [3, 3, 1])
    assert queue.next_offset == 5
    assert [rows.entry_rows() for rows, _ in parts] == [b""] * 3
    position = 0
    for rows, records in parts:
        core.place_batch(rows, records, queue, common.middle(NOW_MS), position, NOW_MS)
        position += len(records)
        assert (rows.size_bytes, rows.end, rows.last_ms) == (len(records), position, NOW_MS)
    assert b"".join(bytes(records) for _, records in parts) == packed
    assert b"".join(rows.entry_rows() for rows, _ in parts) == at_once.batch.entry_rows()
    keys = [b"".join(column) for column in zip(*[r.index_columns() for r, _ in parts], strict=True)]
    assert tuple(keys) == at_once.batch.index_columns()
    assert queue.next_offset == 12
    for rows, _ in reversed(parts):
        rows.take_back()
    assert queue.next_offset == 5


def test_what_cannot_be_packed_or_placed_changes_nothing(core: SimpleNamespace) -> None:
    body = batch.pack([(0, b"x", b"")] * 3)
    queue, other = World(core).queues[b"t"][:2]
    middle = bytes(48)
    size, _ = core.pack_batch(body, queue, middle, b"", 1 << 20, 3)
    assert core.pack_batch(body, queue, middle, b"", size - 1, 3) == (size, [])
    with pytest.raises(ValueError, match="batch body"):
        core.pack_batch(body[:-1], queue, middle, b"", 1 << 20, 3)
    with pytest.raises(ValueError, match=r"rows|zero"):
        core.pack_batch(body, queue, middle, b"", 1 << 20, 0)
    for change in ("queue", "cut", "longer", "placed"):
        _, [(rows, packed)] = core.pack_batch(body, queue, middle, b"", 1 << 20, 3)
        if change == "placed":
            core.place_batch(rows, packed, queue, middle, 0, 1)
        if change in ("cut", "longer"):
            packed = packed[:-1] if change == "cut" else packed + b"x"
        before = queue.next_offset
        with pytest.raises(ValueError, match="another batch"):
            core.place_batch(rows, packed, other if change == "queue" else queue, middle, 0, 1)
        assert queue.next_offset == before


@pytest.mark.parametrize("compiled", cores()[1:], ids=lambda core: core.name)
def test_the_compiled_core_refuses_other_types(compiled: SimpleNamespace) -> None:
    made = compiled.WriteBatch()
    queue = World(compiled).queues[b"t"][0]
    for arguments in (
        (None, queue, b"", b"", 0, 1, 1), (b"", None, b"", b"", 0, 1, 1),
        (bytearray(22), queue, b"", b"", 0, 1, 1), (b"", queue, None, b"", 0, 1, 1),
        (b"", queue, b"", None, 0, 1, 1), (b"", object(), b"", b"", 0, 1, 1),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            compiled.append_batch(made, *arguments)
    with pytest.raises(TypeError):
        made.message_ids(0, 0, None)


# ---- batches as frames of a connection


def batch_frame(
    body: bytes, changed: dict[str, str] | None = None, *, opaque: int = 7, flag: int = 0
) -> bytes:
    fields = {"e": "0", "i": "WAIT\x01true\x02a\x01b", "m": "true"} | (changed or {})
    return framed(header_of(fields, code=320, opaque=opaque, flag=flag), body)


BODY = batch.pack([(n, b"body" * n, b"UNIQ_KEY\x01k%d\x02TAGS\x01t" % n) for n in range(3)])


def test_a_batch_off_a_connection_is_what_it_is_alone(core: SimpleNamespace) -> None:
    taken, alone = World(core), World(core)
    frame = batch_frame(BODY, {"f": "1", "j": "3", "g": "11"})
    assert taken.append(frame)[:3] == (1, len(frame), 0)
    common = SharedFields(1, 11, BORN, HOST, 3, b"a\x01b\x02" + SUFFIX)
    append(alone, BODY, common)
    for world in (taken, alone):
        assert world.batch.size_bytes == world.position
        assert world.queues[b"t"][0].next_offset == 8
    records = [*iter_decode(World(core).append(frame)[3], 0)]
    assert [record.body for record in records] == [b"", b"body", b"bodybody"]
    assert taken.batch.entry_rows() == alone.batch.entry_rows()
    assert taken.batch.index_columns() == alone.batch.index_columns()
    ids = ",".join(f"{HOST_TEXT}{place:016X}" for place in taken.batch.places(0, 3))
    answer = f'{{"msgId":"{ids}","q":"0","o":"5","id":7}}'.encode()
    assert taken.batch.answers(0, 3, PIECES) == framed(answer, b"")
    assert taken.batch.opaques(0, 3) == [
        (7, False, 0, 5, taken.batch.places(0, 3), False),
        *((0, True, 0, 5 + n, taken.batch.places(n, n + 1), False) for n in (1, 2)),
    ]


def test_records_of_a_batch_off_a_connection_are_the_same_bytes(core: SimpleNamespace) -> None:
    keyless = batch.pack([(0, b"UNIQ_KEY", b"a\x01b"), (0, b"", b"UNIQ_KEY\x01own")])
    for properties, body, expected in (
        ("", BODY, SUFFIX),
        ("a\x01b", BODY, b"a\x01b\x02" + SUFFIX),
        # A key of the batch gives way to those of its messages; the first one decides.
        ("UNIQ_KEY\x01k", BODY, SUFFIX),
        ("UNIQ_KEY\x01k\x02a\x01b", BODY, b"a\x01b\x02" + SUFFIX),
        ("a\x01b\x02UNIQ_KEY\x01k", BODY, b"a\x01b\x02" + SUFFIX),
        ("a\x01b\x02UNIQ_KEY\x01k\x02c\x01d", BODY, b"a\x01b\x02c\x01d\x02" + SUFFIX),
        ("UNIQ_KEY\x01k\x02a\x01b", keyless, b"UNIQ_KEY\x01k\x02a\x01b\x02" + SUFFIX),
    ):
        _, _, _, packed = World(core).append(batch_frame(body, {"i": properties}))
        common = SharedFields(0, 1_700_000_000_000, BORN, HOST, 0, expected)
        assert packed == append(World(core), body, common)[1]


def test_batches_and_single_sends_follow_each_other(core: SimpleNamespace) -> None:
    world = World(core)
    stream = (
        framed(header_of({"e": "0"}, opaque=1))
        + batch_frame(BODY, opaque=2)
        + batch_frame(BODY, {"e": "1"}, opaque=3, flag=2)
        + framed(header_of({"e": "0"}, opaque=4))
    )
    assert world.append(stream)[:3] == (4, len(stream), 0)
    assert world.batch.count == 8
    answers = world.batch.answers(0, 8, PIECES)
    assert [answers.count(b'"id":%d}' % opaque) for opaque in (1, 2, 3, 4)] == [1, 1, 0, 1]
    assert b'"q":"0","o":"9","id":4}' in answers
    grown, sums, _, _, in_order = world.batch.dispatch(1 << 20)
    assert (grown, sums, in_order) == (world.queues[b"t"][:2], (8, world.position), True)
    assert [queue.max_offset for queue in grown] == [10, 8]
    assert [(queue.put_count, queue.put_times) for queue in grown] == [(5, 3), (3, 1)]
    assert sum(queue.put_bytes for queue in grown) == world.position
    world.batch.take_back()
    assert [queue.next_offset for queue in grown] == [5, 5]


@pytest.mark.parametrize(
    "changed",
    [
        {"i": "TRAN_MSG\x01true"}, {"i": "DELAY\x011"}, {"f": "4"},
        {"i": "WAIT\x01false"}, {"i": "TIMER_DELAY_SEC\x011"}, {"f": "8"}, {"e": "-1"},
        {"b": "%RETRY%g"}, {"b": "%DLQ%g"}, {"m": "yes"}, {"i": "x\x01" + "y" * 32_760},
    ],
)  # fmt: skip
def test_odd_batches_are_left(core: SimpleNamespace, changed: dict[str, str]) -> None:
    world, plain = World(core), batch_frame(BODY)
    for name in ("%RETRY%g", "%DLQ%g"):
        world.queues[name.encode()] = [world.queue(name, 0)]
    odd = batch_frame(BODY, changed)
    assert world.append(plain + odd + odd + plain)[:3] == (1, len(plain), 2)
    assert world.batch.count == 3


@pytest.mark.parametrize(
    "body",
    [
        b"", bytes(21), BODY[:-1], BODY + b"\0", batch.pack([(0, b"", b"x" * 32_767)]),
        batch.pack([(0, b"b" * (BODY_MAX_BYTES - 20), b"")]),
    ],
)  # fmt: skip
def test_bodies_that_only_the_tolerant_way_judges(core: SimpleNamespace, body: bytes) -> None:
    world = World(core)
    assert world.append(batch_frame(BODY) + batch_frame(body) + batch_frame(BODY))[0::2] == (1, 1)
    assert world.batch.count == 3
    assert (world.batch.size_bytes, world.queues[b"t"][0].next_offset) == (world.position, 8)


def test_a_batch_is_not_split_between_files(core: SimpleNamespace) -> None:
    world, frame = World(core), batch_frame(BODY)
    size = len(World(core).append(frame)[3])
    world.position = FILE_BYTES - size - 7
    assert world.append(frame)[:3] == (0, 0, -1)
    assert (world.batch.count, world.queues[b"t"][0].next_offset) == (0, 5)
    world.position = FILE_BYTES - size - 8
    assert world.append(frame)[:3] == (1, len(frame), 0)


def test_large_batches_are_left(core: SimpleNamespace) -> None:
    def taken(body: bytes, properties: str = "a\x01b") -> int:
        world = World(core)
        frame = batch_frame(body, {"i": properties})
        count: int = world.batch.append(
            frame,
            0,
            known_queues(core, world.queues),
            BORN,
            SUFFIX,
            1 << 22,
            0,
            1 << 30,
            NOW_MS,
            9,
            1 << 30,
        )[0]
        assert count == min(1, world.batch.count)
        return count

    file_bytes = FILE_BYTES
    assert file_bytes == 1 << 20
    for size, count in (((1 << 18) - 22, 1), ((1 << 18) - 21, 0)):
        assert taken(batch.pack([(0, bytes(size), b"")])) == count
    # Small messages whose common properties take more than the records of a batch may.
    assert taken(batch.pack([(0, b"", b"")] * 40), "x\x01" + "y" * 20_000) == 1
    assert taken(batch.pack([(0, b"", b"")] * 60), "x\x01" + "y" * 20_000) == 0
