"""Descriptors of one process: what all its servers may take, and what is left to its stores."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from cometmq.net import descriptors
from cometmq.net import server as server_module
from cometmq.net.descriptors import BACKLOG, Connections, backlog, max_connections
from cometmq.net.peer import Peer
from cometmq.net.reply import Reply
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from tests.net.serving import serving

BEAT = RequestCode.HEART_BEAT


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of other tests in this process do not count."""
    monkeypatch.setattr(server_module, "PROCESS", Connections())


@dataclass(eq=False)
class Some:
    """A server with so many connections."""

    open_connections: int = 0


def test_this_machine_allows_connections() -> None:
    assert max_connections() > 100
    assert 16 <= backlog() <= BACKLOG


@pytest.mark.parametrize(
    ("files", "connections"),
    [
        (None, 100_000),
        (1 << 20, 100_000),
        (1 << 16, 57_344),
        (4_096, 3_072),
        (1_024, 512),
        (600, 150),
        (100, 25),
    ],
)
def test_connections_leave_files_to_stores(
    files: int | None, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "open_files", lambda: files)
    assert max_connections() == connections


def test_all_servers_have_one_bound_and_none_takes_every_place() -> None:
    connections, one, other = Connections(), Some(), Some()
    assert connections.room(one, 800) == 800
    connections.join(one)
    connections.join(other)
    assert connections.room(one, 800) == 700
    other.open_connections = 300
    assert connections.room(one, 800) == 500
    connections.leave(other)
    assert connections.room(one, 800) == 800


def test_a_server_that_is_no_more_has_no_connections() -> None:
    connections, one, other = Connections(), Some(), Some(300)
    connections.join(other)
    assert connections.room(one, 800) == 500
    del other
    assert connections.room(one, 800) == 800


def beat(peer: Peer, request: Request[Any]) -> Reply | None:
    return Reply()


async def test_two_servers_share_the_places_of_their_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "max_connections", lambda: 8)
    async with serving({BEAT: beat}) as full, serving({BEAT: beat}) as other:
        clients = [await full.connect() for _ in range(7)]
        for client in clients:
            client.send(BEAT)
            await client.frame()
        refused = await full.connect()
        assert await refused.closed()
        last = await other.connect()
        last.send(BEAT)
        await last.frame()
        assert await (await other.connect()).closed()
        await full.server.close()
        again = await other.connect()
        again.send(BEAT)
        await again.frame()


async def test_with_tls_connections_that_say_nothing_have_places_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "max_connections", lambda: 3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with serving({BEAT: beat}, tls=context) as served:
        client = await served.connect()
        client.send(BEAT)
        await client.frame()
        for _ in range(2):
            await served.connect()
        async with asyncio.timeout(10):
            while served.server.open_connections < 3:
                await asyncio.sleep(0.001)
        assert await (await served.connect()).closed()


CROWDED = Path(__file__).parent / "crowded_node.py"


def test_a_full_node_still_stores(tmp_path: Path) -> None:
    """A name server and a broker in one process, each with as many connections as it takes."""
    done = subprocess.run(
        [sys.executable, str(CROWDED), str(tmp_path), "1024"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # Half of 1 024 files, an eighth of them kept for the port that is not crowded yet. The broker
    # and a client are connected to the name server, the client to the broker.
    assert done.stdout.startswith(f"namesrv={448 - 2} broker={64 - 1} refused=0 "), done.stdout
