"""One round: a load on one broker, counted until its last message can be consumed.

A target is a running broker of any kind, with what a round asks of it: make a topic, say how many
messages consumers can see, load it, and drop old messages.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from benchmarks.loading import GRACE_S, BenchmarkFailed, build_program, run_program
from benchmarks.servers import anonymous_mib, cpu_s
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import KvTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from benchmarks.peers import KafkaNode, NatsNode
    from cometmq.net.client import Remoting

QUEUES: Final = 8
DRAIN_LIMIT_S: Final = 5.0
TIMEOUT_MS: Final = 30_000
#: A store that grew over this is emptied before the next round.
STORE_MAX_BYTES: Final = 3 << 30
_QUEUES_ASKED: Final = 64
#: How long a Java broker may take to delete what it no longer has to keep.
_TRIM_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a generator does: ``window`` requests in flight on each of ``connections``; a request
    has ``messages`` messages of ``body_bytes``. ``more`` are further words for load.c."""

    kind: str
    topic: str
    connections: int
    window: int
    body_bytes: int
    seconds: float
    messages: int = 1
    more: tuple[str, ...] = ()
    queues: int = QUEUES
    #: With so many, messages go to TOPIC0, TOPIC1 ...; nobody makes these.
    topics: int = 0

    @property
    def is_wide(self) -> bool:
        """Whether asking each queue for its end takes longer than the dispatch does."""
        return self.topics > 0 or self.queues > _QUEUES_ASKED


class RocketServer(Protocol):
    """A broker that speaks RocketMQ's protocol."""

    @property
    def port(self) -> int: ...
    @property
    def namesrv(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


class Target(ABC):
    """A broker under test. ``name`` is its column in a table."""

    program = ""
    #: Kinds of Load that it can take.
    kinds: frozenset[str] = frozenset({"send"})

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.home = home
        self.topics: set[str] = set()

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process."""

    @abstractmethod
    def start(self) -> None:
        """Start it; returns when it serves."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once; nothing when it does not run."""

    @abstractmethod
    async def create(self, topic: str, queues: int) -> None:
        """Make a topic."""

    @abstractmethod
    async def stored(self, topic: str, queues: int) -> int:
        """Messages of a topic that consumers can see."""

    async def behind_bytes(self) -> int:
        """Bytes of its log that consumers cannot see yet: none where what is acknowledged is
        visible."""
        return 0

    @abstractmethod
    def words(self, load: Load) -> list[str]:
        """The words for the generator."""

    @abstractmethod
    async def empty(self) -> None:
        """Drop what was stored, or the most of it."""

    async def ready(self, bench: Bench) -> None:  # noqa: B027
        """Wait, after a start, until it can be loaded. Raises BenchmarkFailed."""

    def store_bytes(self) -> int:
        """What its files take of the disk."""
        total = 0
        for folder, _, names in os.walk(self.home):
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:  # deleted meanwhile
                    continue
        return total

    def remove(self) -> None:
        """End it and remove its files."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


class RocketTarget(Target):
    """CometMQ or Apache RocketMQ."""

    program = "load"
    kinds = frozenset({"send", "orders", "commit", "batch", "fan", "pull"})

    def __init__(self, name: str, home: Path, server: RocketServer, remoting: Remoting) -> None:
        super().__init__(name, home)
        self.server = server
        self._remoting = remoting

    @property
    def pid(self) -> int:
        return self.server.pid

    @property
    def namesrv(self) -> str:
        """The address of its name server."""
        return self.server.namesrv

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"127.0.0.1:{self.server.port}"

    def start(self) -> None:
        self.server.start()

    def kill(self) -> None:
        self.server.kill()

    async def create(self, topic: str, queues: int) -> None:
        header = h.CreateTopic(topic, "TBW102", queues, queues, 6, "SINGLE_TAG", 0, "false")
        await self._call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def stored(self, topic: str, queues: int) -> int:
        total = 0
        for queue_id in range(queues):
            header = h.TopicQueue(topic, queue_id)
            total += int(await self._call(RequestCode.GET_MAX_OFFSET, header, "offset"))
        return total

    def words(self, load: Load) -> list[str]:
        found: list[object] = [load.kind, self.server.port, load.topic, load.queues]
        if load.kind == "pull":
            found += [load.connections, load.messages, load.seconds]
        else:
            found += [load.connections, load.window, load.body_bytes, load.seconds]
        if load.kind == "batch":
            found.append(load.messages)
        if load.topics:
            found.append(load.topics)
        return [str(word) for word in (*found, *load.more)]

    async def behind_bytes(self) -> int:
        response = await self._remoting.call(
            self.address, RequestCode.GET_BROKER_RUNTIME_INFO, None, timeout_ms=TIMEOUT_MS
        )
        return int(parse_json(response.body, KvTable).table["dispatchBehindBytes"])

    async def empty(self) -> None:
        """CometMQ starts anew, which costs it nothing; a Java broker, which has to stay warm,
        deletes its full log files at once instead of after three days."""
        if self.name.startswith("cometmq"):
            await asyncio.to_thread(self._start_anew)
            return
        await self._keep_hours(0)
        deadline = time.perf_counter() + _TRIM_S
        while self._log_files() > 2 and time.perf_counter() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        await self._keep_hours(72)

    def _start_anew(self) -> None:
        self.kill()
        shutil.rmtree(self.home)
        self.topics.clear()
        self.start()

    def _log_files(self) -> int:
        return sum(1 for path in self.home.rglob("commitlog/*") if path.stat().st_blocks)

    async def _keep_hours(self, hours: int) -> None:
        await self._call(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=%d\n" % hours)

    async def _call(
        self, code: int, header: h.Header | None = None, field_name: str = "", body: bytes = b""
    ) -> str:
        response = await self._remoting.call(
            self.address, code, header, body, timeout_ms=TIMEOUT_MS
        )
        return response.ext.get(field_name, "")


class KafkaTarget(Target):
    """Apache Kafka: a batch is one record batch."""

    program = "kafka"
    kinds = frozenset({"send", "batch"})

    def __init__(self, name: str, home: Path, node: KafkaNode) -> None:
        super().__init__(name, home)
        self._node = node

    @property
    def pid(self) -> int:
        return self._node.pid

    def start(self) -> None:
        self._node.start()

    def kill(self) -> None:
        self._node.kill()

    async def create(self, topic: str, queues: int) -> None:
        await asyncio.to_thread(self._node.create, topic)

    async def stored(self, topic: str, queues: int) -> int:
        return await asyncio.to_thread(self._node.stored, topic)

    def words(self, load: Load) -> list[str]:
        found = (self._node.port, load.topic, load.queues, load.connections, load.window)
        more = (load.body_bytes, load.seconds, load.messages, -1)
        return [str(word) for word in (*found, *more)]

    async def empty(self) -> None:
        for topic in self.topics:
            await asyncio.to_thread(self._node.delete, topic)
        self.topics.clear()
        await asyncio.sleep(2)  # it deletes the files a second later


class NatsTarget(Target):
    """NATS JetStream."""

    program = "nats"

    def __init__(self, name: str, home: Path, node: NatsNode) -> None:
        super().__init__(name, home)
        self._node = node

    @property
    def pid(self) -> int:
        return self._node.pid

    def start(self) -> None:
        self._node.start()

    def kill(self) -> None:
        self._node.kill()

    async def create(self, topic: str, queues: int) -> None:
        await asyncio.to_thread(self._node.create, topic)

    async def stored(self, topic: str, queues: int) -> int:
        return await asyncio.to_thread(self._node.stored, topic)

    def words(self, load: Load) -> list[str]:
        found = (self._node.port, load.topic, load.connections, load.window)
        return [str(word) for word in (*found, load.body_bytes, load.seconds)]

    async def empty(self) -> None:
        for topic in self.topics:
            await asyncio.to_thread(self._node.delete, topic)
        self.topics.clear()


@dataclass(slots=True)
class Bench:
    """Running targets, the load generators' folder, and what a case leaves running (``stack``)."""

    programs: Path
    seconds: float
    targets: Sequence[Target]
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    #: Targets and topics whose messages a case reads again in its next round.
    kept: set[tuple[str, str]] = field(default_factory=set)

    async def load(self, target: Target, load: Load) -> dict[str, float]:
        """One run of the generator, corrected for the time until consumers saw its last message.

        Adds ``cpu_us``, the broker's processor time a message, and ``memory_mib``, its RssAnon.
        Raises BenchmarkFailed.
        """
        if not load.topics:
            await self.topic(target, load.topic, load.queues)
        before = 0 if load.is_wide else await target.stored(load.topic, load.queues)
        before_s = cpu_s(target.pid)
        found = await self.run(target, load)
        found["memory_mib"] = anonymous_mib(target.pid)
        if found["errors"]:
            raise BenchmarkFailed(f"{target.name} {load.kind}: {found['errors']:.0f} errors")
        if not found["messages_per_s"]:
            raise BenchmarkFailed(f"{target.name} {load.kind}: nothing after the warm-up")
        if load.kind != "pull":
            drain_s = await self._drain(target, load, before + int(found["stored"]))
            if load.kind != "fan":
                found["messages_per_s"] *= load.seconds / (load.seconds + drain_s)
            found["drain_s"] = drain_s
        used_s = cpu_s(target.pid) - before_s
        found["cpu_us"] = used_s * 1e6 / max(1.0, found["stored"])
        return found

    async def run(self, target: Target, load: Load) -> dict[str, float]:
        """One run of the generator, whatever the broker still has to do after it."""
        path = self.programs / target.program
        if not path.exists():
            await asyncio.to_thread(build_program, target.program, self.programs)
        what = f"{target.name} {load.kind}"
        return await run_program(
            [str(path), *target.words(load)], what, limit_s=load.seconds + GRACE_S
        )

    async def _drain(self, target: Target, load: Load, wanted: int) -> float:
        async def missing() -> int:
            if load.is_wide:
                return await target.behind_bytes()
            return wanted - await target.stored(load.topic, load.queues)

        begin = time.perf_counter()
        while (left := await missing()) > 0:
            if time.perf_counter() - begin > DRAIN_LIMIT_S:
                what = "bytes" if load.is_wide else "messages"
                raise BenchmarkFailed(f"{target.name}: dispatch is {left} {what} behind")
            await asyncio.sleep(0.005)
        return time.perf_counter() - begin

    async def topic(self, target: Target, name: str, queues: int = QUEUES) -> None:
        """Make a topic on a target, once."""
        if name not in target.topics:
            await target.create(name, queues)
            target.topics.add(name)

    async def empty(self, target: Target, limit_bytes: int = STORE_MAX_BYTES) -> None:
        """Drop what a target stored, when that is more than ``limit_bytes``."""
        if target.store_bytes() > limit_bytes:
            await target.empty()
            await target.ready(self)
            self.kept = {(name, topic) for name, topic in self.kept if name != target.name}
