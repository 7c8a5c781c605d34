"""Records by the column: both cores give the same arrays, those of a plain reading."""

from __future__ import annotations

import random
from array import array
from ipaddress import ip_address
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cometmq.message.properties import decode
from cometmq.message.record import POSITIONS, BadRecord, Record, iter_spans, record_of
from cometmq.speedups.plain.columns import (
    BAD_CRC,
    BAD_PAIR,
    BAD_TEXT,
    BAD_TOPIC,
    Maps,
    Texts,
    address,
)
from tests.conftest import cores
from tests.speedups.test_batches import PAIRS, TEXTS
from tests.speedups.test_walk import BASE, HOSTS, LOG, V4, V6, log_of, packed

TEXT_NAMES = ("topic", "keys", "tags", "msg_id", "born_host", "store_host")
NUMBERS = {
    "size_bytes": 4, "body_crc": 4, "queue_id": 4, "flag": 4, "queue_offset": 8,
    "physical_offset": 8, "sys_flag": 4, "born_ms": 8, "store_ms": 8, "reconsume_times": 4,
    "prepared_offset": 8, "body_bytes": 4,
}  # fmt: skip


def listed(texts: Texts) -> list[bytes | None]:
    """The values of an array."""
    offsets = memoryview(texts.offsets).cast("B").cast("i").tolist()
    values = bytes(texts.values)
    rows = [values[begin:end] for begin, end in pairwise(offsets)]
    assert (texts.validity is None) == (texts.nulls == 0)
    if texts.validity is None:
        return list(rows)
    bits = int.from_bytes(texts.validity, "little")
    found = [row if bits >> number & 1 else None for number, row in enumerate(rows)]
    assert found.count(None) == texts.nulls
    assert bits < 1 << len(rows)
    return found


def maps_of(maps: Maps) -> list[dict[str, str]]:
    offsets = memoryview(maps.offsets).cast("B").cast("i").tolist()
    pairs = list(zip(listed(maps.names), listed(maps.values), strict=True))
    assert offsets[-1] == len(pairs)
    rows = [pairs[begin:end] for begin, end in pairwise(offsets)]
    found = [{name.decode(): value.decode() for name, value in row} for row in rows]  # type: ignore[union-attr]
    assert list(map(len, found)) == list(map(len, rows))
    return found


def everything(columns: Any) -> dict[str, Any]:
    """All columns."""
    found: dict[str, Any] = {name: columns.texts(name) for name in TEXT_NAMES}
    for name, width in NUMBERS.items():
        found[name] = columns.numbers(POSITIONS[name], width)
    found |= {"body": columns.bodies(), "properties": columns.maps(), "places": columns.places()}
    found["faults"] = columns.faults(crcs=True, texts=True)
    return found | {"stop": columns.stop, "rows": len(columns)}


def expected(data: bytes, base: int | None = BASE) -> tuple[list[Record], int]:
    """The records, and where the first begins that is none."""
    found: list[Record] = []
    try:
        found.extend(record_of(data, span) for span in iter_spans(data, base=base, check_crc=False))
    except BadRecord as error:
        return found, error.position
    return found, len(data)


def assert_right(columns: Any, data: bytes, base: int | None = BASE) -> None:
    """The columns are what the plain reading of each record gives."""
    records, stop = expected(data, base)
    assert (len(columns), columns.stop) == (len(records), stop)
    texts = {name: listed(columns.texts(name)) for name in TEXT_NAMES}
    maps = maps_of(columns.maps())
    for row, record in enumerate(records):
        own = decode(record.properties)
        place = record.physical_offset.to_bytes(8, "big", signed=True)
        assert maps[row] == own
        said = {name: value[row] for name, value in texts.items()}
        assert {
            name: None if value is None else value.decode() for name, value in said.items()
        } == {
            "topic": record.topic,
            "keys": own.get("KEYS"),
            "tags": own.get("TAGS"),
            "msg_id": own.get("UNIQ_KEY") or (record.store_host + place).hex().upper(),
            "born_host": address(record.born_host),
            "store_host": address(record.store_host),
        }
    assert listed(columns.bodies()) == [record.body for record in records]
    for name, width in NUMBERS.items():
        numbers = memoryview(columns.numbers(POSITIONS[name], width))
        own_numbers = [
            len(record.body) if name == "body_bytes" else getattr(record, name)
            for record in records
        ]
        bits = 8 * width
        assert [each % (1 << bits) for each in numbers.cast("i" if width == 4 else "q")] == [
            each % (1 << bits) for each in own_numbers
        ]


def test_each_record_is_a_row(core: SimpleNamespace) -> None:
    log = log_of(
        {}, {"topic": "ü漢", "properties": b"KEYS\1a  b\xe6\xbc\xa2 \2KEYS\1\2UNIQ_KEY\1u"},
        {"hosts": (V6, V4)}, {"hosts": (V4, V6)}, {"hosts": (V6, V6), "v2": True}, {"v2": True},
        {"properties": b""}, {"body": b""}, {"topic": ""}, {"properties": b"TAGS\1a\1b\2TAGS\1"},
        {"properties": b"a\xff\1b\2a\xfe\1\xe4\xb8\2\xed\xa0\x80\1x"},
        {"properties": b"a\1b\2c\1d\2a\1e\2"}, {"hosts": (V6, V6), "properties": b""},
        {"properties": b"\2".join(b"n%d\1v" % number for number in range(70))},
    )  # fmt: skip
    assert_right(core.RecordColumns(log, None, BASE), log)


def test_places_are_those_of_the_record(core: SimpleNamespace) -> None:
    columns = core.RecordColumns(LOG, None, BASE)
    spans = list(iter_spans(LOG))
    assert memoryview(columns.places()).cast("q").tolist() == [
        number
        for at, head, body, body_end, topic, topic_end in spans
        for number in (at, head[0], body, body_end, topic, topic_end)
    ]


def test_records_that_begin_somewhere(core: SimpleNamespace) -> None:
    log = log_of({}, {"body": b"2"}, {})
    starts = [span[0] for span in iter_spans(log)]
    columns = core.RecordColumns(log, array("q", [starts[2], starts[1]]))
    assert listed(columns.bodies()) == [b"body", b"2"]
    assert columns.stop == starts[2]
    columns = core.RecordColumns(log, array("q", [starts[1], 5, starts[2]]))
    assert (len(columns), columns.stop) == (1, 5)
    columns = core.RecordColumns(log, array("q", [len(log)]))
    assert (len(columns), columns.stop) == (0, len(log))
    for wrong in (-1, len(log) + 1):
        with pytest.raises(ValueError, match="outside the data"):
            core.RecordColumns(log, array("q", [wrong]))
    with pytest.raises(TypeError):
        core.RecordColumns(log, b"1234567")


def test_nothing_gives_empty_columns(core: SimpleNamespace) -> None:
    for columns in (
        core.RecordColumns(b""), core.RecordColumns(b"", array("q")), core.RecordColumns(b"x" * 99),
        core.RecordColumns(LOG).keep(bytes(3)),
    ):  # fmt: skip
        found = everything(columns)
        assert found["rows"] == 0
        assert listed(found["body"]) == listed(found["keys"]) == []
        assert maps_of(found["properties"]) == []
        assert len(columns.keep(b"")) == 0


def test_kept_rows_are_all_that_is_left(core: SimpleNamespace) -> None:
    log = log_of(*({"queue_offset": number} for number in range(20)))
    columns = core.RecordColumns(log)
    columns.texts("keys")
    kept = columns.keep(bytes(number % 3 == 0 for number in range(20)))
    offsets = memoryview(kept.numbers(POSITIONS["queue_offset"], 8)).cast("q").tolist()
    assert offsets == list(range(0, 20, 3))
    assert len(columns) == 20
    assert listed(kept.texts("tags")) == [b"red"] * 7
    assert listed(kept.texts("keys")) == [None] * 7
    with pytest.raises(ValueError, match=r"zip\(\)|number of flags"):
        kept.keep(bytes(20))


def test_only_numbers_of_a_head_are_read(core: SimpleNamespace) -> None:
    columns = core.RecordColumns(LOG)
    for position, width in ((-1, 4), (85, 4), (81, 8), (0, 1), (0, 0)):
        with pytest.raises(ValueError, match="no number of a head"):
            columns.numbers(position, width)
    assert len(columns.numbers(84, 4)) == 12
    with pytest.raises(ValueError, match="no text 'body'"):
        columns.texts("body")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"KEYS\x01\xff\x02", BAD_TEXT), (b"KEYS\x01\xe4\xb8", BAD_TEXT), (b"KEYS", BAD_PAIR),
        (b"KEYS\x01k\x02TAGS", BAD_PAIR), (b"\x01k\x02TAGS\x01t", BAD_PAIR), (b"", 0),
        (b"KEYS\x01\x02TAGS\x01", 0), (b"KEYS\x01k\x02\x02TAGS\x01t\x02", 0),
        (b"KEYS\x01a\x01b\x02", 0), (b"\xff", BAD_TEXT | BAD_PAIR),
        ("a\1\N{REPLACEMENT CHARACTER}".encode(), 0),
    ],
)  # fmt: skip
def test_faults_of_texts(core: SimpleNamespace, text: bytes, fault: int) -> None:
    columns = core.RecordColumns(log_of({}, {"properties": text}, {}))
    assert columns.faults(crcs=True, texts=True) == [(1, fault)] * bool(fault)
    assert columns.faults(crcs=True, texts=False) == []


def test_faults_of_bodies_and_topics(core: SimpleNamespace) -> None:
    log = bytearray(log_of({"topic": "xy", "body": b"z" * 100}))
    log[log.index(b"xy")] = 0xFF
    log[log.index(b"zz")] = 0
    columns = core.RecordColumns(bytes(log))
    assert columns.faults(crcs=True, texts=True) == [(0, BAD_CRC | BAD_TOPIC)]
    assert columns.faults(crcs=False, texts=False) == []
    log[8:12] = bytes(4)
    assert core.RecordColumns(bytes(log)).faults(crcs=True, texts=False) == []


@pytest.mark.parametrize("port", [0, 9, 10911, 0xFFFF_FFFF])
def test_addresses(core: SimpleNamespace, port: int) -> None:
    hosts = [
        (ip_address(text).packed + port.to_bytes(4, "big"))
        for text in ("127.0.0.1", "255.255.255.255", "0.0.0.0", "::1", "::ffff:1.2.3.4")
    ]
    log = log_of(*({"hosts": (born, store)} for born in hosts for store in hosts))
    assert_right(core.RecordColumns(log), log)
    assert listed(core.RecordColumns(log).texts("born_host"))[0] == b"127.0.0.1:%d" % port


def test_every_flipped_bit_and_every_cut(core: SimpleNamespace) -> None:
    rows = 0
    for bit in range(len(LOG) * 8):
        raw = bytearray(LOG)
        raw[bit // 8] ^= 1 << bit % 8
        data = bytes(raw)
        columns = core.RecordColumns(data)
        assert_right(columns, data, None)
        rows += len(columns)
    assert rows > len(LOG) * 8
    for cut in range(len(LOG)):
        assert_right(core.RecordColumns(LOG[:cut]), LOG[:cut], None)
        assert_right(core.RecordColumns(LOG[cut:], None, BASE + cut), LOG[cut:], BASE + cut)


RECORDS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["t", "orders", "ü漢", "a\N{REPLACEMENT CHARACTER}"]),
        "properties": st.one_of(
            PAIRS, TEXTS,
            st.sampled_from([b"a\xff\1b\2a\xfe\1c", b"\xed\xa0\x80\1x", b"a\1b\2a\1c"]),
        ),
        "queue_id": st.integers(-1, 2),
        "sys_flag": st.sampled_from([0, 1, 4, 8]),
        "body": st.binary(max_size=90),
        "hosts": st.sampled_from(HOSTS),
        "v2": st.booleans(),
    }
)  # fmt: skip
TAKEN = {"rows": 0, "logs": 0}


@given(st.lists(RECORDS, max_size=12), st.randoms(use_true_random=False), st.integers(0, 3))
@example([], random.Random(0), 0)
def test_both_cores_give_the_same(
    records: list[dict[str, Any]], chance: random.Random, flips: int
) -> None:
    log = log_of(*map(dict, records))
    starts = array("q", [span[0] for span in iter_spans(log)])
    raw = bytearray(log)
    for _ in range(flips if raw else 0):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    data = bytes(raw)
    for arguments in ((data,), (data, None, BASE), (data, starts)):
        made = [core.RecordColumns(*arguments) for core in cores()]
        flags = bytes(chance.randrange(2) for _ in range(len(made[0])))
        for some in (made, [each.keep(flags) for each in made]):
            found = [everything(columns) for columns in some]
            assert all(each == found[0] for each in found)
    assert_right(made[0], data, None) if not flips else None
    TAKEN["rows"] += len(made[0])
    TAKEN["logs"] += 1


def test_most_of_what_was_compared_was_a_row() -> None:
    if not TAKEN["logs"]:
        test_both_cores_give_the_same()
    assert TAKEN["rows"] > TAKEN["logs"]


@given(st.binary(max_size=300), st.binary(max_size=120))
def test_both_cores_read_any_texts_alike(text: bytes, body: bytes) -> None:
    data = packed(0, properties=text, body=body) + text
    found = [everything(core.RecordColumns(data)) for core in cores()]
    assert found[0]["rows"] >= 1
    assert all(each == found[0] for each in found)


def test_very_many_names_cost_no_more_than_their_bytes(core: SimpleNamespace) -> None:
    text = b"\2".join(b"%x\1v" % (number % 3_000) for number in range(5_000))
    log = log_of(*({"properties": text} for _ in range(3)))
    (first, *_) = maps_of(core.RecordColumns(log).maps())
    assert len(first) == 3_000
