"""Points in queues, as options name them."""

import json

import pytest

from cometmq.message.model import MessageQueue
from cometmq.spark.options import BadOption, moment_ms
from cometmq.spark.read.positions import (
    STRATEGY,
    AtGroup,
    AtOffsets,
    AtTimes,
    Edge,
    NamedPosition,
    Position,
    ending,
    in_order,
    starting,
)

A0, A1, B0 = (
    MessageQueue("T", name, at) for name, at in [("broker-a", 0), ("broker-a", 1), ("broker-b", 0)]
)
OFFSETS = '{"T": {"broker-a": {"0": 12, "1": -2}, "broker-b": {"0": -1}}}'
TIMES = '{"T": {"broker-a": {"0": 12, "1": "1970-01-01T00:00:01Z"}}}'


def start(**given: str) -> Position:
    found = starting(given)
    assert found is not None
    return found.position


def end(**given: str) -> Position:
    found = ending(given)
    assert found is not None
    return found.position


def test_offsets_by_queue() -> None:
    queues = {A0: 12, A1: -2, B0: -1}
    assert start(startingOffsets=OFFSETS) == AtOffsets(queues, Edge.EARLIEST)
    assert end(endingOffsets=OFFSETS) == AtOffsets(queues, Edge.LATEST)


def test_edges_and_nothing() -> None:
    assert starting({"startingOffsets": "Latest"}) == NamedPosition("startingOffsets", Edge.LATEST)
    assert end(endingOffsets="earliest") is Edge.EARLIEST
    assert starting({}) is ending({}) is None


def test_times_for_all_and_by_queue() -> None:
    assert end(endingTimestamp="1700000000123") == AtTimes(1_700_000_000_123)
    assert start(startingOffsetsByTimestamp=TIMES) == AtTimes(
        None, {A0: 12, A1: 1000}, Edge.EARLIEST
    )
    assert end(endingOffsetsByTimestamp=TIMES) == AtTimes(None, {A0: 12, A1: 1000}, Edge.LATEST)


def test_a_moment_after_the_last_message_may_be_an_error() -> None:
    strict = start(startingTimestamp="5", **{STRATEGY: "error"})
    assert strict == AtTimes(5, is_strict=True)
    assert start(startingTimestamp="5", **{STRATEGY: "latest"}) == AtTimes(5)
    for given in ({}, {"startingOffsets": "latest"}):
        with pytest.raises(BadOption, match=f"'{STRATEGY}': needs startingTimestamp"):
            starting({**given, STRATEGY: "error"})


def test_a_group() -> None:
    given = {"startingOffsets": "group", "consumerGroup": "g"}
    assert start(**given) == AtGroup("g", Edge.EARLIEST)
    assert start(**given, uncommittedOffsets="latest") == AtGroup("g", Edge.LATEST)
    with pytest.raises(BadOption, match="'consumerGroup': is required"):
        starting({"startingOffsets": "group"})
    with pytest.raises(BadOption, match="'endingOffsets'"):
        ending({"endingOffsets": "group", "consumerGroup": "g"})
    with pytest.raises(BadOption, match="'uncommittedOffsets': needs"):
        starting({"uncommittedOffsets": "latest"})


def test_a_start_after_the_end_is_refused_before_anybody_is_asked() -> None:
    first, last = starting({"startingTimestamp": "6"}), ending({"endingTimestamp": "5"})
    with pytest.raises(BadOption, match="'endingTimestamp': is before startingTimestamp"):
        in_order(first, last)
    in_order(starting({"startingTimestamp": "5"}), last)
    in_order(starting({"startingOffsets": "latest"}), last)
    in_order(starting({"startingOffsetsByTimestamp": TIMES}), last)
    in_order(None, last)


@pytest.mark.parametrize(
    "given",
    [
        {"endingOffsets": "5", "endingTimestamp": "5"},
        {"endingOffsetsByTimestamp": "{}", "endingTimestamp": "5"},
    ],
)
def test_only_one_option_may_name_a_point(given: dict[str, str]) -> None:
    with pytest.raises(BadOption, match="cannot be given together"):
        ending(given)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1970-01-01T00:00:01.5Z", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
    ],
)
def test_moments(text: str, expected: int) -> None:
    assert moment_ms(text) == expected


@pytest.mark.parametrize(
    "value", ["first", {"b": {"x": 1}}, {"b": {"0": -3}}, {"b": {"0": "4"}}, {"b": [0]}]
)
def test_what_is_no_offset(value: object) -> None:
    text = value if isinstance(value, str) else json.dumps({"T": value})
    with pytest.raises(BadOption, match="endingOffsets"):
        ending({"endingOffsets": text})


@pytest.mark.parametrize("text", ["5", '{"T": {"b": {"0": "yesterday"}}}'])
def test_what_is_no_time_of_queues(text: str) -> None:
    with pytest.raises(BadOption, match="startingOffsetsByTimestamp"):
        starting({"startingOffsetsByTimestamp": text})
