"""Headers in both codecs."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import LocalProtocolError, RemoteProtocolError
from cometmq.protocol.codes import OUR_VERSION, Language
from cometmq.protocol.frame import (
    BINARY,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    JSON,
    Head,
    Request,
    decode_head,
    encode_head,
)
from cometmq.protocol.headers import NoFields
from tests.protocol.strategies import texts

LENGTHS = struct.Struct(">II")


def header_of(frame: bytes) -> bytes:
    total, word = LENGTHS.unpack_from(frame)
    header_bytes = word & 0xFFFFFF
    assert total == len(frame) - 4
    assert len(frame) == 8 + header_bytes
    return frame[8:]


int32 = st.integers(-(2**31), 2**31 - 1)


@given(
    codec=st.sampled_from([JSON, BINARY]),
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=int32,
    flag=st.integers(0, 3),
    ext=st.dictionaries(texts(1), texts(1), max_size=5),
    remark=st.none() | texts(1),
    language=st.sampled_from(Language),
)
def test_a_header_survives_both_codecs(
    codec: int,
    code: int,
    opaque: int,
    flag: int,
    ext: dict[str, str],
    remark: str | None,
    language: Language,
) -> None:
    frame = encode_head(
        code=code, opaque=opaque, flag=flag, ext=ext, remark=remark, codec=codec, language=language
    )
    assert LENGTHS.unpack_from(frame)[1] >> 24 == codec
    head = decode_head(codec, header_of(frame))
    assert head == Head(code, opaque, flag, OUR_VERSION, language.name, remark, ext)


def test_the_lengths_count_the_body_that_follows() -> None:
    frame = encode_head(code=1, opaque=2, flag=0, ext={}, body_bytes=100)
    total, word = LENGTHS.unpack_from(frame)
    assert total == 4 + word + 100
    assert len(frame) == 8 + word


def test_a_json_header_is_compact_and_sorted() -> None:
    frame = encode_head(code=10, opaque=1, flag=0, ext={"b": "1", "a": "2"}, version=407)
    assert header_of(frame) == (
        b'{"code":10,"extFields":{"b":"1","a":"2"},"flag":0,"language":"PYTHON","opaque":1,'
        b'"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    answer = encode_head(code=0, opaque=1, flag=FLAG_RESPONSE, ext={}, remark="done")
    decoded = json.loads(header_of(answer))
    assert decoded["extFields"] == {}
    assert decoded["remark"] == "done"


def test_codes_over_16_bits_need_json() -> None:
    with pytest.raises(LocalProtocolError, match="code 200050 does not fit the binary header"):
        encode_head(code=200_050, opaque=0, flag=0, ext={}, codec=BINARY)
    frame = encode_head(code=200_050, opaque=0, flag=0, ext={})
    assert decode_head(JSON, header_of(frame)).code == 200_050


@pytest.mark.parametrize(
    ("header", "head"),
    [
        ({"code": 1}, Head(1, 0, 0, 0, "OTHER", None, {})),
        ({"code": 1, "remark": ""}, Head(1, 0, 0, 0, "OTHER", None, {})),
        ({"code": 1, "extFields": None}, Head(1, 0, 0, 0, "OTHER", None, {})),
        ({"code": 1, "language": 3}, Head(1, 0, 0, 0, "PYTHON", None, {})),
        ({"code": 1, "language": 99}, Head(1, 0, 0, 0, "OTHER", None, {})),
        ({"code": 1, "language": -1}, Head(1, 0, 0, 0, "OTHER", None, {})),
        ({"code": 1, "language": "CPP", "x": [1]}, Head(1, 0, 0, 0, "CPP", None, {})),
        (
            {"code": "34", "extFields": {"a": 1, "b": True, "c": None, "d": "t"}},
            Head(34, 0, 0, 0, "OTHER", None, {"a": "1", "b": "true", "d": "t"}),
        ),
    ],
)
def test_json_headers_in_other_spellings(header: dict[str, Any], head: Head) -> None:
    assert decode_head(JSON, json.dumps(header).encode()) == head


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"{", b"[]", b"{}", b"null", b"\xff", b'{"code":null}', b'{"code":"x"}'),
        *(b'{"code":2147483648}', b'{"code":1,"opaque":-2147483649}', b'{"code":1,"extFields":[]}'),
        *(b'{"code":1,"remark":"\xff"}', b'{"code":1,"x":' + b"[" * 100_000),
    ],
)
def test_what_is_no_json_header_is_refused(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="JSON header cannot be read"):
        decode_head(JSON, header)


def binary(*entries: bytes, remark: bytes = b"", entries_bytes: int | None = None) -> bytes:
    joined = b"".join(entries)
    size = len(joined) if entries_bytes is None else entries_bytes
    fixed = struct.pack(">hBhiii", 10, 0, 407, 5, FLAG_ONEWAY, len(remark))
    return fixed + remark + struct.pack(">i", size) + joined


def entry(key: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value


def test_an_empty_text_of_a_binary_header_is_absent() -> None:
    head = decode_head(BINARY, binary(entry(b"a", b""), entry(b"", b"x"), entry(b"b", b"1")))
    assert head == Head(10, 5, FLAG_ONEWAY, 407, "JAVA", None, {"b": "1"})


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"", "ends too early"),
        (binary()[:-1], "ends too early"),
        (binary(entries_bytes=-1), "entries of -1 bytes"),
        (binary(entries_bytes=1), "entries of 1 bytes"),
        (binary(b"\0", entries_bytes=1), "ends too early"),
        (binary(b"\xff\xff"), "text of -1 bytes"),
        (binary(b"\0\x01a\x7f\xff\xff\xff"), "leaves the header"),
        (binary(entry(b"a", b"\xff")), "cannot be read"),
        (binary(remark=b"\xff"), "cannot be read"),
        (struct.pack(">hBhiii", 10, 0, 407, 5, 0, -5), "text of -5 bytes"),
    ],
)
def test_what_is_no_binary_header_is_refused(header: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        decode_head(BINARY, header)


def test_another_codec_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="header codec 2 is neither"):
        decode_head(2, b"{}")


@given(st.sampled_from([JSON, BINARY]), st.binary(max_size=80))
def test_random_headers_are_read_or_refused(codec: int, header: bytes) -> None:
    try:
        head = decode_head(codec, header)
    except RemoteProtocolError:
        return
    assert isinstance(head, Head)


def test_a_request_knows_whether_it_wants_an_answer() -> None:
    assert Request(1, NoFields(), 0, flag=FLAG_ONEWAY).oneway
    assert not Request(1, NoFields(), 0).oneway
