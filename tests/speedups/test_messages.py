"""The messages of a pull: both cores make the same of any body, and of plain ones what one record
after the other gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.message.model import StoredMessage, from_record
from cometmq.message.record import COMPRESSED, MAGIC_V2, Record, iter_decode, pack
from tests.conftest import cores
from tests.message.strategies import records

#: Texts as clients send them, and bytes that part or break them.
PROPERTIES = st.lists(
    st.sampled_from(
        [b"UNIQ_KEY\x01U1", b"TAGS\x01a", b"WAIT\x01true", b"\x01", b"a\x01", b"\x01b", b"", b"a",
         b"n\x01v\x01w", "\u4e2d\x01\u6587".encode(), b"\xe4\xb8", b"\xff\x01\xc3", b"TAGS\x01b"]
    ),
    max_size=30,
).map(b"\x02".join)  # fmt: skip


def plain(record: Record, properties: bytes) -> bytes:
    values = {name: getattr(record, name) for name in Record.__struct_fields__}
    values |= {"sys_flag": record.sys_flag & ~COMPRESSED, "properties": properties}
    return pack(Record(**values))


RECORDS = st.builds(plain, records, PROPERTIES)


def cut(core: SimpleNamespace, data: bytes) -> list[StoredMessage] | None:
    found = core.cut_records(data, StoredMessage, "broker")
    return None if found is None else list(found)


@given(packed=st.lists(RECORDS, max_size=5))
def test_plain_records_are_what_each_alone_is(packed: list[bytes]) -> None:
    data = b"".join(packed)
    expected = [from_record(each, "broker") for each in iter_decode(data)]
    for core in cores():
        found = cut(core, data)
        assert found == expected
        for each, other in zip(found, expected, strict=True):
            assert list(each.properties.items()) == list(other.properties.items())


def test_both_cores_make_the_same_of_any_bytes() -> None:
    made = 0

    @settings(max_examples=400)
    @given(packed=st.lists(RECORDS | records.map(pack), min_size=1, max_size=4), data=st.data())
    def check(packed: list[bytes], data: st.DataObject) -> None:
        nonlocal made
        body = bytearray(b"".join(packed))
        if data.draw(st.integers(0, 2)) == 2:
            body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        cutting = data.draw(st.integers(-400, 200))
        given_bytes = bytes(body[: len(body) - max(0, cutting)])
        outcomes = [cut(core, given_bytes) for core in cores()]
        assert all(outcome == outcomes[0] for outcome in outcomes)
        made += len(outcomes[0] or ())

    check()
    assert made > 100  # many of these were plain


def one(**changes: object) -> bytes:
    values = {
        "size_bytes": 0, "body_crc": 0, "queue_id": 1, "flag": 2, "queue_offset": 3,
        "physical_offset": 4, "sys_flag": 0, "born_ms": 5, "born_host": bytes(8), "store_ms": 6,
        "store_host": bytes(20), "reconsume_times": 7, "prepared_offset": 8, "body": b"body",
        "topic": "t", "properties": b"a\x01b",
    }  # fmt: skip
    return pack(Record(**(values | changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [0, 1])
def test_one_odd_record_makes_all_of_them_odd(core: SimpleNamespace, at: int) -> None:
    version_2 = bytearray(one())
    version_2[4:8] = MAGIC_V2.to_bytes(4, "big")
    wrong_crc = bytearray(one())
    wrong_crc[11] ^= 1
    for odd in (one(sys_flag=COMPRESSED), bytes(version_2), bytes(wrong_crc), one()[:-1]):
        assert cut(core, one() * at + odd) is None
    no_crc = bytearray(one())
    no_crc[8:12] = bytes(4)
    assert len(cut(core, one() * at + bytes(no_crc)) or ()) == at + 1
    assert cut(core, b"") == []


def test_a_message_is_made_when_it_is_asked_for_and_once(core: SimpleNamespace) -> None:
    made: list[int] = []

    def make(*parts: Any) -> tuple[Any, ...]:
        made.append(parts[2])
        return parts

    first, second = one(), one(queue_offset=9, body=b"longer")
    found = core.cut_records(first + second, make, "broker")
    assert (len(found), made) == (2, [])
    assert [found.offset_at(0), found.offset_at(1)] == [3, 9]
    assert [found.bytes_of(0, 1), found.bytes_of(1, 2), found.bytes_of(0, 2)] == [
        len(first), len(second), len(first) + len(second),
    ]  # fmt: skip
    assert found[1] is found[1]
    assert made == [9]
    assert [each[2] for each in found] == [3, 9]
    assert made == [9, 3]
    for wrong in (-1, 2):
        with pytest.raises(IndexError):
            found[wrong]
        with pytest.raises(IndexError):
            found.offset_at(wrong)
    for begin, end in ((-1, 1), (0, 3), (3, 2)):
        with pytest.raises(IndexError):
            found.bytes_of(begin, end)


def test_no_length_leads_out_of_a_record(core: SimpleNamespace) -> None:
    record = one()
    for position in range(len(record)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = record[:position] + bytes((value,)) + record[position + 1 :]
            both = [cut(each, changed) for each in cores()]
            assert both[0] == both[-1]
            assert cut(core, changed) == both[0]
