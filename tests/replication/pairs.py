"""A master and its slaves in one process: real stores, real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cometmq.core.clock import SystemClock
from cometmq.net.outgoing import ClientTls
from cometmq.net.server import reserve
from cometmq.net.tasks import Tasks
from cometmq.net.tls import ServerTls
from cometmq.replication.master import Master, MasterSettings
from cometmq.replication.slave import Slave
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.opening import open_store
from cometmq.store.replica import Replica
from tests.store.stores import STORE_HOST, assert_consistent, config

WAIT_S = 60.0


async def until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


@dataclass
class Node:
    """A store that is a master, a slave, or neither."""

    store: MessageStore
    tasks: Tasks
    port: int = 0
    master: Master | None = None
    slave: Slave | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@dataclass
class Pair:
    """What one test starts; everything is closed at its end."""

    root: Path
    nodes: list[Node] = field(default_factory=list)

    def open(self, name: str, **changes: object) -> Node:
        """A store."""
        store = open_store(config(self.root / name, **changes), SystemClock())
        store.store_host = STORE_HOST
        store.backlog.start(asyncio.get_running_loop().call_soon)
        node = Node(store, Tasks())
        self.nodes.append(node)
        return node

    async def master(
        self,
        name: str = "master",
        settings: MasterSettings | None = None,
        *,
        tls: ServerTls | None = None,
        **changes: object,
    ) -> Node:
        """A store that serves slaves."""
        node = self.open(name, **changes)
        node.master = Master(
            node.store, settings or MasterSettings(), clock=SystemClock(), tasks=node.tasks
        )
        listener = reserve("127.0.0.1", 0)
        node.port = listener.getsockname()[1]
        await node.master.start(listener, tls)
        return node

    def slave(
        self,
        master: Node | Callable[[], str],
        name: str = "slave",
        *,
        tls: ClientTls | None = None,
        whole_history: bool = False,
        **changes: object,
    ) -> Node:
        """A store that copies a master's."""
        node = self.open(name, **changes)
        address = (lambda: master.address) if isinstance(master, Node) else master
        node.slave = Slave(
            node.store,
            Replica(node.store),
            clock=SystemClock(),
            master=address,
            tls=tls,
            whole_history=whole_history,
        )
        node.tasks.spawn(node.slave.run_forever(), name="slave")
        return node

    async def close(self, node: Node) -> None:
        """Stop a node and close its store."""
        self.nodes.remove(node)
        if node.master is not None:
            await node.master.close()
        await node.tasks.close()
        node.store.close()

    async def close_all(self) -> None:
        for node in list(reversed(self.nodes)):
            await self.close(node)


@asynccontextmanager
async def pair(root: Path) -> AsyncIterator[Pair]:
    """Everything that a test starts, closed at its end."""
    made = Pair(root)
    try:
        yield made
    finally:
        await made.close_all()


def log_bytes(store: MessageStore, start: int, stop: int) -> bytes:
    """The bytes of a log between two physical offsets."""
    found = bytearray()
    while start < stop:
        file = store.log.segments.find(start)
        assert file is not None
        piece = bytearray(min(stop, file.end) - start)
        file.read_into(piece, start)
        found += piece
        start += len(piece)
    return bytes(found)


def assert_same(master: MessageStore, slave: MessageStore) -> None:
    """The slave's log is the master's, and its queues and index hold what it holds."""
    start, end = slave.log.segments.start, master.written_offset
    assert slave.written_offset == end
    assert log_bytes(slave, start, end) == log_bytes(master, start, end)
    if slave.dispatched_offset == end:
        Replica(slave).end()
    assert assert_consistent(slave)


async def until_copied(master: Node, *slaves: Node) -> None:
    """Returns once slaves have, and have dispatched, all of a master's log."""
    end = master.store.written_offset
    await until(
        lambda: all(
            slave.store.written_offset == slave.store.dispatched_offset == end for slave in slaves
        )
    )
