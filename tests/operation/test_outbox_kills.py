"""Relays as processes, killed at any point: nothing is lost, each key's first copies are in order,
and what is there twice has one id."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from cometmq.cli.commands.outbox import AnyOutbox
from cometmq.client.client import Client
from cometmq.outbox import PostgresOutbox, SqliteOutbox
from cometmq.testing.cluster import Cluster
from cometmq.testing.postgres import PostgresMissing, running_postgres
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.outbox.boxes import Shop, first_copies, stored

ROUNDS = 5
KEYS = [f"k{number}" for number in range(8)]
RELAYS = 2


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

    def __init__(self, shop: Shop, topic: str) -> None:
        super().__init__(name="application")
        self._shop = shop
        self._topic = topic
        self._end = threading.Event()
        self.written = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        random = Random(1)
        try:
            # Others must get a turn: SQLite has one writer at a time.
            while not self._end.wait(0.002):
                self._shop.write(self._topic, [(key, self.written) for key in KEYS])
                self.written += 1
                if random.random() < 0.1:
                    self._undo()
        except BaseException as error:
            self.failure = error

    def _undo(self) -> None:
        class Undone(Exception):
            pass

        def numbered() -> Iterator[tuple[str | None, int]]:
            yield KEYS[0], -1
            raise Undone

        with pytest.raises(Undone):
            self._shop.write(self._topic, numbered())

    def finish(self) -> None:
        self._end.set()
        self.join(30)
        assert self.failure is None


@contextmanager
def running_relay(outbox: AnyOutbox, namesrv: str) -> Iterator[subprocess.Popen[str]]:
    """A relay as its operator runs it; killed at the end, if not before."""
    place = str(outbox.path) if isinstance(outbox, SqliteOutbox) else outbox.conninfo
    command = [sys.executable, "-m", "cometmq.cli", "outbox", "relay", place, "-n", namesrv]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
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


def one_round(outbox: AnyOutbox, namesrv: str, random: Random) -> None:
    """Relays work side by side, and are killed one after the other."""
    with ExitStack() as stack:
        relays = [stack.enter_context(running_relay(outbox, namesrv)) for _ in range(RELAYS)]
        for relay in random.sample(relays, RELAYS):
            with pytest.raises(subprocess.TimeoutExpired):
                relay.wait(random.uniform(0.05, 0.3))
            relay.kill()
