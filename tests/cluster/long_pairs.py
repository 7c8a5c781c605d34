"""A master of one kind and a slave of the other, for a million messages and through kills.

    .venv/bin/python -m tests.cluster.long_pairs [MESSAGES] [--pair ours-under-java] [--role ...]
                                                 [--kills 10]

Each pair is loaded while its slave, and every fourth time its master, is killed and started again.
While a master is down a consumer has to read the last messages from the slave, and afterwards, in
the same group, what the master got since. In the end both logs have the same bytes, and the slave
alone serves every message that was acknowledged while it could be. Prints one JSON line a pair and
role; the first thing that is wrong ends the program with code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.core.errors import CometError
from cometmq.net.eventloop import run
from tests.cluster.load import names
from tests.cluster.logs import assert_same_logs, log_end, log_files
from tests.cluster.servers import BrokerProcess, NamesrvProcess
from tests.compat import anchor

TOPIC: Final = "pairs"
GROUP: Final = "movers"
#: Messages that only a slave can give to the consumer, for its master is down.
LEFT: Final = 2_000
IN_FLIGHT: Final = 64
BODY_BYTES: Final = 200
WAIT_S: Final = 120
FILES: Final = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(300_000 * 20),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
    "diskMaxUsedSpaceRatio": "98",
}


class Server(Protocol):
    """A broker that can be killed and started again."""

    store: Path

    def start(self) -> None:
        """Start it; returns when it serves."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class JavaBroker:
    """A Java broker, without the name server that would come with it."""

    def __init__(self, home: Path, namesrv: str, settings: Mapping[str, str]) -> None:
        self._cluster = anchor.JavaCluster(
            anchor.fetch_jars(), home, FILES | dict(settings), namesrv_seen_by_broker=namesrv
        )
        self.store = self._cluster.store

    def start(self) -> None:
        self._cluster.broker_server.start()

    def kill(self) -> None:
        self._cluster.broker_server.stop(signal.SIGKILL)


def our_broker(home: Path, namesrv: str, settings: Mapping[str, str]) -> Server:
    """A broker of ours with the settings of the other kind."""
    number = int(settings.get("brokerId", "0"))
    return BrokerProcess(home, namesrv, number=number, settings=FILES | dict(settings))


def java_broker(home: Path, namesrv: str, settings: Mapping[str, str]) -> Server:
    return JavaBroker(home / "java", namesrv, settings)


Maker = Callable[[Path, str, Mapping[str, str]], Server]
PAIRS: Final[Mapping[str, tuple[Maker, Maker]]] = {
    "ours-under-java": (java_broker, our_broker),
    "java-under-ours": (our_broker, java_broker),
}
ROLES: Final = ("ASYNC_MASTER", "SYNC_MASTER")


class Wrong(Exception):
    """Something is not as it should be."""


async def until(condition: Callable[[], bool], what: str, step_s: float = 0.05) -> None:
    """Returns once the condition holds. Raises Wrong when that takes two minutes."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong(f"not within {WAIT_S} s: {what}")
        await asyncio.sleep(step_s)


@dataclass
class Load:
    """Numbered messages; one that fails is sent again until it is acknowledged."""

    client: Client
    acked: set[str] = field(default_factory=set)
    statuses: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    number: int = 0

    def has_acked(self, count: int) -> bool:
        """Whether so many were acknowledged by now."""
        return len(self.acked) >= count

    async def send(self, count: int) -> None:
        """Send so many more."""
        todo = iter(range(self.number, self.number + count))
        self.number += count
        await asyncio.gather(*(self._send_all(todo) for _ in range(IN_FLIGHT)))

    async def _send_all(self, todo: Iterator[int]) -> None:
        for number in todo:
            name = f"m{number:08d}"
            while name not in self.acked:
                try:
                    result = await self.client.send(TOPIC, name.encode().ljust(BODY_BYTES, b"."))
                except CometError:
                    self.failures += 1
                    await asyncio.sleep(0.2)
                    continue
                status = result.status.name
                self.statuses[status] = self.statuses.get(status, 0) + 1
                self.acked.add(name)


async def hears(namesrv: str, wanted: set[str]) -> int:
    """Consume in the group until these messages came; gives how many came in all."""
    left, heard = set(wanted), 0
    begin_s = time.monotonic()
    async with (
        Client(namesrv) as client,
        client.subscribe(TOPIC, group=GROUP, start="first") as subscription,
    ):
        while left:
            if time.monotonic() - begin_s > WAIT_S:
                raise Wrong(f"{len(left)} of {len(wanted)} messages do not come, as {min(left)}")
            try:
                async with asyncio.timeout(5):
                    message = await anext(subscription)
            except TimeoutError:
                continue
            heard += 1
            left.discard(message.body[:9].decode())
            message.ack()
    return heard


@dataclass
class Pair:
    """One master, one slave, one load."""

    namesrv: str
    master: Server
    slave: Server
    load: Load
    kills: int = 0
    read_from_slave: int = 0
    heard: set[str] = field(default_factory=set)

    async def hear(self, wanted: set[str]) -> int:
        """Consume until these came that had not come before; gives how many came."""
        count = await hears(self.namesrv, wanted - self.heard)
        self.heard |= wanted
        return count

    async def same_end(self) -> None:
        """Returns once the slave has what the master has, while nothing is sent."""
        stores = self.master.store, self.slave.store
        await until(
            lambda: log_end(stores[0]) == log_end(stores[1]) > 0, "the slave has it all", 0.5
        )

    async def together(self) -> None:
        """Returns once a send is acknowledged as the master's role promises."""
        while True:
            before = self.load.statuses.get("OK", 0)
            await self.load.send(1)
            if self.load.statuses.get("OK", 0) > before:
                return
            await asyncio.sleep(0.2)

    async def _kill(
        self, server: Server, down: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        await asyncio.to_thread(server.kill)
        self.kills += 1
        if down is not None:
            await down()
        await asyncio.to_thread(server.start)

    async def lose_slave(self, count: int) -> None:
        """Kill the slave a third through so many sends."""
        await self.together()
        before = len(self.load.acked)
        sending = asyncio.create_task(self.load.send(count))
        await until(partial(self.load.has_acked, before + count // 3), "some sends")
        await self._kill(self.slave)
        await sending

    async def lose_master(self, count: int) -> None:
        """Kill the master with messages that no consumer has had, in the middle of sends."""
        await self.load.send(count - LEFT)
        before = set(self.load.acked)
        await self.hear(before)
        await self.load.send(LEFT // 2)
        await self.same_end()
        only_there = self.load.acked - before
        sending = asyncio.create_task(self.load.send(LEFT - LEFT // 2))
        await until(partial(self.load.has_acked, len(before) + LEFT // 2 + 50), "some sends")

        async def read() -> None:
            self.read_from_slave += await self.hear(only_there)

        await self._kill(self.master, read)
        await sending
        await self.hear(self.load.acked)


async def prove(name: str, role: str, messages: int, kills: int, home: Path) -> dict[str, object]:
    """Run one pair in one role to its end; what it was like. Raises Wrong, AssertionError."""
    make_master, make_slave = PAIRS[name]
    begin_s = time.monotonic()
    with ExitStack() as stack:
        namesrv = NamesrvProcess(home)
        namesrv.start()
        stack.callback(namesrv.kill)
        slave_settings = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
        master = make_master(home, namesrv.namesrv, {"brokerRole": role})
        slave = make_slave(home, namesrv.namesrv, slave_settings)
        for server in (master, slave):
            await asyncio.to_thread(server.start)
            stack.callback(server.kill)
        async with Client(
            namesrv.namesrv, send_timeout_ms=20_000, request_timeout_ms=10_000
        ) as client:
            await until(lambda: anchor.route_code(namesrv.namesrv, "TBW102") == 0, "a route")
            await Admin(client.session).create_topic(TOPIC, queues=4)
            pair = Pair(namesrv.namesrv, master, slave, Load(client))
            for number in range(kills):
                lose = pair.lose_master if number % 4 == 3 else pair.lose_slave
                await lose(messages // kills)
            await pair.same_end()
            compared = assert_same_logs(master.store, slave.store)
            files = len(log_files(master.store))
            if files < 2 or len(log_files(slave.store)) < 2:
                raise Wrong("no file was full")
            master.kill()
        async with Client(namesrv.namesrv) as client:
            missing = pair.load.acked - set(await names(client, TOPIC))
            if missing:
                raise Wrong(f"{len(missing)} messages are not at the slave, as {min(missing)}")
    return {
        "pair": name,
        "role": role,
        "messages": len(pair.load.acked),
        "kills": pair.kills,
        "same_bytes": compared,
        "log_files": files,
        "statuses": pair.load.statuses,
        "failed_sends": pair.load.failures,
        "read_from_slave": pair.read_from_slave,
        "seconds": round(time.monotonic() - begin_s, 1),
    }


async def _main(words: argparse.Namespace) -> int:
    for name in words.pair or PAIRS:
        for role in words.role or ROLES:
            with tempfile.TemporaryDirectory(prefix="cometmq-long-") as home:
                try:
                    found = await prove(name, role, words.messages, words.kills, Path(home))
                except (Wrong, AssertionError) as error:
                    print(json.dumps({"pair": name, "role": role, "wrong": str(error)}))
                    return 1
            print(json.dumps(found), flush=True)
    return 0


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tests.cluster.long_pairs")
    parser.add_argument("messages", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--pair", action="append", choices=tuple(PAIRS))
    parser.add_argument("--role", action="append", choices=ROLES)
    words = parser.parse_args()
    # Every send that a kill breaks would be a line.
    logging.disable(logging.WARNING)
    return run(_main(words))


if __name__ == "__main__":
    sys.exit(main())
