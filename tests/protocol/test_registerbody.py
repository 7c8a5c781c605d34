"""Registration bodies in both forms."""

import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import BadRequest
from cometmq.protocol import registerbody
from cometmq.protocol.bodies import PIECE_VALUES, DataVersion, TopicConfig, TopicConfigTable
from cometmq.protocol.registerbody import RegisterBodyReader, body_crc32
from tests.protocol.registering import Body, decode, encode

names = st.text("abcXYZ%_-|0129", min_size=1, max_size=20)
numbers = st.integers(0, 2**31 - 1)
kinds = st.sampled_from(["SINGLE_TAG", "MULTI_TAG"])
# The compressed form carries neither system flags nor the order mark.
plain_topics = st.builds(TopicConfig, names, numbers, numbers, st.integers(0, 15), kinds)
flagged_topics = st.builds(
    TopicConfig, names, numbers, numbers, st.integers(0, 15), kinds, numbers, st.booleans()
)


def bodies(topics: st.SearchStrategy[TopicConfig]) -> st.SearchStrategy[Body]:
    tables = st.lists(topics, max_size=8).map(
        lambda found: {topic.topic_name: topic for topic in found}
    )
    versions = st.builds(DataVersion, numbers, st.integers(0, 2**62))
    return st.tuples(
        st.builds(TopicConfigTable, versions, tables), st.lists(st.text(max_size=20), max_size=3)
    )


def many_topics(count: int) -> TopicConfigTable:
    topics = {f"topic-{number}": TopicConfig(f"topic-{number}", number) for number in range(count)}
    return TopicConfigTable(DataVersion(count, 5), topics)


@given(bodies(flagged_topics))
def test_the_plain_form_survives(body: Body) -> None:
    data = encode(*body, compressed=False)
    json.loads(data)
    assert decode(data, compressed=False, crc32=body_crc32(data)) == body


@given(bodies(plain_topics))
def test_the_compressed_form_survives(body: Body) -> None:
    data = encode(*body, compressed=True)
    assert decode(data, compressed=True, crc32=body_crc32(data)) == body


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("unpack_step", [64, 4096])
def test_a_long_body_is_read_in_pieces(
    monkeypatch: pytest.MonkeyPatch, compressed: bool, unpack_step: int
) -> None:
    monkeypatch.setattr(registerbody, "_UNPACK_STEP_BYTES", unpack_step)
    monkeypatch.setattr(registerbody, "_JSON_STEP_BYTES", 50_000)
    table = many_topics(4 * PIECE_VALUES + 1)
    data = encode(table, ["f:1"], compressed=compressed)
    assert decode(data, compressed=compressed) == (table, ["f:1"])
    reader = RegisterBodyReader(data, compressed=compressed, crc32=None)
    pieces = [piece for piece in reader.pieces(lambda _: True) if piece]
    assert len(pieces) >= 4
    assert max(map(len, pieces)) < 2 * PIECE_VALUES


@pytest.mark.parametrize("compressed", [True, False])
def test_topics_that_are_not_wanted_are_passed_over(compressed: bool) -> None:
    data = encode(many_topics(5_000), ["f:1"], compressed=compressed)
    reader = RegisterBodyReader(data, compressed=compressed, crc32=None)
    asked: list[DataVersion] = []
    assert not any(reader.pieces(asked.append))  # type: ignore[arg-type]
    assert not reader.has_topics
    assert asked == [DataVersion(5_000, 5)]
    assert (reader.data_version, reader.filter_servers) == (DataVersion(5_000, 5), ["f:1"])


@given(
    st.integers(1, 60),
    st.lists(st.dictionaries(st.text('{}",: a\\', max_size=6), st.text('{}",: \\', max_size=6))),
    st.sampled_from([(",", ":"), (" ,\n ", " : ")]),
)
def test_json_is_cut_between_topics_only(
    step: int, attributes: list[dict[str, str]], separators: tuple[str, str]
) -> None:
    topics = {
        f'{number}"}},"': {"topicName": str(number), "attributes": each, "perm": number % 16}
        for number, each in enumerate(attributes)
    }
    text = json.dumps(
        {"topicConfigSerializeWrapper": {"topicConfigTable": topics}}, separators=separators
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registerbody, "_JSON_STEP_BYTES", step)
        table, _ = decode(text.encode(), compressed=False)
    assert table.topic_config_table == {
        name: TopicConfig(str(number), perm=number % 16) for number, name in enumerate(topics)
    }


def test_the_plain_form_is_upstreams() -> None:
    table = TopicConfigTable(DataVersion(3, 5), {"t": TopicConfig("t", 4, 8, 6)})
    assert encode(table, compressed=False) == (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,'
        b'"timestamp":5},"topicConfigTable":{"t":{"order":false,"perm":6,"readQueueNums":4,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"t","topicSysFlag":0,"writeQueueNums":8}}}}'
    )


@pytest.mark.parametrize("compressed", [True, False])
def test_an_absent_body_has_no_topics(compressed: bool) -> None:
    assert decode(b"", compressed=compressed) == (TopicConfigTable(), [])


def test_the_checksum_is_compared_unless_it_is_0() -> None:
    data = encode(TopicConfigTable(), compressed=False)
    for unchecked in (0, None, body_crc32(data)):
        assert decode(data, compressed=False, crc32=unchecked) == (TopicConfigTable(), [])
    with pytest.raises(BadRequest, match="crc32 not match") as info:
        decode(data, compressed=False, crc32=body_crc32(data) ^ 1)
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
    table, _ = decode(zlib.compress(plain), compressed=True)
    assert table.data_version == DataVersion(1, 2, 7)
    assert table.topic_config_table == {"t": TopicConfig("t", 4, 8, 6)}


def test_an_empty_filter_server_list_may_be_no_text() -> None:
    plain = VERSION + struct.pack(">i", 0) + sized(b"")
    assert decode(zlib.compress(plain), compressed=True) == (
        TopicConfigTable(DataVersion(1, 2, 7)),
        [],
    )


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
        decode(zlib.compress(plain), compressed=True)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (b"null", "topicConfigTable is not an object"),
        (b'"{}"', "topicConfigTable is not an object"),
        (b'{"t":1}', "Expected `object`, got `int`"),
        (b'{"t":{"topicName":"t","perm":"x"}}', "Expected `int`, got `str`"),
        (b'{"t":{"topicName":"t"},}', "JSON body"),
    ],
)
def test_json_that_lies_is_refused(table: bytes, problem: str) -> None:
    text = b'{"topicConfigSerializeWrapper":{"topicConfigTable":' + table + b"}}"
    with pytest.raises(BadRequest, match=problem):
        decode(text, compressed=False)


def test_a_topic_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registerbody, "_JSON_STEP_MAX_BYTES", registerbody._JSON_STEP_BYTES)
    filling = {f"key-{number}": {"a": "b"} for number in range(10_000)}
    topics = {"t": {"topicName": "t", "attributes": filling}, "u": {"topicName": "u"}}
    text = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": topics}})
    with pytest.raises(BadRequest, match="JSON body"):
        decode(text.encode(), compressed=False)


def test_what_is_not_packed_is_refused() -> None:
    with pytest.raises(BadRequest, match="cannot be unpacked"):
        decode(b"no zlib stream", compressed=True)


def test_a_body_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registerbody, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(BadRequest, match="unpacks to more than 1000 bytes"):
        decode(zlib.compress(b"0" * 1001), compressed=True)


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_read_or_refused(plain: bytes, compressed: bool) -> None:
    data = zlib.compress(plain) if compressed else plain
    try:
        table, _ = decode(data, compressed=compressed)
    except BadRequest:
        return
    assert isinstance(table, TopicConfigTable)
