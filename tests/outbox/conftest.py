"""Outboxes in both databases: what holds for one must hold for the other."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.outbox.postgres import PostgresOutbox
from cometmq.outbox.sqlite import SqliteOutbox
from cometmq.testing.cluster import Cluster
from cometmq.testing.postgres import PostgresMissing, running_postgres
from tests.outbox.boxes import Shop


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The conninfo of a server that all tests share."""
    with ExitStack() as stack:
        try:
            conninfo = stack.enter_context(running_postgres())
        except PostgresMissing as error:
            pytest.skip(f"needs PostgreSQL: {error}")
        yield conninfo


@pytest.fixture
def sqlite_shop(tmp_path: Path) -> Shop:
    """An outbox in SQLite."""
    outbox = SqliteOutbox(tmp_path / "shop.sqlite")
    outbox.create()
    return Shop(outbox)


@pytest.fixture
def postgres_shop(postgres: str) -> Shop:
    """An outbox in PostgreSQL, a table of the test's own."""
    outbox = PostgresOutbox(postgres, f"outbox_{uuid.uuid4().hex[:12]}")
    outbox.create()
    return Shop(outbox)


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """An outbox; each test that asks for it runs with both databases."""
    found = request.getfixturevalue(f"{request.param}_shop")
    assert isinstance(found, Shop)
    return found


@pytest.fixture
async def client(cometmq_session_cluster: Cluster) -> AsyncIterator[Client]:
    """A client of a broker that all tests share."""
    async with Client(cometmq_session_cluster.namesrv) as client:
        yield client
