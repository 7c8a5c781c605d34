"""One side of a connection: the same events for any split, and nothing worse than a refusal."""

import itertools
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import RemoteProtocolError
from cometmq.protocol import headers as h
from cometmq.protocol.codes import Language, RequestCode
from cometmq.protocol.connection import Answered, Connection, Event, Rejected
from cometmq.protocol.fields import from_ext, to_ext, truth
from cometmq.protocol.frame import (
    BINARY,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    JSON,
    Request,
    encode_head,
    encode_response,
)
from cometmq.protocol.registry import FAST_DECODERS
from tests.protocol.strategies import REQUEST_CODES, header_values, requests

SEND = h.SendMessageV2("group", "topic", "TBW102", 4, 0, 0, 1_700_000_000_000, 0)


def frame(header: object, body: bytes = b"", codec: int = JSON) -> bytes:
    raw = (
        header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    )
    return struct.pack(">II", 4 + len(raw) + len(body), codec << 24 | len(raw)) + raw + body


def all_events(connection: Connection[str], limit: int = 100) -> list[Event[str]]:
    events: list[Event[str]] = []
    while connection.has_more:
        events += connection.next_events(limit)
    return events


def one(connection: Connection[str]) -> Event[str]:
    (event,) = all_events(connection)
    return event


def receive(data: bytes) -> Event[str]:
    connection: Connection[str] = Connection()
    connection.receive_data(data)
    return one(connection)


codecs = st.sampled_from([JSON, BINARY])
# The binary header cannot tell empty text from none, so text there has a character at least.
sent_requests = st.tuples(requests(min_size=1), st.binary(max_size=50), codecs, st.booleans())


def encode(
    connection: Connection[str], code: int, header: h.Header, body: bytes, codec: int, oneway: bool
) -> bytes:
    if oneway:
        head = connection.encode_oneway(code, header, body_bytes=len(body), codec=codec)
    else:
        _, head = connection.encode_request(
            code, header, "token", 1000, body_bytes=len(body), codec=codec
        )
    return head + body


@given(sent_requests)
def test_a_request_arrives_as_it_was_sent(
    sent: tuple[tuple[int, h.Header], bytes, int, bool],
) -> None:
    (code, header), body, codec, oneway = sent
    event = receive(encode(Connection(Language.GO), code, header, body, codec, oneway))
    assert isinstance(event, Request)
    assert (event.code, event.header, event.body) == (code, header, body)
    assert (event.codec, event.oneway, event.version) == (codec, oneway, 407)
    assert event.language == "GO"
    assert event.remark is None


@given(requests())
def test_empty_text_survives_in_json(sent: tuple[int, h.Header]) -> None:
    code, header = sent
    event = receive(Connection[str]().encode_oneway(code, header))
    assert isinstance(event, Request)
    assert event.header == header


@given(st.lists(sent_requests, max_size=6), st.lists(st.integers(0, 3000)), st.integers(1, 40))
def test_any_split_of_the_stream_gives_the_same_events(
    sent: list[tuple[tuple[int, h.Header], bytes, int, bool]], cuts: list[int], limit: int
) -> None:
    sender: Connection[str] = Connection()
    stream = b"".join(
        encode(sender, code, header, body, codec, oneway)
        for (code, header), body, codec, oneway in sent
    )
    whole: Connection[str] = Connection()
    whole.receive_data(stream)
    expected = all_events(whole)
    pieces: Connection[str] = Connection()
    events = []
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, stop in itertools.pairwise(edges):
        pieces.receive_data(stream[start:stop])
        events += all_events(pieces, limit)
    assert events == expected
    assert len(events) == len(sent)
    assert pieces.buffered_bytes == 0


@given(st.sampled_from(sorted(FAST_DECODERS)), st.data())
def test_the_fast_path_and_the_tolerant_path_agree(code: bytes, data: st.DataObject) -> None:
    header = data.draw(header_values(REQUEST_CODES[int(code)]))
    fields = {
        "opaque": 7,
        "flag": 0,
        "language": "JAVA",
        "version": 407,
        "extFields": to_ext(header),
    }
    fast = receive(frame({"code": int(code)} | fields))
    slow = receive(frame(fields | {"code": int(code)}))
    assert fast == slow
    assert isinstance(fast, Request)
    assert fast.header == header


# ------------------------------------------------------------------- headers of other clients


def test_a_send_of_the_cpp_client() -> None:
    ext = to_ext(SEND) | {"m": "1", "Signature": "", "AccessKey": "", "OnsChannel": ""}
    event = receive(
        frame(
            {"code": 310, "extFields": ext, "flag": 0, "language": "CPP", "opaque": 3}
            | {"remark": "", "version": 333},
            b"body",
        )
    )
    assert isinstance(event, Request)
    assert event.header.topic == "topic"
    assert not truth(event.header.batch)
    assert event.body == b"body"


@pytest.mark.parametrize("code_first", [True, False])
def test_a_send_of_ali_ons_with_numbers_and_booleans(code_first: bool) -> None:
    ext: dict[str, Any] = dict(to_ext(SEND))
    ext |= {"d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "j": 0, "k": False, "m": True}
    rest = {"extFields": ext, "opaque": 1, "version": 121, "language": "JAVA", "flag": 0}
    event = receive(frame({"code": 310} | rest if code_first else rest | {"code": 310}))
    assert isinstance(event, Request)
    assert event.header.born_timestamp == 1_700_000_000_000
    assert truth(event.header.batch)
    assert not truth(event.header.unit_mode)


@pytest.mark.parametrize("text", ["+4", "", None])
def test_what_the_fast_path_refuses_is_read_tolerantly(text: str | None) -> None:
    ext = to_ext(SEND) | {"j": text}
    event = receive(frame({"code": 310, "opaque": 1, "extFields": ext}))
    assert isinstance(event, Request)
    assert event.header.reconsume_times == (4 if text else None)


def test_fields_of_the_frame_object_cannot_be_forged() -> None:
    event = receive(
        frame({"code": 310, "opaque": 1, "extFields": to_ext(SEND), "codec": 9, "-body": "AAAA"})
    )
    assert isinstance(event, Request)
    assert (event.codec, event.body) == (JSON, b"")


def test_a_code_without_a_row_keeps_its_fields_as_text() -> None:
    event = receive(frame({"code": 9999, "opaque": 1, "extFields": {"x": 1}}))
    assert isinstance(event, Request)
    assert (event.code, event.header) == (9999, {"x": "1"})


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("oneway", [True, False])
@pytest.mark.parametrize("codec", [JSON, BINARY])
def test_a_request_without_a_field_is_rejected_alone(oneway: bool, codec: int) -> None:
    flag = FLAG_ONEWAY if oneway else 0
    bad = encode_head(code=310, opaque=4, flag=flag, ext={"a": "g"}, codec=codec)
    good = encode_head(code=310, opaque=5, flag=0, ext=to_ext(SEND), codec=codec)
    connection: Connection[str] = Connection()
    connection.receive_data(bad + good)
    rejected, request = all_events(connection)
    assert isinstance(rejected, Rejected)
    assert (rejected.code, rejected.request.opaque, rejected.request.oneway) == (310, 4, oneway)
    assert (rejected.request.codec, rejected.error.remark) == (
        codec,
        "header field b is missing: send it",
    )
    assert isinstance(request, Request)


@pytest.mark.parametrize("bad", [frame(b"{"), frame(b"", codec=7), b"\0" * 8])
def test_events_before_a_broken_frame_come_first(bad: bytes) -> None:
    good = Connection[str]().encode_oneway(310, SEND)
    connection: Connection[str] = Connection()
    connection.receive_data(good + good + bad + good)
    assert len(connection.next_events(10)) == 2
    assert connection.has_more
    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            connection.next_events(10)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_random_bytes_break_only_the_stream(pieces: list[bytes]) -> None:
    connection: Connection[str] = Connection()
    for piece in pieces:
        connection.receive_data(piece)
        try:
            all_events(connection)
        except RemoteProtocolError:
            return


@given(sent_requests, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4))
def test_mutated_frames_are_read_or_refused(
    sent: tuple[tuple[int, h.Header], bytes, int, bool], changes: list[tuple[int, int]]
) -> None:
    (code, header), body, codec, oneway = sent
    data = bytearray(encode(Connection(), code, header, body, codec, oneway))
    for at, value in changes:
        data[at % len(data)] = value
    connection: Connection[str] = Connection()
    connection.receive_data(bytes(data))
    try:
        events = all_events(connection)
    except RemoteProtocolError:
        return
    for event in events:
        assert isinstance(event, Request | Rejected)
        request = event.request if isinstance(event, Rejected) else event
        if isinstance(event, Rejected):
            assert event.error.remark
        # Whatever came in can be answered without an error of our own.
        assert encode_response(request, 1, remark="x")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists))
def test_any_json_in_any_field_is_read_or_refused(value: object) -> None:
    names = ("code", "opaque", "flag", "version", "language", "remark", "extFields")
    for name in names:
        header = {"code": 310, "opaque": 1, "extFields": to_ext(SEND)} | {name: value}
        connection: Connection[str] = Connection()
        connection.receive_data(frame(header))
        try:
            events = all_events(connection)
        except RemoteProtocolError:
            continue
        assert len(events) <= 1


# -------------------------------------------------------------------- requests of this side


def answer(opaque: int, codec: int = JSON, code: int = 0) -> bytes:
    ext = {"offset": "5"}
    return encode_head(
        code=code, opaque=opaque, flag=FLAG_RESPONSE, ext=ext, codec=codec, body_bytes=2
    )


@pytest.mark.parametrize("codec", [JSON, BINARY])
def test_a_response_finds_its_token(codec: int) -> None:
    connection: Connection[str] = Connection()
    first, _ = connection.encode_request(30, h.TopicQueue("t", 0), "first", 100)
    second, _ = connection.encode_request(30, h.TopicQueue("t", 1), "second", 200)
    assert connection.in_flight == 2
    connection.receive_data(answer(second, codec) + b"ok" + answer(first, codec) + b"no")
    events = all_events(connection)
    assert [event.token for event in events if isinstance(event, Answered)] == ["second", "first"]
    response = events[0].response if isinstance(events[0], Answered) else None
    assert response is not None
    assert (response.code, response.body, response.ext) == (0, b"ok", {"offset": "5"})
    assert connection.in_flight == 0


def test_an_answer_that_nobody_waits_for_is_counted() -> None:
    connection: Connection[str] = Connection()
    connection.receive_data(answer(99, code=310) + b"ok" + answer(98) + b"ok")
    assert all_events(connection) == []
    assert connection.unknown_responses == 2


def test_a_response_code_that_equals_a_fast_request_code_is_a_response() -> None:
    connection: Connection[str] = Connection()
    opaque, _ = connection.encode_request(310, SEND, "token", 100)
    connection.receive_data(
        frame({"code": 310, "opaque": opaque, "flag": FLAG_RESPONSE, "extFields": to_ext(SEND)})
    )
    event = one(connection)
    assert isinstance(event, Answered)
    assert event.response.code == 310


def test_requests_expire_at_their_deadline() -> None:
    connection: Connection[str] = Connection()
    assert connection.next_deadline_ms() is None
    for token, deadline_ms in (("a", 300), ("b", 100), ("c", 200)):
        connection.encode_request(28, None, token, deadline_ms)
    assert connection.next_deadline_ms() == 100
    assert connection.expire(99) == []
    assert connection.expire(200) == ["b", "c"]
    assert connection.next_deadline_ms() == 300
    assert connection.close() == ["a"]
    assert connection.in_flight == 0


def test_a_forgotten_request_has_no_answer() -> None:
    connection: Connection[str] = Connection()
    opaque, _ = connection.encode_request(28, None, "token", 100)
    assert connection.forget(opaque) == "token"
    assert connection.forget(opaque) is None
    connection.receive_data(answer(opaque) + b"ok")
    assert all_events(connection) == []


def test_opaques_of_waiting_requests_are_not_given_again() -> None:
    connection: Connection[str] = Connection()
    waiting, _ = connection.encode_request(28, None, "first", 100)
    connection._next_opaque = 2**31 - 1
    last, _ = connection.encode_request(28, None, "last", 100)
    after, _ = connection.encode_request(28, None, "after", 100)
    assert (waiting, last, after) == (0, 2**31 - 1, 1)


def test_extra_fields_travel_beside_the_header() -> None:
    connection: Connection[str] = Connection()
    head = connection.encode_oneway(105, h.Topic("t"), extra={"Signature": "s"})
    event = receive(head)
    assert isinstance(event, Request)
    assert event.header == h.Topic("t")
    assert b'"Signature":"s"' in head


# --------------------------------------------------------------------------------- responses


@given(st.sampled_from([JSON, BINARY]), st.integers(0, 2**31 - 1), st.binary(max_size=20))
def test_a_response_goes_back_in_the_codec_of_its_request(
    codec: int, opaque: int, body: bytes
) -> None:
    request = Request(RequestCode.GET_MAX_OFFSET, h.TopicQueue("t", 0), opaque, codec=codec)
    head = encode_response(
        request, 0, header=h.QueueOffsetResponse(5), remark="fine", body_bytes=len(body)
    )
    assert head[4] == codec
    asker: Connection[str] = Connection()
    asker._pending[opaque] = (100, "token")
    asker.receive_data(head + body)
    event = one(asker)
    assert isinstance(event, Answered)
    response = event.response
    assert (response.code, response.opaque, response.remark) == (0, opaque, "fine")
    assert from_ext(h.QueueOffsetResponse, response.ext) == h.QueueOffsetResponse(5)
    assert response.body == body


def test_plain_fields_may_stand_in_for_a_header() -> None:
    request: Request[dict[str, str]] = Request(code=310, header={}, opaque=5, codec=BINARY)
    head = encode_response(request, 1, ext={"x": "1"}, remark="no")
    asker: Connection[str] = Connection()
    asker._pending[5] = (100, "token")
    asker.receive_data(head)
    event = one(asker)
    assert isinstance(event, Answered)
    assert (event.response.ext, event.response.remark) == ({"x": "1"}, "no")
