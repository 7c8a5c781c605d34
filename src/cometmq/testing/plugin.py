"""pytest fixtures with a real broker; pytest finds them as soon as CometMQ is installed.

    async def test_mine(cometmq_cluster):
        async with cometmq.Client(cometmq_cluster.namesrv) as client:
            await client.send("orders", b"...")

Nothing of CometMQ is imported before a test asks for a fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cometmq.testing.cluster import Cluster


@pytest.fixture
def cometmq_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster for one test, empty at its start."""
    from cometmq.testing.cluster import cluster_in_thread

    with cluster_in_thread(tmp_path / "cometmq") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cometmq_session_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests of a run; they should use topics of their own."""
    from cometmq.testing.cluster import cluster_in_thread

    with cluster_in_thread(tmp_path_factory.mktemp("cometmq")) as cluster:
        yield cluster
