"""A running Java master, under load, is moved to ours: nothing is lost, and sends rest a moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.admin import migration
from cometmq.admin.api import Admin
from cometmq.admin.migration import Move, Mover
from cometmq.admin.node import VIP_DISTANCE, lasting_port
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError
from tests.cluster.load import names, patient_client, until
from tests.cluster.servers import BrokerProcess
from tests.compat import anchor
from tests.compat.driver import Driver, Json

pytestmark = pytest.mark.compat

TOPIC = "moved"
GROUP = "readers"
PAUSE_MS = 5_000
FILES = {"mappedFileSizeCommitLog": str(1 << 20)}


class Sender:
    """Sends numbered messages until it is told to end; notes the longest time without an answer
    that all is well."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._clock = SystemClock()
        self.acked: list[str] = []
        self.doubtful: set[str] = set()
        self.longest_ms = 0
        self.over = False

    def has(self, count: int) -> bool:
        return len(self.acked) >= count

    async def run(self) -> None:
        last_ms = self._clock.monotonic_ms()
        numbers = iter(range(1 << 30))

        async def one() -> None:
            nonlocal last_ms
            for number in numbers:
                if self.over:
                    return
                name = f"m{number:08d}"
                try:
                    await self._client.send(TOPIC, name.encode().ljust(300, b"."))
                except CometError:
                    self.doubtful.add(name)
                    await asyncio.sleep(0.02)
                    continue
                now_ms = self._clock.monotonic_ms()
                self.longest_ms = max(self.longest_ms, now_ms - last_ms)
                last_ms = now_ms
                self.acked.append(name)
                await asyncio.sleep(0.002)

        await asyncio.gather(*(one() for _ in range(8)))


async def read_on(client: Client, read: Counter[str]) -> None:
    async with client.subscribe(TOPIC, group=GROUP, start="first") as messages:
        async for message in messages:
            async with message.processing():
                read[message.body[:9].decode()] += 1


async def java_with_topic(
    stack: AsyncExitStack, jars: Path, tmp_path: Path
) -> tuple[anchor.JavaCluster, Client]:
    java = anchor.JavaCluster(jars, tmp_path / "java", FILES)
    stack.callback(java.kill)
    await asyncio.to_thread(java.start)
    await asyncio.to_thread(anchor.wait_for_figures, java.broker)
    client = await stack.enter_async_context(patient_client(java.namesrv))
    await Admin(client.session).create_topic(TOPIC, queues=4)
    return java, client


async def test_a_java_master_is_moved_while_it_serves(
    jars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with AsyncExitStack() as stack:
        java, client = await java_with_topic(stack, jars, tmp_path)
        admin = Admin(client.session)
        sender, read = Sender(client), Counter[str]()
        sending = asyncio.create_task(sender.run())
        reading = asyncio.create_task(read_on(client, read))
        await until(lambda: sender.has(1_000), "some history")

        found = await migration.plan(admin, client.session, java.broker, tmp_path / "ours", 0)
        assert not found.is_refused, found.findings
        assert (found.name, found.role, found.version) == ("broker-a", "ASYNC_MASTER", "V4_9_7")
        assert found.settings["mappedFileSizeCommitLog"] == FILES["mappedFileSizeCommitLog"]
        ours = await attached(stack, java, client, tmp_path)
        said: list[str] = []
        mover = Mover(admin, client.session, ours.broker, say=said.append)
        moved = await mover.move(wait_ms=60_000)
        before = len(sender.acked)
        await until(lambda: sender.has(before + 500), "sends to the new master")
        await asyncio.to_thread(java.broker_server.stop)
        before = len(sender.acked)
        await until(lambda: sender.has(before + 500), "sends without the old one")
        sender.over = True
        await sending
        await until(lambda: read.keys() >= set(sender.acked), "all is read")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        async with patient_client(java.namesrv) as fresh:
            stored = Counter(await names(fresh, TOPIC))
        lost = set(sender.acked) - stored.keys()
        twice = {name for name, count in stored.items() if count > 1} - sender.doubtful
        again = sum(read.values()) - len(read)
        with capsys.disabled():
            print(
                f"\nmoved messages={len(sender.acked)} write_pause_ms={moved.pause_ms} "
                f"sender_pause_ms={sender.longest_ms} lost={len(lost)} stored_twice={len(twice)} "
                f"redelivered={again}"
            )
        assert [line.partition(":")[0] for line in said] == [
            "near",
            "fenced",
            "drained",
            "promoted",
        ]
        assert (lost, twice, moved.late_bytes) == (set(), set(), 0)
        assert moved.pause_ms < PAUSE_MS
        assert sender.longest_ms < PAUSE_MS


async def counted(driver: Driver, count: int) -> int:
    """Wait until the Java producer has so many acknowledged sends; gives how many it has."""
    async with asyncio.timeout(60):
        while (found := await asyncio.to_thread(driver.ask, "steadyCount")) < count:  # type: ignore[operator]
            await asyncio.sleep(0.05)
    assert isinstance(found, int)
    return found


async def masters(admin: Admin) -> list[str]:
    return [each.address for each in await admin.brokers(masters_only=True)]


def words(facts: Json, name: str) -> list[str]:
    assert isinstance(facts, dict)
    found = facts[name]
    assert isinstance(found, list)
    return [str(each) for each in found]


async def attached(
    stack: AsyncExitStack, java: anchor.JavaCluster, client: Client, tmp_path: Path
) -> BrokerProcess:
    """A slave of ours of the Java master."""
    store, port = tmp_path / "ours", lasting_port(VIP_DISTANCE)
    admin = Admin(client.session)
    found = await migration.plan(admin, client.session, java.broker, store, port)
    ours = BrokerProcess(tmp_path, java.namesrv, number=1)
    ours.store, ours.broker, ours.settings = store, f"127.0.0.1:{port}", found.settings
    stack.callback(ours.kill)
    await asyncio.to_thread(ours.start)
    return ours


async def moved_with_address(
    java: anchor.JavaCluster, ours: BrokerProcess, client: Client, driver: Driver
) -> Move:
    """Move it, and return once the Java producer has gone on and the old broker has ended."""
    admin, said = Admin(client.session), list[str]()
    mover = Mover(admin, client.session, ours.broker, say=said.append)
    stopping: list[asyncio.Future[None]] = []
    moved = await mover.move(
        wait_ms=60_000,
        take_address=True,
        address_wait_ms=30_000,
        stop_old=lambda: stopping.append(
            asyncio.ensure_future(asyncio.to_thread(java.broker_server.stop))
        ),
    )
    await counted(driver, await counted(driver, 0) + 500)
    # The old broker tells the name server of itself to the very end, and takes what others
    # registered by its address along, for a moment.
    await asyncio.gather(*stopping)
    async with asyncio.timeout(10):
        while await masters(admin) != [java.broker]:
            await asyncio.sleep(0.05)
    steps = [line.partition(":")[0] for line in said if not line.startswith("waiting")]
    assert steps == ["near", "fenced", "drained", "promoted", "address"]
    return moved


async def test_java_producers_go_on_at_the_old_address(
    jars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They look for no routes: the new master listens where the old one did."""
    async with AsyncExitStack() as stack:
        java, client = await java_with_topic(stack, jars, tmp_path)
        driver = Driver(jars, tmp_path / "driver")
        stack.callback(driver.kill)
        told = {"namesrv": java.namesrv, "group": "java-producers", "topic": TOPIC, "threads": 4}
        await asyncio.to_thread(driver.ask, "steady", **told)
        await counted(driver, 500)
        ours = await attached(stack, java, client, tmp_path)
        moved = await moved_with_address(java, ours, client, driver)
        # It stays there, with the settings of before.
        await asyncio.to_thread(ours.terminate)
        await asyncio.to_thread(ours.start)
        await counted(driver, await counted(driver, 0) + 500)
        facts = await asyncio.to_thread(driver.ask, "steadyStop")
        async with patient_client(java.namesrv) as fresh:
            stored = await names(fresh, TOPIC)
        assert isinstance(facts, dict)
        acked, pause_ms = words(facts, "acked"), facts["longestMs"]
        lost = set(acked) - set(stored)
        with capsys.disabled():
            print(
                f"\naddress messages={len(acked)} address_ms={moved.address_ms} "
                f"java_pause_ms={pause_ms} lost={len(lost)}"
            )
        assert (lost, moved.late_bytes) == (set(), 0)
        assert isinstance(pause_ms, int)
        assert pause_ms < PAUSE_MS
