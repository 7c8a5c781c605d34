"""Two brokers that obey, with two queues of topic ``t`` each, and somebody who sends to them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cometmq.client.producer import Producer
from tests.client.fake_broker import FakeCluster, fake_cluster, open_session


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A name server, ``broker-0`` and ``broker-1``."""
    async with fake_cluster(brokers=2) as cluster:
        cluster.create("t", 2)
        yield cluster


@pytest.fixture
async def producer(cluster: FakeCluster) -> AsyncIterator[Producer]:
    """A producer with settings as upstream's."""
    async with open_session(cluster) as session:
        yield Producer(session)
