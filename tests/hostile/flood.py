"""Mutated frames on every port of a real node, while another client sends and pulls.

    python -m tests.hostile.flood 1000000 [--seed N] [--directory NEW]

sends so many frames to each port.

The flood comes from a process of its own, so that its work is not taken for the node's.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

import uvloop

from cometmq.admin.node import VIP_DISTANCE, NodeProcess, lasting_port
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.registry import Side
from tests.hostile import frames
from tests.hostile.strangers import FalseSlave, RemotingStranger, mutations
from tests.operation.raw import RawPeer, create_topic, pull_from, pull_queue, send_header

T = TypeVar("T")

TOPIC = "probe"
#: The topic that most captured frames are about.
GOLDEN_TOPIC = "golden"
WAIT_MAX_MS = 300
LOG_MAX_BYTES_A_MINUTE = 1 << 20
MEMORY_GROWTH_MAX_KB = 128 * 1024
SETTLE_S = 30
#: Clients that flood each port at the same time.
LANES = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a flood did."""

    frames: int
    seconds: float
    probes: int
    longest_wait_ms: float
    memory_before_kb: int
    memory_after_kb: int
    log_bytes: int
    #: Lines of the log that say that something went wrong in the node itself.
    errors: list[str]

    def complaints(self, wait_max_ms: float = WAIT_MAX_MS) -> list[str]:
        """What is over its bound."""
        log_max = LOG_MAX_BYTES_A_MINUTE * (1 + self.seconds / 60)
        grown_kb = self.memory_after_kb - self.memory_before_kb
        found = []
        if self.longest_wait_ms > wait_max_ms:
            found.append(f"another client waited {self.longest_wait_ms:.0f} ms")
        if grown_kb > MEMORY_GROWTH_MAX_KB:
            found.append(f"memory grew by {grown_kb} KB")
        if self.log_bytes > log_max:
            found.append(f"{self.log_bytes} bytes of log in {self.seconds:.0f} s")
        if self.errors:
            found.append(f"{len(self.errors)} errors in the log, the first: {self.errors[0]}")
        return found


class Probe:
    """A client that sends a message and pulls it, again and again, and measures its waits."""

    def __init__(self, peer: RawPeer) -> None:
        self.peer = peer
        self.sent: list[bytes] = []
        self.longest_ms = 0.0

    async def once(self) -> None:
        """Send one message and read it back."""
        body = b"probe %d" % len(self.sent)
        header = send_header(TOPIC, 0, "", int(time.time() * 1000))
        answer = await self._timed(self.peer.ask(RequestCode.SEND_MESSAGE_V2, header, body))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.sent.append(body)
        found = await self._timed(pull_from(self.peer, TOPIC, 0, len(self.sent) - 1))
        assert [bytes(each.body) for each in found] == [body]

    async def _timed(self, call: Awaitable[T]) -> T:
        begin = time.monotonic()
        try:
            return await call
        finally:
            self.longest_ms = max(self.longest_ms, (time.monotonic() - begin) * 1000)


async def flood_ports(host: str, namesrv: int, broker: int, count: int, seed: int) -> None:
    """Flood name server, broker and replication port at the same time, each from LANES sides."""
    strangers: list[RemotingStranger | FalseSlave] = []
    for lane in range(LANES):
        share = count // LANES + (lane < count % LANES)
        for port, kind, side in (
            (namesrv, "namesrv", Side.NAMESRV),
            (broker, "broker", Side.BROKER),
        ):
            chance = Random(f"{seed} {kind} {lane}")
            one = mutations(frames.requests_of(side, kind), chance)
            strangers.append(RemotingStranger((host, port), one, share, chance))
        chance = Random(f"{seed} slave {lane}")
        one = mutations(frames.golden_frames(), chance)
        strangers.append(FalseSlave((host, broker + 1), one, share, chance))
    async with asyncio.TaskGroup() as group:
        for stranger in strangers:
            group.create_task(stranger.run())


async def measured(node: NodeProcess, count: int, seed: int) -> tuple[Outcome, list[bytes]]:
    """Flood a node that runs; gives what was measured and the probe's bodies in order."""
    peer = await RawPeer.connect(node.broker)
    await create_topic(peer, TOPIC, 1)
    await create_topic(peer, GOLDEN_TOPIC, 4)
    probe = Probe(peer)
    await _flooded(node, 500, seed + 10, probe)  # what a first request of each kind takes
    before_kb, begin = memory_kb(node), time.monotonic()
    probe.longest_ms = 0.0
    await _flooded(node, count, seed, probe)
    seconds = time.monotonic() - begin
    deadline = time.monotonic() + SETTLE_S
    while memory_kb(node) - before_kb > MEMORY_GROWTH_MAX_KB and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    stored = await pull_queue(peer, TOPIC, 0)
    assert [bytes(each.body) for each in stored] == probe.sent
    await peer.close()
    log = node.log_path.read_bytes()
    outcome = Outcome(
        frames=3 * count,
        seconds=seconds,
        probes=len(probe.sent),
        longest_wait_ms=probe.longest_ms,
        memory_before_kb=before_kb,
        memory_after_kb=memory_kb(node),
        log_bytes=len(log),
        errors=[line for line in log.decode().splitlines() if is_error(line)],
    )
    return outcome, probe.sent


async def _flooded(node: NodeProcess, count: int, seed: int, probe: Probe) -> None:
    """Have another process flood a node, and probe until it is done."""
    host, _, broker = node.broker.rpartition(":")
    namesrv = node.namesrv.rpartition(":")[2]
    words = ["--at", host, namesrv, broker, "--seed", str(seed)]
    flood = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.hostile.flood", str(count), *words
    )
    try:
        while flood.returncode is None:
            await probe.once()
            with suppress(TimeoutError):
                await asyncio.wait_for(flood.wait(), 0.02)
        assert flood.returncode == 0
    finally:
        if flood.returncode is None:
            flood.kill()
            await flood.wait()


def is_error(line: str) -> bool:
    """Whether a line of a log tells of a fault in the node itself.

    That two masters go by one name is what strangers registered, and rightly told.
    """
    return "Traceback (most" in line or (" ERROR " in line and " another_master " not in line)


def memory_kb(node: NodeProcess) -> int:
    """What a node's process holds of memory."""
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def verify(store: Path) -> None:
    """`cometmq store verify` on a store that nobody uses; AssertionError when it complains."""
    words = [sys.executable, "-m", "cometmq.cli", "store", "verify", str(store)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


async def campaign(directory: Path, count: int, seed: int) -> Outcome:
    """Flood a new node, and check it and its store after it and after a restart."""
    settings = {"mappedFileSizeCommitLog": str(16 << 20), "mappedFileSizeConsumeQueue": "60000"}
    # With a port of the system's choice, the one for slaves moves if the next port is taken.
    port = lasting_port(VIP_DISTANCE)
    given = {**(settings or {}), "haListenPort": str(port + 1)}
    node = NodeProcess(directory / "store", broker_port=port, settings=given)
    node.start()
    try:
        outcome, sent = await measured(node, count, seed)
        assert node.terminate() == 0, node.log_tail()
        verify(node.store)
        node.start()
        peer = await RawPeer.connect(node.broker)
        stored = await pull_queue(peer, TOPIC, 0)
        assert [bytes(each.body) for each in stored] == sent
        await peer.close()
        assert node.terminate() == 0, node.log_tail()
        verify(node.store)
    finally:
        node.kill()
    assert set(names_in(directory)) <= {"store", node.log_path.name}
    return outcome


def names_in(directory: Path) -> list[str]:
    """The names of what lies in a directory."""
    return [path.name for path in directory.iterdir()]


def main(words: list[str]) -> int:
    """Flood a node of its own, or the ports given; 1 when something is over its bound."""
    parser = argparse.ArgumentParser(prog="tests.hostile.flood")
    parser.add_argument("frames", type=int, help="frames on each port")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where store and log stay; else they go")
    parser.add_argument("--at", nargs=3, metavar=("HOST", "NAMESRV", "BROKER"))
    options = parser.parse_args(words)
    if options.at:
        host, namesrv, broker = options.at
        flood = flood_ports(host, int(namesrv), int(broker), options.frames, options.seed)
        uvloop.run(flood)
        return 0
    with ExitStack() as stack:
        directory = options.directory
        if directory is None:
            temporary = tempfile.TemporaryDirectory(prefix="cometmq-flood-")
            directory = Path(stack.enter_context(temporary))
        directory.mkdir(parents=True, exist_ok=True)
        outcome = asyncio.run(campaign(directory, options.frames, options.seed))
    print(outcome)
    complaints = outcome.complaints()
    print(*complaints, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
