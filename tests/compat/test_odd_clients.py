"""Whole sessions in the dialects of clients that are not Java's: C++, Node (ali-ons), Go, .NET.

Frames are written by hand as these clients write them, with their oddities; the same
sessions run on both brokers.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from cometmq.message.record import iter_decode
from cometmq.protocol.bodies import ENUMERATIONS
from tests.client.shared_broker import fresh_name
from tests.compat.anchor import wait_until
from tests.compat.conftest import Target
from tests.golden import handmade
from tests.golden.handmade import Value

pytestmark = pytest.mark.runs("cometmq", "java")

WAIT_S: Final = 10
NOTIFY_IDS_CHANGED: Final = 40
FLAG_RESPONSE, FLAG_ONEWAY = 1, 2
#: Pull flag: the subscription comes along.
SUBSCRIPTION = 4

Texts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a client writes: `frame(code, opaque, ext, body, flag)`, and how its values look."""

    name: str
    frame: Callable[[int, int, Mapping[str, Value], bytes, int], bytes]
    values: Callable[[Texts], Mapping[str, Value]]
    send_code: int
    code_set: Callable[[str], Value]
    body_end: bytes = b""
    #: How it writes the names and values of a body.
    spelt: Callable[[Any], Any] = lambda body: body
    #: It makes a message's id of the producer's address, not of the broker's.
    ids_of_born_host: bool = False


def cpp_frame(code: int, opaque: int, ext: Mapping[str, Value], body: bytes, flag: int) -> bytes:
    return handmade.cpp(code, opaque, ext, body, flag)


def ali_ons_frame(
    code: int, opaque: int, ext: Mapping[str, Value], body: bytes, flag: int
) -> bytes:
    frame = handmade.ali_ons(code, opaque, ext, body)
    return frame if not flag else with_flag(frame, flag)


def go_frame(code: int, opaque: int, ext: Mapping[str, Value], body: bytes, flag: int) -> bytes:
    frame = handmade.go(code, opaque, ext, body)
    return frame if not flag else with_flag(frame, flag)


def dotnet_frame(code: int, opaque: int, ext: Mapping[str, Value], body: bytes, flag: int) -> bytes:
    frame = handmade.dotnet(code, opaque, ext, body)
    return frame if not flag else with_flag(frame, flag)


def with_numbers(body: Any) -> Any:
    """A body with numbers for the names of enumerations."""
    if isinstance(body, list):
        return [with_numbers(item) for item in body]
    if not isinstance(body, dict):
        return body
    return {
        key: ENUMERATIONS[key].index(value) if key in ENUMERATIONS else with_numbers(value)
        for key, value in body.items()
    }


def with_capitals(body: Any) -> Any:
    """A body whose names begin with a capital."""
    if isinstance(body, list):
        return [with_capitals(item) for item in body]
    if not isinstance(body, dict):
        return body
    return {key[:1].upper() + key[1:]: with_capitals(value) for key, value in body.items()}


def with_flag(frame: bytes, flag: int) -> bytes:
    """The same frame with another flag of one digit."""
    return frame.replace(b'"flag":0', b'"flag":%d' % flag, 1)


DIALECTS: Final = (
    Dialect("cpp", cpp_frame, dict, 310, str, b"\n", with_numbers),
    Dialect("ali-ons", ali_ons_frame, handmade.numbers, 310, int),
    Dialect("go", go_frame, dict, 10, int),
    Dialect("dotnet", dotnet_frame, dict, 310, str, spelt=with_capitals, ids_of_born_host=True),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    head: dict[str, Any]
    body: bytes

    @property
    def code(self) -> int:
        """The response code."""
        return int(self.head["code"])

    @property
    def ext(self) -> Texts:
        """The fields, of which each must be text: Go reads nothing else."""
        fields = self.head.get("extFields") or {}
        assert all(isinstance(value, str) for value in fields.values())
        return dict(fields)


@dataclass(slots=True)
class Odd:
    """One client: a connection, and what the broker asked of it."""

    dialect: Dialect
    connection: socket.socket
    client_id: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    opaque: int = 0

    def body(self, data: dict[str, Any]) -> bytes:
        """A body as the client writes it."""
        spelt = self.dialect.spelt(data)
        return json.dumps(spelt, separators=(",", ":")).encode() + self.dialect.body_end

    def id_of(self, offset_id: str) -> str:
        """What the client calls a message that it sent itself."""
        if not self.dialect.ids_of_born_host:
            return offset_id
        return f"7F000001{self.connection.getsockname()[1]:08X}{offset_id[16:]}"

    def ask(self, code: int, texts: Texts | None = None, body: bytes = b"", **odd: Value) -> Answer:
        """One request and its answer; `odd` are fields that are no text."""
        self._write(code, texts, body, odd)
        while True:
            answer = self._read()
            if answer.head["flag"] & FLAG_RESPONSE:
                assert answer.head["opaque"] == self.opaque
                assert answer.head["version"] > 0
                return answer
            self.asked.append(answer.head)

    def tell(self, code: int, texts: Texts) -> None:
        """A one-way request."""
        self._write(code, texts, b"", {}, FLAG_ONEWAY)

    def wait_for(self, code: int) -> dict[str, Any]:
        """What the broker asks with a code: seen before, or to come."""
        while not (found := [head for head in self.asked if head["code"] == code]):
            self.asked.append(self._read().head)
        return found[0]

    def _write(
        self, code: int, texts: Texts | None, body: bytes, odd: Mapping[str, Value], flag: int = 0
    ) -> None:
        self.opaque += 1
        ext = {**self.dialect.values(texts or {}), **odd}
        self.connection.sendall(self.dialect.frame(code, self.opaque, ext, body, flag))

    def _read(self) -> Answer:
        length = int.from_bytes(self._exactly(4), "big")
        frame = self._exactly(length)
        # The first byte is the header's format; the C++ client takes it for a part of the length.
        head_bytes = int.from_bytes(frame[:4], "big")
        return Answer(json.loads(frame[4 : 4 + head_bytes]), frame[4 + head_bytes :])

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.connection.recv(count - len(parts))
            assert part, "the connection was closed"
            parts += part
        return bytes(parts)


@dataclass(frozen=True, slots=True)
class Session:
    """Two clients of one dialect in one group, and their topic."""

    first: Odd
    second: Odd
    topic: str
    group: str
    target: Target

    @property
    def queue(self) -> Texts:
        """Queue 0, as requests of the group name it."""
        return {"consumerGroup": self.group, "topic": self.topic, "queueId": "0"}

    def heartbeat(self, client: Odd, expression: str = "*") -> Answer:
        """The client is a member, and wants what the expression says."""
        tags = [] if expression == "*" else [tag.strip() for tag in expression.split("||")]
        subscription = {
            **{"classFilterMode": False, "topic": self.topic, "subString": expression},
            **{"tagsSet": tags, "codeSet": [client.dialect.code_set(str(ord(t))) for t in tags]},
            **{"subVersion": client.dialect.code_set("1700000000000")},
        }
        member = {
            **{"groupName": self.group, "consumeType": "CONSUME_PASSIVELY", "unitMode": False},
            **{"messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
            "subscriptionDataSet": [subscription],
        }
        data = {
            **{"clientID": client.client_id, "consumerDataSet": [member]},
            "producerDataSet": [{"groupName": "odd-producers"}],
        }
        return client.ask(34, body=client.body(data))

    def send(self, body: bytes, tag: str, **odd: Value) -> Answer:
        """A message to queue 0."""
        properties = handmade.PROPERTIES.replace("\x01a\x02", f"\x01{tag}\x02", 1)
        properties = properties.format(handmade.unique_key(self.first.opaque))
        client = self.first
        own = {"a": "odd-producers", "b": self.topic, "i": properties}
        short = handmade.short_send(0) | own
        if client.dialect.send_code == 310:
            return client.ask(310, short, body, **odd)
        long = {
            **{"producerGroup": "odd-producers", "topic": self.topic, "defaultTopic": "TBW102"},
            **{"defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "flag": "0"},
            **{"bornTimestamp": "1700000000000", "reconsumeTimes": "0", "batch": "false"},
            **{"properties": properties, "unitMode": "false", "maxReconsumeTimes": "0"},
        }
        return client.ask(10, long, body)

    def pull(self, client: Odd, offset: int, flags: int, **more: str) -> Answer:
        """What lies in queue 0 at an offset."""
        asked = {
            **self.queue,
            **{"queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": str(flags)},
            **{"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"},
        }
        return client.ask(11, asked | more)

    def locks(self, client: Odd, code: int) -> list[dict[str, Any]]:
        """Locks (41) or unlocks (42) queue 0; gives the queues that are locked."""
        queue = {"topic": self.topic, "brokerName": self.target.broker_name, "queueId": 0}
        data = {"consumerGroup": self.group, "clientId": client.client_id, "mqSet": [queue]}
        answer = client.ask(code, body=client.body(data))
        assert answer.code == 0
        found: list[dict[str, Any]] = json.loads(answer.body)["lockOKMQSet"] if answer.body else []
        return found

    def members(self, client: Odd) -> list[str]:
        """The ids of the group's members."""
        answer = client.ask(38, {"consumerGroup": self.group})
        return sorted(json.loads(answer.body)["consumerIdList"]) if answer.code == 0 else []


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def session(request: pytest.FixtureRequest, target: Target) -> Iterator[Session]:
    dialect: Dialect = request.param
    host, _, port = target.broker.partition(":")
    topic = fresh_name(f"odd-{dialect.name}")
    with (
        socket.create_connection((host, int(port)), WAIT_S) as one,
        socket.create_connection((host, int(port)), WAIT_S) as two,
    ):
        first, second = (
            Odd(dialect, connection, f"127.0.0.1@{name}#{topic}")
            for name, connection in (("one", one), ("two", two))
        )
        yield Session(first, second, topic, f"g-{topic}", target)


def test_what_is_sent_is_pulled(session: Session) -> None:
    # The C++ client marks each send as a batch, with a 1: which is not true.
    oddities: dict[str, dict[str, Value]] = {
        "cpp": {"m": "1"},
        "ali-ons": {"k": False},
        "go": {},
        "dotnet": {},
    }
    odd = oddities[session.first.dialect.name]
    bodies = [b"one", b"two", b"three"]
    for number, (body, tag) in enumerate(zip(bodies, "aba", strict=True)):
        answer = session.send(body, tag, **odd)
        assert (answer.code, answer.ext["queueOffset"]) == (0, str(number))
        assert {"msgId", "queueId", "MSG_REGION"} <= answer.ext.keys()
    assert session.heartbeat(session.first, "a").code == 0

    def all_bodies() -> list[bytes]:
        answer = session.pull(session.first, 0, SUBSCRIPTION, subscription="*")
        return [message.body for message in iter_decode(answer.body)]

    wait_until(lambda: all_bodies() == bodies, "three messages", WAIT_S)
    # Without a subscription of its own the broker takes the heartbeat's, by the tags' hashes.
    answer = session.pull(session.first, 0, 0)
    assert [message.body for message in iter_decode(answer.body)] == [b"one", b"three"]
    assert {"suggestWhichBrokerId", "nextBeginOffset", "minOffset"} < answer.ext.keys()
    assert session.pull(session.first, 3, SUBSCRIPTION, subscription="*").code == 19
    beyond = session.pull(session.first, 9, SUBSCRIPTION, subscription="*")
    assert (beyond.code, beyond.ext["nextBeginOffset"]) == (21, "3")


def test_members_hear_of_each_other_and_share_locks(session: Session) -> None:
    first, second = session.first, session.second
    session.send(b"one", "a")
    assert session.members(first) == []
    session.heartbeat(first)
    assert session.members(first) == [first.client_id]
    session.heartbeat(second)
    assert first.wait_for(NOTIFY_IDS_CHANGED)["extFields"] == {"consumerGroup": session.group}
    assert session.members(second) == sorted([first.client_id, second.client_id])
    queue = {"topic": session.topic, "brokerName": session.target.broker_name, "queueId": 0}
    assert session.locks(first, 41) == [queue]
    assert session.locks(second, 41) == []
    assert session.locks(first, 41) == [queue]
    session.locks(first, 42)
    assert session.locks(second, 41) == [queue]
    gone = {"clientID": first.client_id, "consumerGroup": session.group}
    assert first.ask(35, gone | {"producerGroup": "odd-producers"}).code == 0
    assert session.members(second) == [second.client_id]
    assert second.wait_for(NOTIFY_IDS_CHANGED)["flag"] & FLAG_ONEWAY


def test_offsets_and_send_back(session: Session) -> None:
    client = session.first
    sent = session.send(b"again", "a")
    session.heartbeat(client)
    client.tell(15, session.queue | {"commitOffset": "1"})
    # A Java broker serves the two in threads of different pools.
    wait_until(lambda: client.ask(14, session.queue).ext["offset"] == "1", "the offset", WAIT_S)
    place = {"topic": session.topic, "queueId": "0"}
    wait_until(lambda: client.ask(30, place).ext["offset"] == "1", "the message", WAIT_S)
    assert client.ask(31, place).ext["offset"] == "0"
    assert client.ask(29, place | {"timestamp": "0"}).ext["offset"] == "0"
    back = {
        **{"offset": str(int(sent.ext["msgId"][16:], 16)), "group": session.group},
        **{
            "delayLevel": "1",
            "originMsgId": client.id_of(sent.ext["msgId"]),
            "originTopic": session.topic,
        },
        **{"unitMode": "false", "maxReconsumeTimes": "16"},
    }
    assert client.ask(36, back).code == 0
    retry = {**session.queue, "topic": f"%RETRY%{session.group}"}
    asked = {
        **retry,
        **{"queueOffset": "0", "maxMsgNums": "32", "sysFlag": str(SUBSCRIPTION), "subVersion": "0"},
        **{"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"},
    }
    found: list[bytes] = []

    def came_back() -> bool:
        answer = client.ask(11, asked)
        found[:] = [message.body for message in iter_decode(answer.body)]
        return bool(found)

    wait_until(came_back, "the retry", WAIT_S)
    assert found == [b"again"]
