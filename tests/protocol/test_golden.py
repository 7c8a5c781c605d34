"""Frames that a real RocketMQ 4.9.7 and other clients sent, byte for byte.

Each is decoded to what the manifest says, read as the struct of its code, and written again: bytes
of both codecs, header fields and JSON bodies come out as they went in.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol import bodies as b
from cometmq.protocol.bodies import TopicRoute
from cometmq.protocol.codes import Language, RequestCode, ResponseCode
from cometmq.protocol.connection import Answered, Connection, Event
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.fields import from_ext, to_ext
from cometmq.protocol.frame import (
    BINARY,
    FLAG_RESPONSE,
    JSON,
    Head,
    Request,
    decode_head,
    encode_head,
)
from cometmq.protocol.framer import Framer
from cometmq.protocol.registry import REGISTRY
from tests.golden import library
from tests.golden.library import GoldenFrame, frame_bytes, frames
from tests.protocol.registering import decode, encode

#: Fields that newer or other clients add to any request: read by nobody.
IGNORED = {"bname", "ReqT", "Signature", "AccessKey", "OnsChannel", "acceptStandardJsonOnly"}
#: What mqadmin and an odd client ask that has no row.
NO_ROW = {204, 222, 303, 315, 317, 9999}
#: Answers that carry all fields of their header.
COMPLETE = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}

REQUEST_BODIES: dict[int, type[b.Body]] = {
    RequestCode.HEART_BEAT: b.Heartbeat,
    RequestCode.LOCK_BATCH_MQ: b.QueueLockRequest,
    RequestCode.UNLOCK_BATCH_MQ: b.QueueLockRequest,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: b.SubscriptionGroupConfig,
    RequestCode.QUERY_DATA_VERSION: b.DataVersion,
}
RESPONSE_BODIES: dict[int, Any] = {
    RequestCode.GET_BROKER_RUNTIME_INFO: b.KvTable,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: b.ConsumerIds,
    RequestCode.LOCK_BATCH_MQ: b.QueueLockResponse,
    RequestCode.REGISTER_BROKER: b.KvTable,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRoute,
    RequestCode.GET_BROKER_CLUSTER_INFO: b.ClusterInfo,
    RequestCode.GET_TOPIC_STATS_INFO: b.TopicStatsRead,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: b.ConsumerConnections,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: b.TopicList,
    RequestCode.GET_CONSUME_STATS: b.ConsumeStatsRead,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: b.GroupList,
    RequestCode.QUERY_DATA_VERSION: b.DataVersion,
}


@dataclass(frozen=True, slots=True)
class Golden:
    """One frame: its line of the manifest, its bytes, and both parts decoded."""

    line: GoldenFrame
    data: bytes
    head: Head
    codec: int
    body: bytes

    @property
    def code(self) -> int:
        """The request's code, also for an answer."""
        return self.line["answers_code"] if self.is_response else self.head.code

    @property
    def is_response(self) -> bool:
        return bool(self.head.flag & FLAG_RESPONSE)

    @property
    def is_java(self) -> bool:
        return self.line["sender"].startswith("java-")


def load(line: GoldenFrame) -> Golden:
    data = frame_bytes(line["file"])
    framer = Framer()
    framer.receive_data(data)
    (raw,) = framer.take(2)
    assert framer.buffered_bytes == 0
    return Golden(line, data, decode_head(raw.codec, raw.header), raw.codec, raw.body)


GOLDEN = [load(line) for line in frames()]
REQUESTS = [golden for golden in GOLDEN if not golden.is_response]
RESPONSES = [golden for golden in GOLDEN if golden.is_response]
KNOWN_REQUESTS = [golden for golden in REQUESTS if golden.code in REGISTRY]


def name(golden: Golden) -> str:
    return golden.line["file"]


def receive(golden: Golden) -> Event[str]:
    connection: Connection[str] = Connection()
    connection._pending[golden.head.opaque] = (0, "token")
    connection.receive_data(golden.data)
    (event,) = connection.next_events(2)
    return event


def test_the_manifest_lists_every_frame() -> None:
    folder = Path(library.__file__).parent / "frames"
    assert {name(golden) for golden in GOLDEN} == {path.name for path in folder.glob("*.bin")}
    assert {golden.code for golden in REQUESTS} - set(REGISTRY) <= NO_ROW


def test_both_codecs_and_all_promised_peers_are_there() -> None:
    assert {golden.codec for golden in GOLDEN} == {JSON, BINARY}
    senders = {golden.line["sender"] for golden in GOLDEN}
    assert senders >= {"java-client", "java-broker", "java-namesrv", "cpp", "ali-ons", "go"}


@pytest.mark.parametrize("golden", GOLDEN, ids=name)
def test_a_frame_decodes_to_what_was_sent(golden: Golden) -> None:
    line, head = golden.line, golden.head
    assert (head.code, head.flag, head.opaque) == (line["code"], line["flag"], line["opaque"])
    assert len(golden.body) == line["body_bytes"]
    assert golden.codec == {"JSON": JSON, "ROCKETMQ": BINARY}[line["codec"]]


@pytest.mark.parametrize("golden", [golden for golden in GOLDEN if golden.is_java], ids=name)
def test_a_frame_is_written_as_java_writes_it(golden: Golden) -> None:
    head = golden.head
    written = encode_head(
        code=head.code,
        opaque=head.opaque,
        flag=head.flag,
        ext=head.ext,
        remark=head.remark,
        codec=golden.codec,
        body_bytes=len(golden.body),
        version=head.version,
        language=Language[head.language],
    )
    if golden.is_response and not head.ext and golden.codec == JSON:
        # Java leaves the fields out where its answer has no header class; ours are always there.
        empty = b'"extFields":{},'
        assert written[8:].replace(empty, b"") + golden.body == golden.data[8:].replace(empty, b"")
    else:
        assert written + golden.body == golden.data


@pytest.mark.parametrize("golden", KNOWN_REQUESTS, ids=name)
def test_a_request_is_read_and_its_fields_written_again(golden: Golden) -> None:
    event = receive(golden)
    assert isinstance(event, Request)
    assert isinstance(event.header, REGISTRY[golden.code].header)
    assert event.body == golden.body
    if golden.is_java:
        rest = {key: value for key, value in golden.head.ext.items() if key not in IGNORED}
        assert to_ext(event.header) == rest


@pytest.mark.parametrize("golden", RESPONSES, ids=name)
def test_a_response_is_read_and_its_fields_written_again(golden: Golden) -> None:
    event = receive(golden)
    assert isinstance(event, Answered)
    assert (event.response.code, event.response.body) == (golden.head.code, golden.body)
    if golden.code in REGISTRY and golden.head.ext and golden.head.code in COMPLETE:
        header = from_ext(REGISTRY[golden.code].response, golden.head.ext)
        assert to_ext(header) == golden.head.ext


def has_json(golden: Golden) -> bool:
    kinds = RESPONSE_BODIES if golden.is_response else REQUEST_BODIES
    return golden.code in kinds and bool(golden.body)


@pytest.mark.parametrize("golden", [golden for golden in GOLDEN if has_json(golden)], ids=name)
def test_a_json_body_is_read_and_written_again(golden: Golden) -> None:
    cls = (RESPONSE_BODIES if golden.is_response else REQUEST_BODIES)[golden.code]
    assert golden.head.code in (ResponseCode.SUCCESS, golden.code)
    body = parse_json(golden.body, cls)
    if golden.is_java:
        assert parse_json(encode_json(body)) == parse_json(golden.body)
    else:  # numbers may have come as text
        assert parse_json(encode_json(body), cls) == body


@pytest.mark.parametrize(
    "golden",
    [golden for golden in REQUESTS if golden.code == RequestCode.REGISTER_BROKER],
    ids=name,
)
def test_a_registration_is_read_and_written_again(golden: Golden) -> None:
    ext = golden.head.ext
    compressed = ext["compressed"] == "true"
    body = decode(golden.body, compressed=compressed, crc32=int(ext["bodyCrc32"]))
    topics = body[0].topic_config_table
    # A created topic is registered alone, everything else as the whole table.
    assert "TBW102" in topics or len(topics) == 1
    again = encode(*body, compressed=compressed)
    if compressed:  # zlib's level is anybody's choice, its content is not
        assert decode(again, compressed=True) == body
    else:
        assert parse_json(again) == parse_json(golden.body)


@given(st.lists(st.sampled_from(KNOWN_REQUESTS), max_size=6), st.lists(st.integers(0, 5000)))
def test_any_split_of_a_real_stream_gives_the_same_events(
    sent: list[Golden], cuts: list[int]
) -> None:
    stream = b"".join(golden.data for golden in sent)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    connection: Connection[str] = Connection()
    events: list[Event[str]] = []
    for start, stop in itertools.pairwise(edges):
        connection.receive_data(stream[start:stop])
        while connection.has_more:
            events += connection.next_events(2)
    assert events == [receive(golden) for golden in sent]
