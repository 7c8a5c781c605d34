"""Fields in every spelling that clients use."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import BadRequest
from cometmq.protocol.fields import Flag, from_ext, stringify, to_ext, truth
from cometmq.protocol.headers import (
    GetBrokerConfigResponse,
    Topic,
    TopicQueue,
    UpdateConsumerOffset,
)
from tests.protocol.strategies import HEADER_TYPES


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        *((True, True), ("true", True), ("TRUE", True), ("True", True)),
        *((False, False), ("false", False), ("1", False), (1, False), ("", False), (None, False)),
        *(("yes", False), (" true", False)),
    ],
)
def test_only_true_means_true(value: Flag, meaning: bool) -> None:
    assert truth(value) is meaning


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (True, "true"), (False, "false"), (0, "0"), (-7, "-7"), (1.5, "1.5")],
)
def test_values_become_the_text_a_java_client_sends(value: object, text: str) -> None:
    assert stringify(value) == text


def test_absent_fields_are_not_sent() -> None:
    assert to_ext(None) == {}
    assert to_ext(TopicQueue("t", 3)) == {"topic": "t", "queueId": "3"}


@pytest.mark.parametrize(("text", "value"), [("7", 7), ("+7", 7), ("-7", -7), ("007", 7)])
def test_numbers_as_java_reads_them(text: str, value: int) -> None:
    assert from_ext(TopicQueue, {"topic": "t", "queueId": text}).queue_id == value


@pytest.mark.parametrize(
    "text", ["x", "1.0", "1_0", " 1", "1 ", "0x10", "--1", "１", "9" * 5000, "true"]
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"header field queueId: .* is not a whole number") as info:
        from_ext(TopicQueue, {"topic": "t", "queueId": text})
    assert info.value.code == 1
    assert len(info.value.remark) < 120


@pytest.mark.parametrize(
    ("cls", "field", "bits"),
    [(TopicQueue, "queueId", 32), (UpdateConsumerOffset, "commitOffset", 64)],
)
def test_numbers_keep_their_bounds(cls: type[TopicQueue], field: str, bits: int) -> None:
    ext = {"topic": "t", "queueId": "0", "consumerGroup": "g", "commitOffset": "0"}
    top = 2 ** (bits - 1)
    for value in (top - 1, -top):
        assert to_ext(from_ext(cls, ext | {field: str(value)}))[field] == str(value)
    for value in (top, -top - 1):
        with pytest.raises(BadRequest, match=f"header field {field}: {value} does not fit {bits}"):
            from_ext(cls, ext | {field: str(value)})


def test_an_empty_number_is_a_missing_one_and_an_empty_text_is_a_text() -> None:
    with pytest.raises(BadRequest, match="header field queueId is missing"):
        from_ext(TopicQueue, {"topic": "t", "queueId": ""})
    assert from_ext(Topic, {"topic": ""}).topic == ""


def test_unknown_fields_are_ignored() -> None:
    assert from_ext(GetBrokerConfigResponse, {"version": "v", "lo": "", "ns": "x"}).version == "v"


names = st.sampled_from(["topic", "queueId", "a", "b", "e", "offset", "brokerId", "consumerGroup"])


@given(st.sampled_from(HEADER_TYPES), st.dictionaries(names, st.text(max_size=20)))
def test_any_text_is_read_or_refused(cls: type[Topic], ext: dict[str, str]) -> None:
    with contextlib.suppress(BadRequest):
        assert isinstance(from_ext(cls, ext), cls)
