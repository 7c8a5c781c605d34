"""Answers of many connections: with both cores each gets the same bytes, whatever sockets take."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.net import eventloop
from tests.conftest import cores
from tests.speedups.test_sends import PIECES, World, framed, header_of


@dataclass(eq=False)
class Owner:
    """A connection to `far`, whose transport keeps `unsent`."""

    core: SimpleNamespace
    near: socket.socket
    far: socket.socket
    unsent: int = 0
    queued: list[bytes | memoryview] = field(default_factory=list)
    outlet: Any = None

    def __post_init__(self) -> None:
        self.outlet = self.core.Outlet(self.near.fileno(), self.queued, lambda: self.unsent)

    def received(self) -> bytes:
        """What came to the other end."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while part := self.far.recv(1 << 16):
                data += part
        return data


@contextlib.contextmanager
def owners(core: SimpleNamespace, count: int, room: int = 0) -> Iterator[list[Owner]]:
    """Connections; their sockets take little more than `room` bytes if that is given."""
    made = []
    for _ in range(count):
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        if room:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        made.append(Owner(core, near, far))
    try:
        yield made
    finally:
        for owner in made:
            owner.near.close()
            owner.far.close()


def filled(core: SimpleNamespace, count: int) -> World:
    """A batch of that many sends; every third wants no answer."""
    world = World(core)
    for opaque in range(count):
        flag = 2 if opaque % 3 == 2 else 0
        assert world.append(framed(header_of(opaque=opaque, flag=flag)))[0] == 1
    return world


def test_each_connection_has_its_answers_once_and_in_order(core: SimpleNamespace) -> None:
    world = filled(core, 40)
    rng = random.Random(7)
    with owners(core, 5) as made:
        rows, wanted = [], dict.fromkeys(made, b"")
        for first in range(0, 40, 4):
            owner = rng.choice(made)
            rows.append((owner, world.batch, first, first + 4))
            wanted[owner] += world.batch.answers(first, first + 4, PIECES)
        left = core.send_answers(rows, PIECES)
        sent = {owner: owner.received() for owner in made}
        for owner, data in left:
            sent[owner] += data
    assert sent == wanted
    # The compiled core writes all of them itself, plain Python none.
    assert len(left) == (0 if core.name == "compiled" else sum(map(bool, wanted.values())))


def test_nothing_overtakes_what_waits(core: SimpleNamespace) -> None:
    world = filled(core, 2)
    answers = world.batch.answers(0, 2, PIECES)
    with owners(core, 4) as made:
        made[0].unsent = 1
        made[1].queued.append(b"before")
        made[2].outlet = None
        rows = [(owner, world.batch, 0, 2) for owner in made]
        left = core.send_answers(rows, PIECES)
        assert left[:3] == [(owner, answers) for owner in made[:3]]
        assert [owner.received() for owner in made[:3]] == [b""] * 3
        assert made[3].received() == answers if core.name == "compiled" else len(left) == 4


def test_what_a_socket_does_not_take_is_left(core: SimpleNamespace) -> None:
    world = filled(core, 900)
    answers = world.batch.answers(0, 900, PIECES)
    with owners(core, 1, room=4_096) as (owner,):
        data = b""
        for _ in range(8):
            ((_, rest),) = core.send_answers([(owner, world.batch, 0, 900)], PIECES)
            assert answers.endswith(rest)
            data += answers.removesuffix(rest)
        assert owner.received() == data
        # The first part fitted, and nothing did behind it.
        assert (len(data) > 0) == (core.name == "compiled")


def test_a_socket_that_is_gone_gets_nothing(core: SimpleNamespace) -> None:
    world = filled(core, 1)
    answers = world.batch.answers(0, 1, PIECES)

    def closed() -> int:
        raise RuntimeError("unable to perform operation; the handler is closed")

    with owners(core, 2) as (gone, broken):
        gone.outlet.unsent_bytes = closed
        broken.far.close()
        rows = [(gone, world.batch, 0, 1), (broken, world.batch, 0, 1)]
        assert core.send_answers(rows, PIECES) == [(gone, answers), (broken, answers)]
        # Its number is another's from then on.
        assert gone.outlet.handle == (-1 if core.name == "compiled" else gone.near.fileno())
        assert gone.received() == b""
        broken.far = gone.far


def test_nobody_and_nothing_to_say(core: SimpleNamespace) -> None:
    world = filled(core, 3)
    with owners(core, 1) as (owner,):
        assert core.send_answers([], PIECES) == []
        assert core.send_answers([(owner, world.batch, 2, 3)], PIECES) == []
        with pytest.raises(IndexError):
            core.send_answers([(owner, world.batch, 0, 4)], PIECES)


@pytest.mark.compiled
def test_strangers_are_refused() -> None:
    core = cores()[-1]
    world = filled(core, 1)
    with owners(core, 1) as (owner,):
        with pytest.raises(TypeError):
            core.send_answers([(owner, object(), 0, 1)], PIECES)
        owner.outlet = object()
        with pytest.raises(TypeError):
            core.send_answers([(owner, world.batch, 0, 1)], PIECES)


class Greeter(asyncio.Protocol):
    """Notes the socket's number of its transport."""

    handle = -2

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.handle = eventloop.direct_handle(transport)


async def _handle_of(greeter: Greeter) -> int:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: greeter, "127.0.0.1", 0)
    try:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(10):
            while greeter.handle == -2:
                await asyncio.sleep(0.001)
        writer.close()
    finally:
        server.close()
    return greeter.handle


def test_only_uvloops_own_connections_are_written_to_directly() -> None:
    assert eventloop.run(_handle_of(Greeter())) >= 0
    assert asyncio.run(_handle_of(Greeter())) == -1
