"""Strangers notice a node that does not do what it owes them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import pytest

from cometmq.replication.transfer import TRANSFER
from tests.hostile import frames, strangers
from tests.hostile.fuzz import STEP_OPAQUE
from tests.hostile.strangers import After, FalseSlave, RemotingStranger, Unanswered

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def attack(
    serve: Serve,
    kind: type[RemotingStranger] | type[FalseSlave],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Have a stranger send to a server that serves so."""
    monkeypatch.setattr(strangers, "SILENCE_S", 0.2)
    open_lines: set[asyncio.StreamWriter] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_lines.add(writer)
        with suppress(ConnectionError):
            await serve(reader, writer)

    server = await asyncio.start_server(served, "127.0.0.1")
    try:
        address = ("127.0.0.1", server.sockets[0].getsockname()[1])
        chance = Random(1)
        one = strangers.mutations(frames.golden_frames(), chance)
        await kind(address, one, 200, chance).run()
    finally:
        server.close()
        for writer in open_lines:
            writer.transport.abort()


async def swallow(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        pass


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def answer_and_stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer whatever is asked for in step, and never close."""
    answer = frames.joined(0, b'{"code":0,"flag":1,"opaque":%d}' % STEP_OPAQUE, b"")
    while data := await reader.read(1 << 16):
        writer.write(answer * data.count(b'"opaque":%d}' % STEP_OPAQUE))


async def answer_another(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        writer.write(b"\x00\x00\x00\x10HTTP/1.1 400 Bad")


async def send_backwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        writer.write(TRANSFER.pack(-8, 0))


@pytest.mark.parametrize("serve", [swallow, hang_up, answer_and_stay, answer_another])
async def test_a_remoting_port_that_owes_something_is_found(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unanswered):
        await attack(serve, RemotingStranger, monkeypatch)


@pytest.mark.parametrize("serve", [swallow, send_backwards])
async def test_a_replication_port_that_owes_something_is_found(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unanswered):
        await attack(serve, FalseSlave, monkeypatch)


def test_what_becomes_of_a_connection() -> None:
    golden = frames.golden_frames()[0]
    assert strangers.after(golden) is After.GOES_ON
    assert strangers.after(golden[:-1]) is After.WAITS
    assert strangers.after(golden + golden[:9]) is After.WAITS
    assert strangers.after(frames.joined(0, b"{", b"")) is After.ENDS
    assert strangers.after(b"\xff" * 16) is After.ENDS


def test_a_seed_gives_the_same_frames_again() -> None:
    golden = frames.golden_frames("namesrv")
    one, again, other = [strangers.mutations(golden, Random(seed)) for seed in (1, 1, 2)]
    first = [one() for _ in range(300)]
    assert first == [again() for _ in range(300)]
    assert first != [other() for _ in range(300)]


def test_frames_too_short_for_a_code_ask_for_nothing() -> None:
    assert not frames.with_codes_left_out(b"\x00\x00")
    assert frames.with_codes_left_out(frames.joined(0, b'{"code": 25,"flag":0}', b""))
