"""Relays as processes, killed at any point: nothing is lost, each key's first copies are in order,
and what occurs twice has one id."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from cometmq.admin.api import Admin
from cometmq.cli.commands.outbox import AnyOutbox
from cometmq.client.client import Client
from cometmq.outbox import PostgresOutbox, SqliteOutbox
from cometmq.testing.cluster import Cluster, cluster_in_thread
from cometmq.testing.postgres import PostgresMissing, running_postgres
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.outbox.boxes import Shop, first_copies, stored

ROUNDS = 5
KEYS = [f"k{number}" for number in range(8)]
RELAYS = 2
HALVES = "transactionHalfMessages"


@pytest.fixture(params=["sqlite", "postgres"])
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyOutbox]:
    with ExitStack() as stack:
        found: AnyOutbox
        if request.param == "sqlite":
            found = SqliteOutbox(tmp_path / "shop.sqlite")
        else:
            try:
                host = stack.enter_context(running_postgres()).split()[0].removeprefix("host=")
            except PostgresMissing as error:
                pytest.skip(f"needs PostgreSQL: {error}")
            found = PostgresOutbox(f"postgresql:///postgres?host={host}&user=postgres")
        found.create()
        yield found


class Writer(threading.Thread):
    """An application that goes on writing, one transaction after the other; some are undone."""

    def __init__(self, shop: Shop, topic: str, keys: Sequence[str | None] = KEYS) -> None:
        super().__init__(name="application")
        self._shop = shop
        self._topic = topic
        self._keys = keys
        self._end = threading.Event()
        self.written = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        random = Random(1)
        try:
            # Others must get a turn: SQLite has one writer at a time.
            while not self._end.wait(0.002):
                self._shop.write(self._topic, [(key, self.written) for key in self._keys])
                self.written += 1
                if random.random() < 0.1:
                    self._undo()
        except BaseException as error:
            self.failure = error

    def _undo(self) -> None:
        class Undone(Exception):
            pass

        def numbered() -> Iterator[tuple[str | None, int]]:
            yield self._keys[0], -1
            raise Undone

        with pytest.raises(Undone):
            self._shop.write(self._topic, numbered())

    def finish(self) -> None:
        self._end.set()
        self.join(30)
        assert self.failure is None


@contextmanager
def running_relay(
    outbox: AnyOutbox, namesrv: str, *options: str
) -> Iterator[subprocess.Popen[str]]:
    """A relay as its operator runs it; killed at the end, if not before."""
    place = str(outbox.path) if isinstance(outbox, SqliteOutbox) else outbox.conninfo
    command = [sys.executable, "-m", "cometmq.cli", "outbox", "relay", place, "-n", namesrv]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def test_killed_relays_lose_nothing_and_keep_the_order(
    outbox: AnyOutbox, cometmq_cluster: Cluster
) -> None:
    random = Random()
    async with Client(cometmq_cluster.namesrv) as client:
        topic = await fresh_topic(client)
        writer = Writer(Shop(outbox), topic)
        writer.start()
        try:
            for _ in range(ROUNDS):
                await asyncio.to_thread(one_round, outbox, cometmq_cluster.namesrv, random)
        finally:
            writer.finish()
        with running_relay(outbox, cometmq_cluster.namesrv):
            await eventually(lambda: outbox.status().waiting == 0, deadline_s=60)
        found = await stored(client, topic)
    assert first_copies(found) == {key: list(range(writer.written)) for key in KEYS}
    print(f"{len(found) - len(KEYS) * writer.written} of {len(found)} messages were repeats")


async def test_killed_relays_publish_transactional_rows_once(tmp_path: Path) -> None:
    outbox = SqliteOutbox(tmp_path / "shop.sqlite")
    outbox.create()
    random = Random()
    eager = {"transactionTimeOut": 1, "transactionCheckInterval": 100}
    with cluster_in_thread(tmp_path, **eager) as cluster:
        async with Client(cluster.namesrv) as client:
            topic = await fresh_topic(client)
            writer = Writer(Shop(outbox), topic, [None])
            writer.start()
            try:
                for _ in range(ROUNDS):
                    await asyncio.to_thread(
                        one_round, outbox, cluster.namesrv, random, "--transactional"
                    )
            finally:
                writer.finish()
            with running_relay(outbox, cluster.namesrv, "--transactional"):
                await eventually(lambda: outbox.status().waiting == 0, deadline_s=60)
                # The broker asks for what nobody ended, until nothing is open any more.
                admin = Admin(client.session)
                async with asyncio.timeout(60):
                    while (await admin.broker_runtime(cluster.broker))[HALVES] != "0":
                        await asyncio.sleep(0.05)
            found = await stored(client, topic)
    assert len(found) == writer.written
    assert sorted(first_copies(found)[""]) == list(range(writer.written))


def one_round(outbox: AnyOutbox, namesrv: str, random: Random, *options: str) -> None:
    """Relays work side by side, and are killed one after the other."""
    with ExitStack() as stack:
        relays = [
            stack.enter_context(running_relay(outbox, namesrv, *options)) for _ in range(RELAYS)
        ]
        for relay in relays:
            assert relay.stdout is not None
            assert relay.stdout.readline().startswith("ready ")
        for relay in random.sample(relays, RELAYS):
            with pytest.raises(subprocess.TimeoutExpired):
                relay.wait(random.uniform(0.05, 0.3))
            relay.kill()
