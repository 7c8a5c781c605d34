"""SIGTERM in the middle of a load: all that was received is answered, all that was acknowledged is
kept, and the stop ends within its bound with exit code 0; a second SIGTERM does not change that."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cometmq.admin.node import NodeProcess
from cometmq.broker.app import DRAIN_LIMIT_MS
from cometmq.core.clock import SystemClock
from cometmq.testing.cluster import ProcessCluster
from tests.operation.kills import IN_FLIGHT, QUEUES, TOPIC, Round, check, messages, write
from tests.operation.raw import RawPeer, create_topic, pull_queue
from tests.operation.test_start import COMETMQ, start_words
from tests.pace import slowness

ANSWERS_BEFORE = 500
#: What docs/how-to/production.md promises beside the time for the device.
STOP_LIMIT_S = 10


async def load_until_it_ends(node: NodeProcess, signals: int) -> tuple[Round, float]:
    """Keep sends in flight, stop the node by so many signals, and go on until the connection ends;
    gives the time from the first signal to the end of the process."""
    round_ = Round()
    source = messages(0, Random(0))
    now_ms = SystemClock().wall_ms()
    peer = await RawPeer.connect(node.broker)
    process = node.process
    assert process is not None
    begun = 0.0
    async with asyncio.timeout(60):
        while not peer.closed.done():
            write(peer, islice(source, IN_FLIGHT - peer.waiting), round_, now_ms)
            if not begun and peer.sent - peer.waiting >= ANSWERS_BEFORE:
                begun = time.monotonic()
                for _ in range(signals):
                    process.send_signal(signal.SIGTERM)
            oldest = next((answer for _, answer in round_.answers if not answer.done()), None)
            if oldest is not None:
                waits: list[asyncio.Future[Any]] = [oldest, peer.closed]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    code = await asyncio.to_thread(node.terminate)
    took_s = time.monotonic() - begun
    assert code == 0, node.log_tail()
    round_.unanswered = round_.settle()
    return round_, took_s


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_stop_under_load_keeps_what_was_acknowledged(
    tmp_path: Path, flush: str, signals: int
) -> None:
    node = ProcessCluster(tmp_path, flushDiskType=flush)
    await asyncio.to_thread(node.start)
    try:
        peer = await RawPeer.connect(node.broker)
        await create_topic(peer, TOPIC, QUEUES)
        await peer.close()
        round_, took_s = await load_until_it_ends(node, signals)
        assert "Traceback" not in node.log_tail()
        assert len(round_.acknowledged) >= ANSWERS_BEFORE
        assert took_s < STOP_LIMIT_S * slowness()
        assert not (node.store / "abort").exists(), "the stop was a clean one"
        await asyncio.to_thread(node.start)
        await check(node, [round_])
    finally:
        node.kill()


async def test_what_was_stored_was_answered(tmp_path: Path) -> None:
    """A client that sends nothing after the signal gets the answer to each of its sends."""
    node = ProcessCluster(tmp_path, flushDiskType="SYNC_FLUSH")
    await asyncio.to_thread(node.start)
    try:
        peer = await RawPeer.connect(node.broker)
        await create_topic(peer, TOPIC, QUEUES)
        round_ = Round()
        write(peer, islice(messages(0, Random(1)), 2_000), round_, SystemClock().wall_ms())
        await round_.answers[0][1]
        assert node.process is not None
        node.process.terminate()
        async with asyncio.timeout(30):
            await peer.closed
        assert await asyncio.to_thread(node.terminate) == 0
        round_.settle()
        await asyncio.to_thread(node.start)
        peer = await RawPeer.connect(node.broker)
        queues = [await pull_queue(peer, TOPIC, queue_id) for queue_id in range(QUEUES)]
        assert sum(map(len, queues)) == len(round_.acknowledged)
        await peer.close()
    finally:
        node.kill()


def test_systemd_is_told_of_the_start_and_of_the_stop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        process = subprocess.Popen(
            [COMETMQ, *start_words(tmp_path / "store")], env=environment, stdout=subprocess.PIPE
        )
        try:
            assert systemd.recv(100) == b"READY=1"
            process.terminate()
            assert systemd.recv(100) == b"STOPPING=1"
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.communicate(timeout=20)


def test_the_bound_of_a_stop_has_room_for_its_parts() -> None:
    assert DRAIN_LIMIT_MS / 1_000 < STOP_LIMIT_S
