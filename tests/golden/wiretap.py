"""A TCP proxy that keeps every remoting frame it carries, in both directions.

It forwards what it read; only in answers of a name server it puts its own broker port in the place
of the real one (both have five digits, so lengths stay), so that clients come through it. What it
keeps is what the peer sent, before that.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from dataclasses import dataclass, field

WORD = struct.Struct(">I")
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
MAX_BODY_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Head:
    """What the recorder needs of a header."""

    code: int
    opaque: int
    flag: int
    ext_names: tuple[str, ...]
    codec: str
    body_bytes: int

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether nobody waits for an answer."""
        return bool(self.flag & FLAG_ONEWAY)


@dataclass(frozen=True, slots=True)
class Carried:
    """A frame that went through: where, which way, on which connection."""

    server: str
    connection: int
    to_server: bool
    head: Head
    frame: bytes


@dataclass(slots=True)
class Tap:
    """All frames that the proxies of a recording carried, in order."""

    carried: list[Carried] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    connections: int = 0

    def keep(self, frame: Carried) -> None:
        """Adds a frame."""
        with self.lock:
            self.carried.append(frame)

    def next_connection(self) -> int:
        """A number for a new connection."""
        with self.lock:
            self.connections += 1
            return self.connections


class Proxy:
    """Listens on loopback in front of one server; `upstream_port` may be set after it listens."""

    def __init__(self, tap: Tap, server: str) -> None:
        self.tap = tap
        self.server = server
        self.upstream_port = 0
        self.replace: tuple[bytes, bytes] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Takes no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.upstream_port))
            except OSError:
                return
            number = self.tap.next_connection()
            for source, target, to_server in ((near, far, True), (far, near, False)):
                arguments = (source, target, number, to_server)
                threading.Thread(target=self._carry, args=arguments, daemon=True).start()

    def _carry(
        self, source: socket.socket, target: socket.socket, number: int, to_server: bool
    ) -> None:
        try:
            with source.makefile("rb") as stream:
                while len(length := stream.read(4)) == 4:
                    frame = length + stream.read(WORD.unpack(length)[0])
                    head = parse_head(frame)
                    self.tap.keep(Carried(self.server, number, to_server, head, frame))
                    if self.replace and not to_server:
                        frame = frame.replace(*self.replace)
                    target.sendall(frame)
        except OSError:
            pass
        finally:
            for end in (source, target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


def parse_head(frame: bytes) -> Head:
    """The header of a whole frame, in either codec; on purpose none of CometMQ's own code."""
    word = WORD.unpack_from(frame, 4)[0]
    header = frame[8 : 8 + (word & 0xFFFFFF)]
    body_bytes = len(frame) - 8 - len(header)
    if word >> 24 == 0:
        fields = json.loads(header)
        names = tuple(sorted(fields.get("extFields") or {}))
        return Head(fields["code"], fields["opaque"], fields["flag"], names, "JSON", body_bytes)
    code, _, _, opaque, flag, remark_bytes = struct.unpack_from(">hBhiii", header)
    place = 17 + remark_bytes
    end = place + 4 + WORD.unpack_from(header, place)[0]
    place += 4
    names = ()
    while place < end:
        key_bytes = struct.unpack_from(">h", header, place)[0]
        names += (header[place + 2 : place + 2 + key_bytes].decode(),)
        place += 2 + key_bytes
        place += 4 + WORD.unpack_from(header, place)[0]
    return Head(code, opaque, flag, tuple(sorted(names)), "ROCKETMQ", body_bytes)
