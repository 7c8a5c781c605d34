"""A client of the session's cluster, and its administration."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.testing.cluster import Cluster


@pytest.fixture
async def client(cometmq_session_cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(cometmq_session_cluster.namesrv) as client:
        yield client


@pytest.fixture
def admin(client: Client) -> Admin:
    return Admin(client.session)
