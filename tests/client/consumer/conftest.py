"""One broker that obeys, with one queue of topic ``t``, for all consumers' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cometmq.client.session import Session
from tests.client.fake_broker import FakeBroker, FakeCluster, fake_cluster, open_session


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A name server and ``broker-0``."""
    async with fake_cluster() as cluster:
        cluster.create("t", 1)
        yield cluster


@pytest.fixture
def broker(cluster: FakeCluster) -> FakeBroker:
    """The only broker."""
    return cluster.brokers[0]


@pytest.fixture
async def session(cluster: FakeCluster) -> AsyncIterator[Session]:
    """A session with short periods."""
    async with open_session(cluster) as session:
        yield session
