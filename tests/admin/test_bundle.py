"""A debug bundle has the state of a real cluster, no secrets, and says what it lacks."""

from __future__ import annotations

import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.admin import bundle as bundles
from cometmq.admin.api import Admin
from cometmq.admin.bundle import write_bundle
from cometmq.client.client import Client
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.testing.cluster import running_cluster
from tests.client.shared_broker import fresh_name, fresh_topic

CLOSED = "127.0.0.1:9"


def read(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            assert member.mode == 0o600
            assert member.name.startswith("cometmq-bundle/")
            data = archive.extractfile(member)
            assert data is not None
            found[member.name.removeprefix("cometmq-bundle/")] = json.load(data)
    return found


async def test_a_bundle(client: Client, admin: Admin, tmp_path: Path) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    sent = await client.send(topic, b"the body of a message")
    await admin.update_group(SubscriptionGroupConfig(group))
    await admin.commit_group_offsets(group, {sent.queue: 0})
    path = tmp_path / "bundle.tar.gz"
    made = await write_bundle(admin, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert made.size_bytes == path.stat().st_size
    assert made.gaps == ()
    files = read(path)
    assert set(files) == set(made.files)
    (broker,) = await admin.brokers()
    assert files[f"brokers/{broker.name}-0/settings.json"]["brokerName"] == broker.name
    assert "commitLogMaxOffset" in files[f"brokers/{broker.name}-0/runtime.json"]
    assert files["topics.json"][topic]["queues"][0]["max"] == 1
    assert files["groups.json"][group]["lag"] == 1
    assert files["manifest.json"]["gaps"] == []
    assert any(name.startswith("name-servers/127.0.0.1_") for name in files)
    assert "the body" not in str(files)
    with pytest.raises(FileExistsError):
        await write_bundle(admin, path)


async def test_a_bundle_of_what_is_there(tmp_path: Path) -> None:
    async with Client(CLOSED) as client:
        made = await write_bundle(Admin(client.session), tmp_path / "b.tar.gz")
    files = read(made.path)
    assert {"manifest.json", "cluster.json", "health.json"} == set(files)
    gaps = {gap["what"]: gap["reason"] for gap in files["manifest.json"]["gaps"]}
    assert {"brokers", "topics.json", "groups.json", f"cluster of name server {CLOSED}"} <= set(
        gaps
    )
    assert all("127.0.0.1:9" in reason for reason in gaps.values())


@pytest.fixture
async def lone_admin(tmp_path: Path) -> AsyncIterator[Admin]:
    """Administration of a cluster of its own, with a topic of retries: no other test adds names."""
    async with running_cluster(tmp_path) as cluster, Client(cluster.namesrv) as client:
        admin = Admin(client.session)
        for topic in ("%RETRY%g", "orders"):
            await admin.create_topic(topic, queues=1)
        yield admin


async def test_a_bundle_is_bounded(
    lone_admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = lone_admin
    monkeypatch.setattr(bundles, "NAMES_MAX", 1)
    monkeypatch.setattr(bundles, "SERVERS_MAX", 0)
    made = await write_bundle(admin, tmp_path / "a.tar.gz")
    assert {"topics", "groups", "brokers"} <= {gap.what for gap in made.gaps}
    topics = read(made.path)["topics.json"]
    assert sum(each is not None for each in topics.values()) == 1
    assert "orders" in topics
    assert topics["%RETRY%g"] is None
    monkeypatch.setattr(bundles, "FILE_BYTES_MAX", 100)
    made = await write_bundle(admin, tmp_path / "b.tar.gz")
    assert "topics.json" in {gap.what for gap in made.gaps}
    assert "topics.json" not in made.files
