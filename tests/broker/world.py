"""What broker tests stand on: a broker's tables in a directory, and a connection that remembers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups import GroupTable
from cometmq.broker.members import Members
from cometmq.broker.offsets import ConsumerOffsets
from cometmq.broker.topics import TopicTable
from cometmq.core.clock import Clock, SystemClock
from cometmq.net.peer import Peer
from cometmq.net.tasks import Tasks
from cometmq.protocol.frame import Request
from cometmq.protocol.headers import Header


@dataclass(eq=False)
class RecordingPeer:
    """A connection of a test: what was sent to it, and who wants to hear of its end."""

    address: str = "127.0.0.1:40000"
    host_bytes: bytes = b"\x7f\0\0\x01\0\0\x9c\x40"
    is_loopback: bool = True
    congested: bool = False
    closed: bool = False
    sent: list[tuple[int, Header | None]] = field(default_factory=list)
    on_close: list[Callable[[Any], None]] = field(default_factory=list)

    def send_oneway(self, code: int, header: Header | None, body: bytes = b"") -> None:
        self.sent.append((code, header))

    def close(self) -> None:
        self.closed = True
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            callback(self)


def connect(port: int = 40000) -> Peer:
    """A connection from this machine."""
    return cast("Peer", RecordingPeer(address=f"127.0.0.1:{port}"))


def sent_to(peer: Peer) -> list[tuple[int, Header | None]]:
    """The one-way requests that the broker sent."""
    return cast("RecordingPeer", peer).sent


def request(
    code: int, header: Header | None = None, body: bytes = b"", version: int = 407
) -> Request[Any]:
    """A request as the protocol layer gives it to a handler."""
    return Request(code=code, header=header, opaque=1, body=body, version=version, language="JAVA")


@dataclass
class Tables:
    """The tables of one broker."""

    config: BrokerConfig
    clock: Clock
    tasks: Tasks
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    members: Members

    async def close(self) -> None:
        """Write everything and end all tasks."""
        await self.topics.close()
        await self.groups.close()
        await self.offsets.close()
        await self.tasks.close()


@contextlib.asynccontextmanager
async def open_tables(
    directory: Path, config: BrokerConfig | None = None, clock: Clock | None = None
) -> AsyncIterator[Tables]:
    """A broker's tables, loaded from ``directory``; written at the end."""
    config = config or BrokerConfig()
    clock = clock or SystemClock()
    tasks = Tasks()
    place = str(directory)
    topics = TopicTable(place, config=config, clock=clock, tasks=tasks)
    groups = GroupTable(place, config=config, clock=clock, tasks=tasks)
    offsets = ConsumerOffsets(place, config=config, clock=clock, tasks=tasks)
    topics.load()
    groups.load()
    offsets.load()
    members = Members(topics=topics, groups=groups, clock=clock)
    tables = Tables(config, clock, tasks, topics, groups, offsets, members)
    try:
        yield tables
    finally:
        await tables.close()
