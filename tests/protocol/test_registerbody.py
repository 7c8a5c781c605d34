"""Registration bodies in both forms."""

import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import BadRequest
from cometmq.protocol import registerbody
from cometmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from cometmq.protocol.registerbody import body_crc32, decode_register_body, encode_register_body

names = st.text("abcXYZ%_-|0129", min_size=1, max_size=20)
numbers = st.integers(0, 2**31 - 1)
kinds = st.sampled_from(["SINGLE_TAG", "MULTI_TAG"])
# The compressed form carries neither system flags nor the order mark.
plain_topics = st.builds(TopicConfig, names, numbers, numbers, st.integers(0, 15), kinds)
flagged_topics = st.builds(
    TopicConfig, names, numbers, numbers, st.integers(0, 15), kinds, numbers, st.booleans()
)


def bodies(topics: st.SearchStrategy[TopicConfig]) -> st.SearchStrategy[RegisterBrokerBody]:
    tables = st.lists(topics, max_size=8).map(
        lambda found: {topic.topic_name: topic for topic in found}
    )
    versions = st.builds(DataVersion, numbers, st.integers(0, 2**62))
    return st.builds(
        RegisterBrokerBody,
        st.builds(TopicConfigTable, versions, tables),
        st.lists(st.text(max_size=20), max_size=3),
    )


@given(bodies(flagged_topics))
def test_the_plain_form_survives(body: RegisterBrokerBody) -> None:
    data = encode_register_body(body, compressed=False)
    json.loads(data)
    assert decode_register_body(data, compressed=False, crc32=body_crc32(data)) == body


@given(bodies(plain_topics))
def test_the_compressed_form_survives(body: RegisterBrokerBody) -> None:
    data = encode_register_body(body, compressed=True)
    assert decode_register_body(data, compressed=True, crc32=body_crc32(data)) == body


def test_the_plain_form_is_upstreams() -> None:
    table = TopicConfigTable(DataVersion(3, 5), {"t": TopicConfig("t", 4, 8, 6)})
    assert encode_register_body(RegisterBrokerBody(table, []), compressed=False) == (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,'
        b'"timestamp":5},"topicConfigTable":{"t":{"order":false,"perm":6,"readQueueNums":4,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"t","topicSysFlag":0,"writeQueueNums":8}}}}'
    )


@pytest.mark.parametrize("compressed", [True, False])
def test_an_absent_body_has_no_topics(compressed: bool) -> None:
    assert decode_register_body(b"", compressed=compressed, crc32=None) == RegisterBrokerBody()


def test_the_checksum_is_compared_unless_it_is_0() -> None:
    data = encode_register_body(RegisterBrokerBody(), compressed=False)
    for unchecked in (0, None, body_crc32(data)):
        assert decode_register_body(data, compressed=False, crc32=unchecked) == RegisterBrokerBody()
    with pytest.raises(BadRequest, match="crc32 not match") as info:
        decode_register_body(data, compressed=False, crc32=body_crc32(data) ^ 1)
    assert info.value.code == 1
    assert 0 <= body_crc32(b"123456789") == 0xCBF43926 & 0x7FFFFFFF


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


VERSION = sized(b'{"counter":1,"timestamp":2,"stateVersion":7}')


def test_a_5x_body_with_attributes_and_mappings_is_read() -> None:
    plain = (
        VERSION
        + struct.pack(">i", 1)
        + sized(b't 4 8 6 SINGLE_TAG {"message.type":"NORMAL"}')
        + sized(b"[]")
        + struct.pack(">i", 0)
        + sized(b"{}")
    )
    body = decode_register_body(zlib.compress(plain), compressed=True, crc32=None)
    table = body.topic_config_serialize_wrapper
    assert table.data_version == DataVersion(1, 2, 7)
    assert table.topic_config_table == {"t": TopicConfig("t", 4, 8, 6)}


def test_an_empty_filter_server_list_may_be_no_text() -> None:
    plain = VERSION + struct.pack(">i", 0) + sized(b"")
    body = decode_register_body(zlib.compress(plain), compressed=True, crc32=None)
    assert body.filter_server_list == []


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        (b"", "ends at 0, wanted 4 at 0"),
        (struct.pack(">i", -1), "-1 bytes at 4 leave its 4"),
        (struct.pack(">i", 9) + b"{}", "9 bytes at 4 leave its 6"),
        (sized(b"x"), "JSON body"),
        (VERSION + struct.pack(">i", 2) + sized(b"t 4 8 6 SINGLE_TAG"), "ends at"),
        (VERSION + struct.pack(">i", 1) + sized(b"t 4"), "is not 'name read write perm type'"),
        (VERSION + struct.pack(">i", 1) + sized(b"t 4 x 6 S"), "is not 'name read"),
        (VERSION + struct.pack(">i", 1) + sized(b"\xff 4 4 6 S"), "is not 'name read"),
    ],
)
def test_a_body_that_ends_or_lies_is_refused(plain: bytes, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        decode_register_body(zlib.compress(plain), compressed=True, crc32=None)


def test_what_is_not_packed_is_refused() -> None:
    with pytest.raises(BadRequest, match="cannot be unpacked"):
        decode_register_body(b"no zlib stream", compressed=True, crc32=None)


def test_a_body_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registerbody, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(BadRequest, match="unpacks to more than 1000 bytes"):
        decode_register_body(zlib.compress(b"0" * 1001), compressed=True, crc32=None)


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_read_or_refused(plain: bytes, compressed: bool) -> None:
    data = zlib.compress(plain) if compressed else plain
    try:
        body = decode_register_body(data, compressed=compressed, crc32=None)
    except BadRequest:
        return
    assert isinstance(body, RegisterBrokerBody)
