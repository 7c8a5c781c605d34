"""Sends messages by RocketMQ's protocol as its documents describe it: sockets and JSON, and nothing
of CometMQ. What it sends is known, so it can be compared with what Spark reads."""

import json
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

SEND = 10
ROUTE = 105
TIMEOUT_S = 30
#: How a name server writes a master's address, with or without quotes around the broker's number.
MASTER = re.compile(rb'"?0"?:\s*"([\d.]+):(\d+)"')


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a broker acknowledged, with its place."""

    queue: int
    offset: int
    key: str
    tag: str
    body: bytes
    born_ms: int


class RawConnection:
    """A connection to a name server or broker, one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, TIMEOUT_S)
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(
        self, code: int, fields: Mapping[str, str], body: bytes = b""
    ) -> tuple[dict[str, str], bytes]:
        """Sends a request; gives the fields and the body of its response."""
        self._opaque += 1
        header = {
            "code": code, "language": "OTHER", "version": 401, "opaque": self._opaque, "flag": 0,
            "extFields": dict(fields),
        }  # fmt: skip
        packed = json.dumps(header).encode()
        size = 4 + len(packed) + len(body)
        # The upper byte of the header's length is its encoding: 0 is JSON.
        self._socket.sendall(struct.pack(">II", size, len(packed)) + packed + body)
        [size] = struct.unpack(">I", self._exactly(4))
        answer = self._exactly(size)
        [marked] = struct.unpack_from(">I", answer)
        assert marked >> 24 == 0
        end = 4 + (marked & 0xFFFFFF)
        found = json.loads(answer[4:end])
        assert (found["opaque"], found["code"]) == (self._opaque, 0), found
        return found.get("extFields", {}), answer[end:]

    def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            assert part, "the other side closed the connection"
            parts += part
        return parts


def master_of(namesrv: str, topic: str) -> tuple[str, int]:
    """The address of the only master that has a topic."""
    host, _, port = namesrv.rpartition(":")
    with RawConnection((host, int(port))) as connection:
        _, route = connection.ask(ROUTE, {"topic": topic})
    [(address, number)] = set(MASTER.findall(route))
    return address.decode(), int(number)


def send_all(namesrv: str, topic: str, queues: int, count: int) -> list[Sent]:
    """Sends numbered messages of different sizes to the queues in turn."""
    sent: list[Sent] = []
    with RawConnection(master_of(namesrv, topic)) as broker:
        for number in range(count):
            queue, born_ms = number % queues, 1_700_000_000_000 + number
            key, tag = f"key-{number}", f"tag{number % 3}"
            body = f"{number} {'ä' * (number % 50)}".encode()
            properties = f"KEYS\x01{key}\x02TAGS\x01{tag}\x02number\x01{number}\x02"
            fields = {
                "producerGroup": "raw", "topic": topic, "defaultTopic": "TBW102",
                "defaultTopicQueueNums": "4", "queueId": str(queue), "sysFlag": "0",
                "bornTimestamp": str(born_ms), "flag": str(number % 7), "properties": properties,
                "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
            }  # fmt: skip
            answer, _ = broker.ask(SEND, fields, body)
            assert int(answer["queueId"]) == queue
            sent.append(Sent(queue, int(answer["queueOffset"]), key, tag, body, born_ms))
    return sent
