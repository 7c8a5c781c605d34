"""What clients of other languages sent, byte for byte, is served by CometMQ.

The frames in `foreign/` are recorded requests of the Go client (2.1.3-0.20251226070945), ali-ons
3.12.0 and librocketmq 1.0.1 and 2.2 (C++); a Java 4.9.7 broker answered all of them with 0.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cometmq.message.ids import decode_offset_id
from cometmq.testing.cluster import Cluster, cluster_in_thread
from tests.golden import handmade

HERE: Final = Path(__file__).parent / "foreign"
WORD: Final = struct.Struct(">I")
TAGGED: Final = ["ali-ons-3.12.0", "cpp-1.0.1", "cpp-2.2", "go-2.1.3"]


def captured(name: str) -> bytes:
    return (HERE / f"{name}.bin").read_bytes()


def header_of(frame: bytes) -> dict[str, Any]:
    """The JSON header of a frame."""
    header_bytes = WORD.unpack_from(frame, 4)[0]
    header: dict[str, Any] = json.loads(frame[8 : 8 + header_bytes])
    return header


def body_of(frame: bytes) -> bytes:
    """What follows the header of a frame."""
    return frame[8 + WORD.unpack_from(frame, 4)[0] :]


class Line:
    """A connection to the broker."""

    def __init__(self, cluster: Cluster) -> None:
        host, _, port = cluster.broker.partition(":")
        self.socket = socket.create_connection((host, int(port)), 10)
        self.stream = self.socket.makefile("rb")

    def ask(self, frame: bytes) -> bytes:
        """Sends a request; gives its answer, requests of the broker's own left out."""
        self.socket.sendall(frame)
        while True:
            length = self.stream.read(4)
            assert length, "the connection was closed"
            answer = length + self.stream.read(WORD.unpack(length)[0])
            if header_of(answer)["flag"] & 1:
                return answer

    def code(self, frame: bytes) -> int:
        """The code that a request is answered with."""
        return int(header_of(self.ask(frame))["code"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path_factory.mktemp("foreign"), brokerName="broker-a") as running:
        yield running


@pytest.fixture
def line(cluster: Cluster) -> Iterator[Line]:
    opened = Line(cluster)
    with opened.socket, opened.stream:
        yield opened


@pytest.mark.parametrize("client", TAGGED)
def test_a_heartbeat_makes_a_member_with_what_it_wants(line: Line, client: str) -> None:
    frame = captured(f"{client}-heartbeat")
    assert line.code(frame) == 0
    sent = json.loads(body_of(frame))
    for group in sent["consumerDataSet"]:
        known = line.ask(handmade.plain(203, 1, {"consumerGroup": group["groupName"]}))
        told = json.loads(body_of(known))
        assert [each["clientId"] for each in told["connectionSet"]] == [sent["clientID"]]
        assert told["consumeType"] == "CONSUME_PASSIVELY"
        assert told["messageModel"] == "CLUSTERING"
        assert told["consumeFromWhere"].startswith("CONSUME_FROM_")
        wanted = {each["topic"]: each for each in group["subscriptionDataSet"]}
        assert told["subscriptionTable"].keys() == wanted.keys()
        for topic, found in told["subscriptionTable"].items():
            assert found["subString"] == wanted[topic]["subString"]
            assert sorted(found["tagsSet"]) == sorted(wanted[topic].get("tagsSet", []))
            assert found["subVersion"] == int(wanted[topic]["subVersion"])


@pytest.mark.parametrize("client", ["cpp-1.0.1", "go-2.1.3"])
def test_a_lock_is_given(line: Line, client: str) -> None:
    frame = captured(f"{client}-lock")
    answer = line.ask(frame)
    assert header_of(answer)["code"] == 0
    assert json.loads(body_of(answer))["lockOKMQSet"] == json.loads(body_of(frame))["mqSet"]


@pytest.mark.parametrize("client", ["ali-ons-3.12.0", "cpp-2.2", "go-2.1.3"])
def test_a_message_is_sent_back(line: Line, client: str) -> None:
    """The recorded request, about a message that is here: under its key where the client sends
    that, which C++ does, and under its place where it does not."""
    header = header_of(captured(f"{client}-send-back"))
    own = {"b": header["extFields"]["originTopic"], "a": "producers"}
    stored = header_of(line.ask(handmade.plain(310, 1, handmade.short_send(7) | own, b"again")))
    offset_id = stored["extFields"]["msgId"]
    by_key = len(header["extFields"]["originMsgId"]) == 32 and client.startswith("cpp")
    named = handmade.unique_key(7) if by_key else offset_id
    kind = type(header["extFields"]["offset"])
    offset = kind(decode_offset_id(offset_id).physical_offset)
    header["extFields"] |= {"offset": offset, "originMsgId": named}
    frame = handmade.framed(json.dumps(header, separators=(",", ":")).encode())
    assert line.code(frame) == 0
