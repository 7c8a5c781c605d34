"""Crowds of clients that misbehave reach limits of a broker, and other clients are served."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchmarks.crowds import FILLED, Crowd, Rounds, crowd_of, limit_hits
from cometmq.admin.node import NodeProcess
from cometmq.protocol.codes import RequestCode
from tests.hostile import flood
from tests.operation.raw import RawPeer, create_topic, send_header

pytestmark = pytest.mark.operation


async def until(condition: Callable[[], Awaitable[bool]], probe: flood.Probe) -> None:
    """Probe until a condition holds."""
    deadline = time.monotonic() + 60
    while not await condition():
        assert time.monotonic() < deadline
        await probe.once()


async def test_crowds_reach_limits_and_stop_nobody(tmp_path: Path) -> None:
    settings = {"frameReceiveTimeout": "1000", "mappedFileSizeCommitLog": str(16 << 20)}
    node = NodeProcess(tmp_path / "store", settings=settings)
    node.start()
    try:
        peer = await RawPeer.connect(node.broker)
        await create_topic(peer, flood.TOPIC, 1)
        await create_topic(peer, FILLED, 1)
        probe, port = flood.Probe(peer), int(node.broker.rpartition(":")[2])

        async def hits(name: str) -> int:
            return (await limit_hits(node.broker))[name]

        async with crowd_of("slow", 50, port), crowd_of("idle", 300, port):

            async def all_cut_off() -> bool:
                return await hits("frameTime") >= 50

            await until(all_cut_off, probe)
        await _fill(peer)
        unread = Crowd("unread", 5, port)
        unread.open_all()

        async def congested() -> bool:
            for turn in range(400):
                unread.tick(turn)
            return await hits("congested") > 0

        try:
            await until(congested, probe)
            await probe.once()
        finally:
            unread.close()
        await peer.close()
        assert node.terminate() == 0, node.log_tail()
    finally:
        node.kill()


async def _fill(peer: RawPeer) -> None:
    for _ in range(32):
        header = send_header(FILLED, 0, "", 1)
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, header, bytes(4_096))
        assert answer.code == 0, answer.remark


def test_a_row_has_the_ratio_of_the_medians() -> None:
    found = Rounds("slow", [10, 20, 30], [30, 90, 40], 12.4, {"frameTime": 3})
    assert found.line() == "| 1000 slow | 20 | 40 | 2.00 | 12 | frameTime 3 |"
