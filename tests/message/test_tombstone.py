"""Tombstones keep place and size, and nothing of what the sender wrote."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.message import properties as props
from cometmq.message.record import (
    COMPRESSED,
    COMPRESSION_MASK,
    MAGIC_V2,
    Record,
    decode_one,
    head_of,
    pack,
)
from cometmq.message.tombstone import COMPACTED, ERASED, REDACTED, entomb, is_tombstone
from tests.message.strategies import records

#: Fields that a tombstone has changed.
CHANGED = ("size_bytes", "body_crc", "body", "flag", "sys_flag", "properties")


def record_of(named: dict[str, str], body: bytes = b"of Ada") -> Record:
    return Record(
        0, 0, 3, 7, 11, 4_096, COMPRESSED, 1, bytes(8), 2, bytes(8), 1, 9, body, "t",
        props.encode(named),
    )  # fmt: skip


@given(records, st.sets(st.text(min_size=1), max_size=2))
def test_place_and_size_stay(record: Record, erased: set[str]) -> None:
    raw = pack(record)
    made = entomb(raw, erased, REDACTED)
    assert len(made) == len(raw)
    before, after = decode_one(raw), decode_one(made)
    for name in set(Record.__struct_fields__) - set(CHANGED):
        assert getattr(after, name) == getattr(before, name), name
    assert after.size_bytes == before.size_bytes
    assert after.sys_flag == before.sys_flag & ~(COMPRESSED | COMPRESSION_MASK)
    assert after.flag == 0
    assert not any(after.body)
    assert entomb(made, erased, REDACTED) == made


@given(
    records, st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.text("uvw", max_size=4), st.sets(st.sampled_from(["a", "b", "u", "uv", "w"])),
)  # fmt: skip
def test_the_index_has_as_many_keys_as_before(
    record: Record, keys: list[str], unique: str, erased: set[str]
) -> None:
    named = {props.KEYS: " ".join(keys), props.UNIQ_KEY: unique, "user": "Ada"}
    raw = pack(replace(record, properties=props.encode(named)))
    held = decode_one(entomb(raw, erased, REDACTED)).properties
    found = props.index_keys(props.decode(held))
    kept = [unique] if unique and unique not in erased else []
    expected = len(props.index_keys(props.decode(props.encode(named))))
    assert found == (*kept, *["~"] * (expected - len(kept)))
    assert b"Ada" not in held


def test_what_brokers_need_stays() -> None:
    named = {
        props.UNIQ_KEY: "0A0B", props.KEYS: "ada order-17", props.TAGS: "paid", "user": "Ada",
        props.DELAY: "3", props.REAL_TOPIC: "orders", props.REAL_QID: "2",
        props.SHARDING_KEY: "ada", props.PRODUCER_GROUP: "shop",
    }  # fmt: skip
    held = decode_one(entomb(pack(record_of(named)), {"ada"}, COMPACTED)).properties
    assert props.decode(held) == {
        props.UNIQ_KEY: "0A0B", props.DELAY: "3", props.REAL_TOPIC: "orders", props.REAL_QID: "2",
        props.PRODUCER_GROUP: "shop", props.KEYS: "~ ~", ERASED: COMPACTED,
    }  # fmt: skip
    assert is_tombstone(held)


def test_a_key_goes_wherever_it_is_a_whole_value() -> None:
    raw = pack(record_of({props.UNIQ_KEY: "0A0B", props.TRANSACTION_ID: "0A0B"}))
    held = decode_one(entomb(raw, {"0A0B"}, REDACTED)).properties
    assert props.decode(held) == {props.KEYS: "~", ERASED: REDACTED}


def test_the_mark_is_left_out_where_there_is_no_room_for_it() -> None:
    raw = pack(record_of({props.KEYS: "k"}, b""))
    after = decode_one(entomb(raw, {"k"}, REDACTED))
    assert (after.body, after.properties) == (b"", b"KEYS\x01~")
    assert is_tombstone(after.properties)
    assert not is_tombstone(b"KEYS\x01k ~")


def test_a_record_of_the_second_version() -> None:
    record = record_of({props.KEYS: "ada"})
    raw = pack(record)
    size = head_of(0).size + len(record.body)
    head = bytearray(raw[:size])
    head[0:4] = (len(raw) + 1).to_bytes(4, "big")
    head[4:8] = MAGIC_V2.to_bytes(4, "big")
    longer = bytes(head) + b"\0" + raw[size:]
    after = decode_one(entomb(longer, {"ada"}, REDACTED))
    assert (after.size_bytes, after.topic) == (len(longer), "t")
    assert props.decode(after.properties)[props.KEYS] == "~"
