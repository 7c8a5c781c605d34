"""A disk that fills while the broker runs and is freed again; one that is too small to start on.

The disk is a tmpfs of its own in a user namespace; a small process holds the namespace, so that the
broker can be stopped and started on it.
"""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.admin.node import VIP_DISTANCE, NodeFailed, NodeProcess, lasting_port
from cometmq.core.clock import SystemClock
from cometmq.message import properties
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.operation.raw import (
    Pending,
    RawPeer,
    create_topic,
    pull_from,
    pull_queue,
    query_keys,
    send_header,
)

TOPIC = "fill"
IN_FLIGHT = 32
BODY_BYTES = 16 * 1024
SETTINGS = {
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "20000",
    "maxIndexNum": "80000",
}

#: Nothing is removed or refused for how full the disk is: only the device itself says no.
TO_THE_BRIM = {
    "diskMaxUsedSpaceRatio": "101",
    "diskSpaceCleanForciblyRatio": "101",
    "diskSpaceWarningLevelRatio": "101",
}


@contextmanager
def small_disk(place: Path, size_mb: int) -> Iterator[list[str]]:
    """A tmpfs on `place`, seen only behind the words that this gives."""
    place.mkdir()
    script = f'mount -t tmpfs -o size={size_mb}m none "$1" && echo mounted && exec cat'
    holder = subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"mounted\n"
        target = ["--target", str(holder.pid), "--user", "--mount", "--preserve-credentials"]
        yield ["nsenter", *target, "--"]
    finally:
        holder.stdin.close()
        holder.wait(10)
        holder.stdout.close()


async def fill(peer: RawPeer, prefix: str = "k") -> tuple[dict[str, int], list[str]]:
    """Send until the broker refuses; gives the acknowledged keys with their queue offsets, and the
    remarks of the refusals."""
    acknowledged: dict[str, int] = {}
    remarks: list[str] = []
    number = 0
    while not remarks:
        answers: dict[str, Pending] = {}
        for _ in range(IN_FLIGHT):
            key = f"{prefix}{number:06d}"
            answers[key] = peer.write(RequestCode.SEND_MESSAGE_V2, header(key), body(key))
            number += 1
        for key, answer in answers.items():
            response = await answer
            if response.code == ResponseCode.SUCCESS:
                acknowledged[key] = int(response.ext["queueOffset"])
            else:
                assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE, response.remark
                remarks.append(response.remark or "")
        assert number * BODY_BYTES < 64 * 1024 * 1024, "nothing was ever refused"
    return acknowledged, remarks


def header(key: str) -> h.SendMessageV2:
    text = properties.encode_text({properties.KEYS: key})
    return send_header(TOPIC, 0, text, SystemClock().wall_ms())


def body(key: str) -> bytes:
    return key.encode() * (BODY_BYTES // len(key))


async def check(peer: RawPeer, acknowledged: dict[str, int], *, kept: bool) -> None:
    """Every acknowledged message is there, once, whole, in its place and in the index.

    When old messages may have been removed (not `kept`), that holds for those from some offset on.
    """
    records = await pull_queue(peer, TOPIC, 0)
    first = records[0].queue_offset
    assert first == 0 or not kept
    assert [record.queue_offset for record in records] == list(range(first, first + len(records)))
    stored = {properties.decode(record.properties)[properties.KEYS]: record for record in records}
    assert len(stored) == len(records)
    left = {key: offset for key, offset in acknowledged.items() if offset >= first}
    assert len(left) > 100
    assert {key: stored[key].queue_offset for key in left} == left
    assert all(stored[key].body == body(key) for key in left)
    keys = list(left)[:: max(1, len(left) // 100)]
    found = await query_keys(peer, TOPIC, keys)
    assert {key: len(records) for key, records in found.items()} == dict.fromkeys(keys, 1)


@pytest.mark.parametrize("to_the_brim", [True, False])
async def test_a_disk_that_fills_refuses_sends_and_damages_nothing(
    tmp_path: Path, to_the_brim: bool
) -> None:
    """To the last byte, and with the default ratios: they refuse writes from 90 % on, and from
    85 % on remove whole old files."""
    settings = SETTINGS | (TO_THE_BRIM if to_the_brim else {})
    with small_disk(tmp_path / "disk", size_mb=64) as prefix:
        node = NodeProcess(
            tmp_path / "disk" / "store",
            namesrv_port=lasting_port(),
            broker_port=lasting_port(VIP_DISTANCE),
            settings=settings,
            prefix=prefix,
            log_path=tmp_path / "node.log",
        )
        node.start()
        try:
            peer = await RawPeer.connect(node.broker)
            await create_topic(peer, TOPIC, 1)
            acknowledged, remarks = await fill(peer)
            assert len(acknowledged) > 100
            assert any(character.isdigit() for character in remarks[0]), remarks[0]
            # Consumers go on: they read everything and keep their offsets.
            await check(peer, acknowledged, kept=to_the_brim)
            read = len(acknowledged)
            commit = h.UpdateConsumerOffset("readers", TOPIC, 0, read)
            answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            assert answer.code == ResponseCode.SUCCESS
            if to_the_brim:
                # The end of the last file may take some that fit; then it is refused again.
                late, _ = await fill(peer, "late")
                acknowledged |= late
            await peer.close()
            assert node.terminate() == 0

            node.start()
            peer = await RawPeer.connect(node.broker)
            await check(peer, acknowledged, kept=to_the_brim)
            asked = h.QueryConsumerOffset("readers", TOPIC, 0)
            answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)
            assert int(answer.ext["offset"]) == read
            await peer.close()
            assert node.terminate() == 0
        finally:
            node.kill()


class Load:
    """A producer and a consumer that go on whatever they are told."""

    def __init__(self, peer: RawPeer) -> None:
        self._peer = peer
        self.acknowledged: dict[str, int] = {}
        self.refusals: list[str] = []
        self.read = 0
        self._stopping = False

    async def send(self) -> None:
        """Send until it is stopped; what is refused is not sent again."""
        number = 0
        while not self._stopping:
            answers: dict[str, Pending] = {}
            for _ in range(IN_FLIGHT):
                key = f"k{number:06d}"
                answers[key] = self._peer.write(RequestCode.SEND_MESSAGE_V2, header(key), body(key))
                number += 1
            for key, answer in answers.items():
                response = await answer
                if response.code == ResponseCode.SUCCESS:
                    self.acknowledged[key] = int(response.ext["queueOffset"])
                else:
                    assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE, response.remark
                    self.refusals.append(response.remark or "")
            if self.refusals:
                await asyncio.sleep(0.02)

    async def consume(self) -> None:
        """Read on until it is stopped and has read all."""
        while not self._stopping or self.read < len(self.acknowledged):
            records = await pull_from(self._peer, TOPIC, 0, self.read)
            assert [record.queue_offset for record in records] == list(
                range(self.read, self.read + len(records))
            )
            self.read += len(records)
            if not records:
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._stopping = True


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = SystemClock().monotonic_ms() + 40_000
    while not holds():
        assert SystemClock().monotonic_ms() < deadline, what
        await asyncio.sleep(0.02)


async def run(*words: str) -> None:
    await asyncio.to_thread(subprocess.run, words, check=True)


#: The device says no, or a broker that removes nothing says it at 90 %.
NO_ROOM = {
    "No space left": TO_THE_BRIM,
    "diskSpaceWarningLevelRatio": TO_THE_BRIM | {"diskSpaceWarningLevelRatio": "90"},
}


@pytest.mark.parametrize("cause", NO_ROOM)
async def test_sends_resume_by_themselves_when_the_disk_is_freed(
    tmp_path: Path, cause: str
) -> None:
    disk = tmp_path / "disk"
    ratios = NO_ROOM[cause]
    with small_disk(disk, size_mb=128) as prefix:
        ballast = str(disk / "ballast")
        await run(*prefix, "fallocate", "-l", "84M", ballast)
        node = NodeProcess(
            disk / "store", settings=SETTINGS | ratios, prefix=prefix, log_path=tmp_path / "log"
        )
        node.start()
        try:
            peer = await RawPeer.connect(node.broker)
            await create_topic(peer, TOPIC, 1)
            load = Load(peer)
            tasks = [asyncio.create_task(load.send()), asyncio.create_task(load.consume())]
            await until(lambda: any(cause in each for each in load.refusals), "nothing is refused")
            assert all(any(map(str.isdigit, remark)) for remark in load.refusals)
            await until(lambda: load.read == len(load.acknowledged), "consumers stand still")
            await run(*prefix, "rm", ballast)
            before = len(load.acknowledged)
            await until(lambda: len(load.acknowledged) > before + 500, "sends do not resume")
            load.stop()
            await asyncio.gather(*tasks)
            await check(peer, load.acknowledged, kept=True)
            await peer.close()
            assert node.terminate() == 0
            node.start()
            peer = await RawPeer.connect(node.broker)
            await check(peer, load.acknowledged, kept=True)
            await peer.close()
            assert node.terminate() == 0
        finally:
            node.kill()


def test_a_start_on_too_small_a_disk_says_so_and_ends(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_mb=8) as prefix:
        node = NodeProcess(
            tmp_path / "disk" / "store",
            settings=SETTINGS,
            prefix=prefix,
            log_path=tmp_path / "node.log",
        )
        with pytest.raises(NodeFailed) as failed:
            node.start()
    assert failed.value.exit_code == 2
    complaint = failed.value.log_tail.strip().splitlines()[-1]
    assert complaint.startswith("cometmq start: ")
    assert "Traceback" not in failed.value.log_tail
    assert any(character.isdigit() for character in complaint), complaint


async def resumed(peer: RawPeer) -> None:
    """Wait until a send is taken."""
    deadline = SystemClock().monotonic_ms() + 40_000
    key = "resumed"
    while True:
        answer = await peer.write(RequestCode.SEND_MESSAGE_V2, header(key), body(key))
        if answer.code == ResponseCode.SUCCESS:
            return
        assert SystemClock().monotonic_ms() < deadline, answer.remark
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("to_the_brim", [True, False])
async def test_a_broker_starts_on_a_full_disk_to_drain_it(
    tmp_path: Path, to_the_brim: bool, killed: bool
) -> None:
    """Not a byte is left when it starts: what is there is read, sends are refused, and taken again
    once there is room."""
    disk = tmp_path / "disk"
    keep = SETTINGS | (TO_THE_BRIM if to_the_brim else {"cleanFileForciblyEnable": "false"})
    with small_disk(disk, size_mb=84) as prefix:
        node = NodeProcess(
            disk / "store", namesrv_port=lasting_port(), broker_port=lasting_port(VIP_DISTANCE),
            settings=keep, prefix=prefix, log_path=tmp_path / "node.log",
        )  # fmt: skip
        # What is freed at the end has to have room for a log file.
        ballast = str(disk / "ballast")
        await run(*prefix, "fallocate", "-l", "20M", f"{ballast}-first")
        node.start()
        try:
            peer = await RawPeer.connect(node.broker)
            await create_topic(peer, TOPIC, 1)
            acknowledged, _ = await fill(peer)
            await peer.close()
            if killed:
                node.kill()
            else:
                assert node.terminate() == 0
            await run(*prefix, "sh", "-c", f"! cat /dev/zero 2>/dev/null > {ballast}")

            node.start()
            peer = await RawPeer.connect(node.broker)
            await check(peer, acknowledged, kept=True)
            answer = await peer.write(RequestCode.SEND_MESSAGE_V2, header("late"), body("late"))
            if answer.code == ResponseCode.SUCCESS:
                # The end of the last file may take some that fit.
                late, remarks = await fill(peer, "later")
                acknowledged |= late | {"late": int(answer.ext["queueOffset"])}
            else:
                remarks = [answer.remark or ""]
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert any(word in remarks[0] for word in NO_ROOM), remarks[0]
            await run(*prefix, "rm", ballast, f"{ballast}-first")
            await resumed(peer)
            await peer.close()
            assert node.terminate() == 0
            node.start()
            peer = await RawPeer.connect(node.broker)
            await check(peer, acknowledged, kept=True)
            await peer.close()
            assert node.terminate() == 0
        finally:
            node.kill()
