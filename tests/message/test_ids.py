"""Offset ids and unique keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message import ids


def test_offset_id_as_java_writes_it() -> None:
    host = ids.pack_host("192.168.1.10", 10911)
    assert ids.encode_offset_id(host, 0x1234) == "C0A8010A00002A9F0000000000001234"


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_id_round_trip(address: object, port: int, offset: int) -> None:
    text = ids.encode_offset_id(ids.pack_host(str(address), port), offset)
    assert len(text) in (32, 56)
    assert ids.decode_offset_id(text) == ids.OffsetId(str(address), port, offset)


@pytest.mark.parametrize("text", ["", "AB", "Z" * 32, "0" * 31, "0" * 57])
def test_what_cannot_be_an_offset_id(text: str) -> None:
    with pytest.raises(ValueError, match=r"characters|hexadecimal"):
        ids.decode_offset_id(text)


def test_host_must_be_an_address() -> None:
    with pytest.raises(ValueError, match="localhost"):
        ids.pack_host("localhost", 1)


def test_unique_keys_differ_and_name_their_maker() -> None:
    maker = ids.UniqueKeys(b"\x7f\0\0\1", 0x1_1234, 0xABCDEF01)
    keys = [maker.next(1_700_000_000_000 + number // 1000) for number in range(60_000)]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 and key.startswith("7F0000011234ABCDEF01") for key in keys)
    assert len(ids.UniqueKeys(bytes(16), 1, 2).next(0)) == 56
    many = maker.many(1_700_000_000_060, 9_000)
    assert len({*keys, *many, maker.next(1_700_000_000_060)}) == len(keys) + 9_001
    assert many[0][:20] == keys[0][:20]


def test_unique_key_counts_from_the_first_of_the_month() -> None:
    maker = ids.UniqueKeys(bytes(4), 0, 0)
    december = 1_733_011_200_000  # 2024-12-01T00:00:00Z
    assert maker.next(december + 5)[20:28] == "00000005"
    assert maker.next(december - 1)[20:28] == f"{30 * 86_400_000 - 1:08X}"
    assert maker.next(december + 31 * 86_400_000)[20:28] == "00000000"


def test_lasting_keys_are_the_same_whenever_they_are_asked_for() -> None:
    made_ms = 1_733_011_200_000 + 5  # 2024-12-01T00:00:00.005Z
    key = ids.lasting_key(0x1234, made_ms, 0xABCD)
    assert key == "7F000001" + "000000001234" + "00000005" + "ABCD"
    assert ids.lasting_number(key) == 0x1234
    # Tools that take it for an offset id ask this machine, no stranger.
    assert ids.decode_offset_id(key).host == "127.0.0.1"


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**42), st.integers(0, 2**32))
def test_lasting_keys_have_a_keys_form(number: int, made_ms: int, check: int) -> None:
    key = ids.lasting_key(number, made_ms, check)
    assert len(key) == 32
    assert ids.lasting_number(key) == number


def test_what_is_no_lasting_key() -> None:
    with pytest.raises(ValueError, match="32"):
        ids.lasting_number("7F")
