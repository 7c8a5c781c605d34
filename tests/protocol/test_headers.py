"""Every header struct keeps its content through the wire."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import BadRequest
from cometmq.protocol import headers as h
from cometmq.protocol.fields import from_ext, to_ext
from tests.protocol.strategies import HEADER_TYPES, all_header_structs, header_values


@pytest.mark.parametrize("cls", all_header_structs(), ids=lambda cls: cls.__name__)
def test_a_header_survives_its_wire_text(cls: type[h.Header]) -> None:
    @given(header_values(cls))
    def round_trip(header: h.Header) -> None:
        ext = to_ext(header)
        assert all(isinstance(value, str) for value in ext.values())
        assert from_ext(cls, ext) == header

    round_trip()


def test_every_header_struct_is_in_the_registry() -> None:
    assert all_header_structs() == HEADER_TYPES


@given(header_values(h.SendMessage))
def test_the_short_names_carry_the_long_header(header: h.Header) -> None:
    long = msgspec.structs.asdict(header)
    short = msgspec.structs.asdict(from_ext(h.SendMessageV2, to_ext(h.SendMessageV2(**long))))
    assert short == long


def test_wire_names_are_upstreams() -> None:
    assert set(to_ext(h.SendMessage("g", "t", "d", 4, 0, 0, 1, 2, broker_name="b"))) == {
        *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId"),
        *("sysFlag", "bornTimestamp", "flag", "bname"),
    }
    assert set(
        to_ext(h.SendMessageV2("g", "t", "d", 4, 0, 0, 1, 2, "p", 0, "false", 1, "false", "b"))
    ) == set("abcdefghijklmn")
    register = h.RegisterBroker("b", "a", "c", "h", 0, compressed=False, body_crc32=1)
    assert set(to_ext(register)) == {
        *("brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId"),
        *("compressed", "bodyCrc32"),
    }
    assert to_ext(h.UnregisterClient("c")) == {"clientID": "c"}
    response = h.SendMessageResponse("m", 0, 1, region="r", trace_on=True)
    assert to_ext(response)["MSG_REGION"] == "r"
    assert to_ext(response)["TRACE_ON"] == "true"
    query = h.QueryMessage("t", "k", 1, 0, 1, unique_key_query=True)
    assert to_ext(query)["_UNIQUE_KEY_QUERY"] == "true"


@given(st.sampled_from(HEADER_TYPES), st.data())
def test_a_missing_required_field_is_named(cls: type[h.Header], data: st.DataObject) -> None:
    required = [info.encode_name for info in msgspec.structs.fields(cls) if info.required]
    ext = to_ext(data.draw(header_values(cls)))
    for name in required:
        rest = {key: value for key, value in ext.items() if key != name}
        with pytest.raises(BadRequest, match=f"header field {name} is missing"):
            from_ext(cls, rest)
