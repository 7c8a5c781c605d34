"""fastjson's dialect, written and read."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import (
    ConsumeStatsRead,
    QueueKey,
    TopicOffset,
    TopicStats,
    TopicStatsRead,
)
from cometmq.protocol.fastjson import encode_json, object_map, parse_json, to_strict
from tests.pace import processor_time_within
from tests.protocol.strategies import texts

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(), inner, max_size=4),
    max_leaves=15,
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


@given(values)
def test_what_is_written_can_be_read(value: Any) -> None:
    data = encode_json(value)
    assert parse_json(data) == without_nulls(value)


@given(values)
def test_plain_json_passes_the_dialect_reader_unchanged(value: Any) -> None:
    assert json.loads(to_strict(json.dumps(value).encode())) == value


def test_writing_is_compact_sorted_and_without_nulls() -> None:
    assert encode_json({"b": None, "a": [1, {"d": "x", "c": None}], 7: True}) == (
        b'{"7":true,"a":[1,{"d":"x"}]}'
    )


@pytest.mark.parametrize(
    ("dialect", "strict"),
    [
        (b'{0:"a:1",1:"b:2"}', {"0": "a:1", "1": "b:2"}),
        (b'{"t":{0:12,-1:3}}', {"t": {"0": 12, "-1": 3}}),
        (b'{"k":[{1:2},{3:[4]}]}', {"k": [{"1": 2}, {"3": [4]}]}),
        (b'{{"a":1}:2}', {'{"a":1}': 2}),
        (
            b'{{"a":{"b":[1,2]},"c":0}:{"d":5},{"a":2}:6}',
            {'{"a":{"b":[1,2]},"c":0}': {"d": 5}, '{"a":2}': 6},
        ),
        (b'{{1:"x"}:2}', {'{"1":"x"}': 2}),
        (b'{"q":"a\\"{b}:,\\\\"}', {"q": 'a"{b}:,\\'}),
        (b'{0:[1,2,3,"x,y",4,5 ,6,7]}', {"0": [1, 2, 3, "x,y", 4, 5, 6, 7]}),
        (b"{a:1}", {"a": 1}),
    ],
)
def test_the_dialect_is_read(dialect: bytes, strict: dict[str, Any]) -> None:
    assert parse_json(dialect) == strict


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"}", b"[}", b"{]", b'{"a"', b"{[1]:2}", b"{0:}", b'{"a":1}}', b"nul"),
        *(b"\xff", b'{"a":"\xff"}', b"{0:" * 100, b"[" * 100, b'{{"a":1}', b"{1 2:3 4}"),
        *(b"[" * 200_000, b'{{{"a":1}:2}:3}', b"{0:1,2,3:4}", b"{0:[1,]}", b"1,2,3", b'{0:1"'),
    ],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match="JSON body") as info:
        parse_json(data)
    assert info.value.code == 1


def test_a_missing_body_is_called_missing() -> None:
    with pytest.raises(BadRequest, match="JSON body is missing: send it"):
        parse_json(b"")


def test_a_server_bounds_what_it_reads_in_the_dialect() -> None:
    dialect = b'{"k":{0:1}}'
    for limit in (len(dialect), len(dialect) + 1):
        assert parse_json(dialect, dict[str, dict[str, int]], dialect_max_bytes=limit)
    with pytest.raises(BadRequest, match="JSON body"):
        parse_json(dialect, dict[str, dict[str, int]], dialect_max_bytes=len(dialect) - 1)
    # Strict JSON costs little and has no such bound.
    assert parse_json(b'{"k":1}', dict[str, int], dialect_max_bytes=1) == {"k": 1}


def test_a_field_of_another_type_is_named() -> None:
    with pytest.raises(BadRequest, match="Expected `int`"):
        parse_json(b'{"minOffset":"x","maxOffset":1,"lastUpdateTimestamp":1}', TopicOffset)


@pytest.mark.parametrize(
    "unit",
    [b'"\\', b'\\"', b'"', b"{0:1,", b"0,", b"[],", b'{"a":1}:1,', b" ", b"a ", b"\\", b"{{", b"}"],
)
@pytest.mark.parametrize("opening", [b"{0:", b'{0:"', b"{0:[", b"{"])
def test_every_text_takes_linear_time(opening: bytes, unit: bytes) -> None:
    data = opening + unit * (256 * 1024 // len(unit))
    with processor_time_within(1.0), pytest.raises(BadRequest):
        parse_json(data)


def test_nested_object_keys_do_not_double() -> None:
    data = b'{{{{{"a":1}:1}:1}:1}:1}'
    with pytest.raises(ValueError, match="cannot be an object"):
        to_strict(data)
    assert len(to_strict(b'{{"a":"' + b'\\"' * 1_000 + b'"}:1}')) < 5_000


@given(st.binary(max_size=60) | st.text('{}[]:,"\\01a \n', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse_json(data)
    except BadRequest as error:
        remark = error.remark
    else:
        remark = "JSON body"
    assert remark.startswith("JSON body")


keys = st.builds(QueueKey, texts(), texts(), st.integers(0, 2**31 - 1))
offsets = st.builds(TopicOffset, *([st.integers(-1, 2**62)] * 3))


@given(st.dictionaries(keys, offsets, max_size=5))
def test_maps_keyed_by_a_queue_survive(table: dict[QueueKey, TopicOffset]) -> None:
    data = encode_json(TopicStats(object_map(table.items())))
    read = parse_json(data, TopicStatsRead)
    found = {parse_json(key.encode(), QueueKey): value for key, value in read.offset_table.items()}
    assert found == table


def test_an_object_keyed_map_has_upstreams_form() -> None:
    table = object_map([(QueueKey("t", "a", 0), TopicOffset(0, 3, 5))])
    assert encode_json(TopicStats(table)) == (
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:'
        b'{"lastUpdateTimestamp":5,"maxOffset":3,"minOffset":0}}}'
    )
    assert isinstance(table, msgspec.Raw)


def test_consume_statistics_of_a_java_broker() -> None:
    body = (
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"a","queueId":1,"topic":"t"}:'
        b'{"brokerOffset":7,"consumerOffset":5,"lastTimestamp":0}}}'
    )
    read = parse_json(body, ConsumeStatsRead)
    ((key, offset),) = read.offset_table.items()
    assert parse_json(key.encode(), QueueKey) == QueueKey("t", "a", 1)
    assert (offset.broker_offset, offset.consumer_offset, read.consume_tps) == (7, 5, 0.0)
