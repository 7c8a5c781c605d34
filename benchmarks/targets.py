"""The targets of the table by name: their creation and their settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.loading import BenchmarkFailed
from benchmarks.peers import KAFKA_VERSION, NATS_VERSION, KafkaNode, NatsNode
from benchmarks.replication import JavaPair, OurPair, Pair
from benchmarks.rounds import Bench, KafkaTarget, Load, NatsTarget, RocketTarget, Target
from benchmarks.servers import JavaServer, OurServer
from cometmq.speedups import DESCRIPTION
from tests.compat import anchor

if TYPE_CHECKING:
    from benchmarks.cases import Setup
    from cometmq.net.client import Remoting

#: The settings of each target, for the reader of a table.
SETTINGS: Final = {
    "cometmq": f"one node with its defaults, core {DESCRIPTION}; acknowledged once written to the "
    "page cache (ASYNC_FLUSH)",
    "cometmq-plain": "the same with COMETMQ_PURE=1, plain Python",
    f"rocketmq-{anchor.VERSION}": "Apache RocketMQ, heap 4 GiB, G1, both compilers; ASYNC_FLUSH",
    f"rocketmq-{anchor.LATEST}": "as 4.9.7",
    "kafka": f"Apache Kafka {KAFKA_VERSION}, one KRaft node with its defaults, heap 1 GiB, "
    "8 partitions; acks=all, acknowledged once in the page cache; no idempotence; in SYNC_FLUSH "
    "rows log.flush.interval.messages=1",
    "nats": f"nats-server {NATS_VERSION}, JetStream, file storage, one stream, one replica, "
    "acknowledged once written; in SYNC_FLUSH rows sync_interval=always",
}
#: The targets that speak RocketMQ's protocol.
ROCKETS: Final = tuple(name for name in SETTINGS if name not in {"kafka", "nats"})
#: The targets that need a warm-up.
JVMS: Final = frozenset({f"rocketmq-{anchor.VERSION}", f"rocketmq-{anchor.LATEST}", "kafka"})
_PAIR_S: Final = 60.0


class PairTarget(RocketTarget):
    """A SYNC_MASTER with its slave. The master is loaded and measured."""

    def __init__(self, name: str, home: Path, pair: Pair, remoting: Remoting) -> None:
        super().__init__(name, home, pair, remoting)
        self._pair = pair

    def start(self) -> None:
        self._pair.start()
        self._pair.start_slave()

    async def ready(self, bench: Bench) -> None:
        """Wait until the slave confirms. A Java slave reports its offset for the first time five
        seconds after its start. Raises BenchmarkFailed."""
        deadline = time.perf_counter() + _PAIR_S
        await bench.topic(self, "ready")
        while (await bench.run(self, Load("send", "ready", 1, 1, 128, 0.5)))["errors"]:
            if time.perf_counter() > deadline:
                raise BenchmarkFailed(f"{self.name}: no slave within {_PAIR_S} s")
            await asyncio.sleep(0.2)


def _pair(name: str, home: Path, remoting: Remoting) -> Target:
    makers: dict[str, Callable[[Path, str], Pair]] = {
        "cometmq": OurPair,
        f"rocketmq-{anchor.VERSION}": JavaPair,
    }
    home.mkdir()
    return PairTarget(name, home, makers[name](home, "SYNC_MASTER"), remoting)


def make(
    name: str,
    setup: Setup,
    home: Path,
    remoting: Remoting,
    more: Mapping[str, str] | None = None,
) -> Target:
    """Return a target that is not started yet. Its files are under ``home``, which is created.

    ``more`` are further settings of a broker that speaks RocketMQ's protocol.

    Raises ToolMissing, CalledProcessError, BenchmarkFailed, AnchorFailed.
    """
    if setup == "SYNC_MASTER":
        return _pair(name, home, remoting)
    if name == "kafka":
        return KafkaTarget(name, home, KafkaNode(home, is_synced=setup == "SYNC_FLUSH"))
    if name == "nats":
        return NatsTarget(name, home, NatsNode(home, is_synced=setup == "SYNC_FLUSH"))
    flush = "SYNC_FLUSH" if setup == "SYNC_FLUSH" else "ASYNC_FLUSH"
    settings: dict[str, str] = {"flushDiskType": flush, **(more or {})}
    if name.startswith("cometmq"):
        server = OurServer(home, settings, is_plain=name == "cometmq-plain")
        return RocketTarget(name, home, server, remoting)
    # Allows deletion of full log files in every hour, so that it takes seconds between cases.
    settings |= {"deleteWhen": ";".join(f"{hour:02}" for hour in range(24))}
    settings |= {"cleanResourceInterval": "1000"}
    version = name.removeprefix("rocketmq-")
    return RocketTarget(name, home, JavaServer(home, settings, version=version), remoting)
