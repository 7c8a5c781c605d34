"""One round: a load on one broker, counted until its last message can be consumed.

A target is a running broker of any kind, with the operations of a round: create a topic, return the
number of messages that consumers can see, load the broker, and delete old messages.
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
#: A store larger than this is emptied before the next round.
STORE_MAX_BYTES: Final = 3 << 30
_QUEUES_ASKED: Final = 64
#: Time that a Java broker may take to delete what it need not keep.
_TRIM_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a generator: ``window`` requests in flight on each of ``connections``. A request
    has ``messages`` messages of ``body_bytes``. ``more`` are further arguments of load.c."""

    kind: str
    topic: str
    connections: int
    window: int
    body_bytes: int
    seconds: float
    messages: int = 1
    more: tuple[str, ...] = ()
    queues: int = QUEUES
    #: If set, messages go to TOPIC0, TOPIC1 ..., which are not created here.
    topics: int = 0

    @property
    def is_wide(self) -> bool:
        """True if asking each queue for its end takes longer than the dispatch."""
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
    #: The kinds of Load that the broker supports.
    kinds: frozenset[str] = frozenset({"send"})

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.home = home
        self.topics: set[str] = set()

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id of the broker."""

    @abstractmethod
    def start(self) -> None:
        """Start the broker, and return when it serves."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the broker. Do nothing if it is not running."""

    @abstractmethod
    async def create(self, topic: str, queues: int) -> None:
        """Create a topic."""

    @abstractmethod
    async def stored(self, topic: str, queues: int) -> int:
        """Return the number of messages of a topic that consumers can see."""

    async def behind_bytes(self) -> int:
        """Return the bytes of the log that consumers cannot see yet; 0 if acknowledged messages are
        visible at once."""
        return 0

    @abstractmethod
    def words(self, load: Load) -> list[str]:
        """Return the arguments of the generator."""

    @abstractmethod
    async def empty(self) -> None:
        """Delete the stored messages, or most of them."""

    async def ready(self, bench: Bench) -> None:  # noqa: B027
        """Wait, after a start, until the broker can be loaded. Raises BenchmarkFailed."""

    def store_bytes(self) -> int:
        """Return the disk space of its files."""
        total = 0
        for folder, _, names in os.walk(self.home):
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:  # deleted in the meantime
                    continue
        return total

    def remove(self) -> None:
        """End the broker and remove its files."""
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
        """Address of the name server."""
        return self.server.namesrv

    @property
    def address(self) -> str:
        """Address of the broker."""
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
        """Empty the store. CometMQ is restarted with an empty store. A Java broker has to stay
        warm, so it deletes its full log files at once, not after three days."""
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
        await asyncio.sleep(2)  # the files are deleted a second later


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
    """The running targets, the load generators' folder, and resources that a case leaves open
    (``stack``)."""

    programs: Path
    seconds: float
    targets: Sequence[Target]
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    #: Targets and topics whose messages a case reads again in its next round.
    kept: set[tuple[str, str]] = field(default_factory=set)

    async def load(self, target: Target, load: Load) -> dict[str, float]:
        """Run the generator once. Correct its rate for the time until consumers see its last
        message.

        The result also has ``cpu_us``, the broker's processor time per message, and ``memory_mib``,
        its RssAnon. Raises BenchmarkFailed.
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
        """Run the generator once, without waiting for the broker's remaining work."""
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
        """Create a topic on a target, once."""
        if name not in target.topics:
            await target.create(name, queues)
            target.topics.add(name)

    async def empty(self, target: Target, limit_bytes: int = STORE_MAX_BYTES) -> None:
        """Empty the store of a target that has more than ``limit_bytes``."""
        if target.store_bytes() > limit_bytes:
            await target.empty()
            await target.ready(self)
            self.kept = {(name, topic) for name, topic in self.kept if name != target.name}
