"""Brokers of FastStream for a cluster that all tests of a session share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.config import ClientConfig
from cometmq.faststream import RocketMQBroker
from cometmq.testing.cluster import Cluster
from tests.client.shared_broker import fresh_name

Make = Callable[..., RocketMQBroker]


@pytest.fixture
def make(cometmq_session_cluster: Cluster) -> Make:
    """Make brokers; settings of the client go before FastStream's own."""

    def broker(settings: dict[str, Any] | None = None, **options: Any) -> RocketMQBroker:
        given = {"ordered_retry_pause_ms": 100, **(settings or {})}
        config = ClientConfig.recommended(cometmq_session_cluster.namesrv, **given)
        return RocketMQBroker(config=config, **options)

    return broker


@pytest.fixture
async def client(cometmq_session_cluster: Cluster) -> AsyncIterator[Client]:
    """A plain client beside the broker under test."""
    async with Client(cometmq_session_cluster.namesrv) as client:
        yield client


@pytest.fixture
async def topic(client: Client) -> str:
    """A topic of the test's own, with one queue, so that its messages have an order."""
    name = fresh_name()
    await Admin(client.session).create_topic(name, queues=1)
    return name
