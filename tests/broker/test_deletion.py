"""A broker that is killed, or loses power, at every step of a topic's deletion.

Afterwards the topic is whole or gone, and one made anew holds its own messages only.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from random import Random
from typing import cast

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import TopicConfig
from cometmq.protocol.codes import RequestCode as Code
from cometmq.store.config import FlushDiskType
from tests.broker.world import SMALL_STORE, Parts, open_parts
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import MemoryFiles, Moment
from tests.simulation.faults.threads import SteppedThreads

ROOT = Path("/store")
SYNCED = replace(SMALL_STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
FORMER = [b"former 0", b"former 1", b"former 2", b"former 3"]
OTHER = [b"other 0", b"other 1"]


class Written(Enum):
    """What of the topic's entries the files of its queues have when it is deleted."""

    NOTHING = "nothing"
    SOME = "some"
    SYNCED = "some, and everything is synced now and then"


@dataclass
class Machine:
    """One disk, and what was acknowledged to the clients of the broker on it."""

    seed: int = 0
    disk: Disk = field(default_factory=Disk)
    clock: VirtualClock = field(default_factory=VirtualClock)
    is_deleted: bool = False
    anew: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)

    async def live(
        self, work: Callable[[Parts], Awaitable[None]], end: tuple[int, Moment] | None = None
    ) -> int:
        """A broker from its start to its end, after ``work`` or at a step of its files; gives the
        number of steps. Without ``end`` it stops as it should."""
        threads = SteppedThreads(self.chance, split=0)
        asyncio.get_running_loop().set_default_executor(threads.executor(1))
        files = MemoryFiles(self.disk, self.clock, self.chance, threads=threads)
        if end is not None:
            files.end_at(*end)
        life = asyncio.create_task(self._serve(files, work, ends=end is not None))
        turns = 0
        while not life.done():
            turns += 1
            if files.ended:
                threads.abandon()
                life.cancel()
            elif not threads.step() and turns % 50 == 0:
                self.clock.advance(10)
            assert turns < 100_000, "the broker hangs"
            await asyncio.sleep(0)
        if not files.ended:
            await life
        elif not life.cancelled():
            life.exception()  # whatever it is, it came from the end
        return files.steps

    async def _serve(
        self, files: MemoryFiles, work: Callable[[Parts], Awaitable[None]], *, ends: bool
    ) -> None:
        async with open_parts(ROOT, clock=self.clock, files=files, store_config=SYNCED) as parts:
            parts.topics.adopt(parts.store)
            parts.offsets.delete_topics(parts.topics.deleted())
            await parts.topics.saved()
            await work(parts)
            if ends:
                files.end()

    async def fill(self, parts: Parts, written: Written) -> None:
        """Two topics, and a group that has read of one of them."""
        for name in ("x", "y"):
            parts.topics.put(TopicConfig(name, 2, 2))
        await parts.topics.saved()
        for body in OTHER:
            await parts.put("y", body)
        parts.offsets.commit("g", "x", 0, 1)
        await parts.offsets.saved()
        for number, body in enumerate(FORMER):
            if number == 3 and written is not Written.NOTHING:
                await self.flush(parts, written)
            await parts.put("x", body, number % 2)

    async def flush(self, parts: Parts, written: Written) -> None:
        """What the store does by itself every second, or every now and then."""
        if written is Written.SYNCED:
            self.clock.advance(60_000)
        await parts.store.maintenance.flush_entries()

    async def delete_and_make_anew(self, parts: Parts, written: Written) -> None:
        """While the topic is deleted the store goes on doing what it does."""
        deleting = parts.ask(Code.DELETE_TOPIC_IN_BROKER, h.Topic("x"))
        await asyncio.gather(deleting, self.flush(parts, written))
        self.is_deleted = True
        assert parts.topics.create_by_send("x", "TBW102", 2, "a client") is not None
        for body in (b"new 0", b"new 1"):
            await parts.put("x", body)
            self.anew.append(body)
        await self.flush(parts, written)

    def fail(self, power: int) -> None:
        """The process is killed, or the machine loses power."""
        if power:
            self.disk.lose_power(self.chance)
        else:
            self.disk.kill(self.chance)

    async def look(self, parts: Parts) -> None:
        """What must hold after a start."""
        assert bodies(parts, "y") == OTHER
        self.check_x(parts)

    async def look_and_end(self, parts: Parts) -> None:
        """The same, and then the broker ends at some step of what it does after a start."""
        await self.look(parts)
        files = cast("MemoryFiles", parts.store.files)
        files.end_at(files.steps + self.chance.randrange(12), self.chance.choice(list(Moment)))
        await self.flush(parts, Written.SYNCED)
        files.end()

    async def check(self, parts: Parts) -> None:
        """What must hold after a start, and when the topic is made anew after it."""
        assert bodies(parts, "y") == OTHER
        is_whole = self.check_x(parts)
        if "x" not in parts.topics:
            parts.topics.put(TopicConfig("x", 2, 2))
            assert parts.offsets.query("g", "x", 0) == -1
        for queue_id in (0, 1):
            await parts.put("x", b"last", queue_id)
        assert bodies(parts, "x").count(b"last") == 2
        assert is_whole or not set(FORMER) & set(bodies(parts, "x"))

    def check_x(self, parts: Parts) -> bool:
        """Whether all of the former messages are there; gone or there, they are so together."""
        found = bodies(parts, "x") if "x" in parts.topics else []
        former = [body for body in found if body in FORMER]
        assert sorted(former) in ([], FORMER)
        if self.is_deleted:
            assert former == []
            assert [body for body in found if body in self.anew] == self.anew
            assert "x" in parts.topics or not self.anew
            assert parts.offsets.query("g", "x", 0) == -1
        else:
            assert former or "x" not in parts.topics
        return former != []


def bodies(parts: Parts, topic: str) -> list[bytes]:
    return [record.body for queue_id in (0, 1) for record in parts.read(topic, queue_id)]


async def delete(machine: Machine, end: tuple[int, Moment], written: Written) -> range:
    """The life of a broker with a deletion in it, up to an end; gives the steps of the deletion and
    of what follows it."""
    steps = 0

    async def work(parts: Parts) -> None:
        nonlocal steps
        await machine.fill(parts, written)
        steps = cast("MemoryFiles", parts.store.files).steps
        await machine.delete_and_make_anew(parts, written)

    total = await machine.live(work, end)
    return range(steps, total)


NEVER = (1 << 30, Moment.BEFORE)


@pytest.mark.parametrize("written", Written)
@pytest.mark.parametrize("power", [0, 1])
async def test_a_topic_is_whole_or_gone_whenever_its_deletion_ends(
    power: int, written: Written
) -> None:
    steps = await delete(Machine(), NEVER, written)
    assert len(steps) > 20
    moments = list(Moment)
    for step in range(steps.start, steps.stop + 1):
        machine = Machine(seed=step * 10 + power)
        await delete(machine, (step, moments[(step + power) % 3]), written)
        machine.fail(power)
        await machine.live(machine.look_and_end)
        machine.fail(power)
        await machine.live(machine.look)
        await machine.live(machine.check)  # a clean stop in between brings nothing back
