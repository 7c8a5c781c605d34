"""A log file that retention drops gives its room back, whoever still waits for answers from it."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from cometmq.message.record import iter_decode
from cometmq.net import eventloop
from cometmq.net.peer import Peer
from tests.broker.serving import PULL, BrokerClient, RunningBroker, pull_fields, running_broker

BODY: Final = os.urandom(100_000)
MESSAGES: Final = 40
PULLS: Final = 64
#: Pulls that are surely answered before their peer is stuck: with less than it is not read for.
ANSWERED: Final = 8


def test_a_dropped_file_is_gone_while_a_peer_reads_slowly(tmp_path: Path) -> None:
    eventloop.run(drop_while_a_peer_reads_slowly(tmp_path))


async def drop_while_a_peer_reads_slowly(directory: Path) -> None:
    async with running_broker(
        directory,
        fileReservedTime="0",
        deleteWhen=";".join(map(str, range(24))),
        flushConsumeQueueThoroughInterval="0",
    ) as running:
        store = running.broker.store
        client = await running.connect()
        for _ in range(MESSAGES):
            await client.send(BODY)
        slow, peer = await slow_client(running)
        for _ in range(PULLS):
            slow.post(PULL, **pull_fields(0))
        await until_stuck(peer)
        dropped = [file.path for file in store.log.segments.files[:-1]]
        assert len(dropped) >= 3
        await store.maintenance.flush_entries()
        assert store.maintenance.synced > store.log.segments.files[-1].base
        await store.maintenance.expiry.make_room()
        assert not any(map(in_use, dropped))
        assert not any(map(os.path.exists, dropped))
        assert peer in running.broker.server.peers
        for _ in range(ANSWERED):
            _, body = await slow.frame()
            assert next(iter_decode(body)).body == BODY


async def slow_client(running: RunningBroker) -> tuple[BrokerClient, Peer]:
    """A client that takes nothing before it is asked to, and its other end."""
    known = set(running.broker.server.peers)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", running.broker.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    client = BrokerClient(reader, writer)
    running.add(client)
    async with asyncio.timeout(60):
        while running.broker.server.peers == known:
            await asyncio.sleep(0.001)
    (peer,) = running.broker.server.peers - known
    return client, peer


async def until_stuck(peer: Peer) -> None:
    """Wait until the peer has answers for which its socket has no room."""
    async with asyncio.timeout(60):
        while peer.buffered_bytes < len(BODY):
            await asyncio.sleep(0.001)


def in_use(path: str) -> bool:
    """Whether this process has the file open or mapped: its blocks stay taken then."""
    opened = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the directory itself was open
            opened.append(os.readlink(f"/proc/self/fd/{name}"))
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    return path in mapped or any(link.startswith(path) for link in opened)
