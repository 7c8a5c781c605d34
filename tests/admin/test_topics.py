"""Topic administration against a real cluster."""

from pathlib import Path

import pytest

from cometmq.admin.topics import create_topic, describe_topic, is_system, list_topics, masters
from cometmq.client.client import Client
from cometmq.core.errors import BrokerRefused, NotConnected, RouteNotFound
from cometmq.protocol.route import PERM_READ, PERM_WRITE
from cometmq.testing.cluster import running_cluster


async def test_topics_from_creation_to_description(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Client(cluster.namesrv) as client:
        session = client.session
        assert await masters(session) == {"broker-a": cluster.broker}
        assert await create_topic(session, "regions", queues=3) == {"broker-a": cluster.broker}
        assert "regions" in await list_topics(session)
        sent = [await client.send("regions", b"x") for _ in range(5)]
        state = await describe_topic(session, "regions")
        assert state.perms == {"broker-a": PERM_READ | PERM_WRITE}
        assert [queue.queue_id for queue in state.queues] == [0, 1, 2]
        assert sum(queue.max_offset - queue.min_offset for queue in state.queues) == len(sent)
        stored = [queue.last_store_ms for queue in state.queues if queue.max_offset]
        assert all(moment > 1_600_000_000_000 for moment in stored)


async def test_a_topic_may_be_changed(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Client(cluster.namesrv) as client:
        await create_topic(client.session, "t", queues=2)
        await create_topic(client.session, "t", queues=5, perm=PERM_READ, order=True)
        state = await describe_topic(client.session, "t")
        assert len(state.queues) == 5
        assert state.perms == {"broker-a": PERM_READ}


async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Client(cluster.namesrv) as client:
        with pytest.raises(RouteNotFound):
            await describe_topic(client.session, "nowhere")
        with pytest.raises(NotConnected, match="broker-a"):
            await create_topic(client.session, "t", broker_names=["broker-x"])
        with pytest.raises(BrokerRefused):
            await create_topic(client.session, "bad topic!")


def test_system_topics_are_told_by_their_names() -> None:
    system = ["%RETRY%g", "%DLQ%g", "TBW102", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX"]
    assert all(is_system(name) for name in system)
    assert not is_system("regions")
