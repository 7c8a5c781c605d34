"""How far groups are behind, asked of a broker."""

import pytest

from cometmq.admin.api import Admin
from cometmq.client.blocking import Client
from cometmq.core.errors import RouteNotFound
from cometmq.spark.jobs.stats import group_lags
from cometmq.testing.cluster import Cluster
from tests.spark.topics import fill, make_topic


def test_lags_of_all_groups_or_of_some(cometmq_session_cluster: Cluster) -> None:
    namesrv = cometmq_session_cluster.namesrv
    with Client(namesrv) as client:
        queues = make_topic(client, "GroupLag", 2)
        fill(client, queues[1], ["first", "second", "third"])
        admin = Admin(client.inner.session)
        for group, at in (("lag-a", 1), ("lag-b", 2)):
            client.wait(admin.commit_group_offsets(group, {queues[0]: 0, queues[1]: at}))
        found = group_lags(client, ["GroupLag"])
        some = group_lags(client, ["GroupLag"], ["lag-b", "nobody"])
    assert [(lag.group, lag.lag, lag.worst_lag) for lag in found] == [
        ("lag-a", 2, 2),
        ("lag-b", 1, 1),
    ]
    assert found[0].worst_queue.endswith("/1")
    assert found[0].behind_ms is not None
    assert [lag.group for lag in some] == ["lag-b"]


def test_a_topic_that_is_not_there(cometmq_session_cluster: Cluster) -> None:
    namesrv = cometmq_session_cluster.namesrv
    with Client(namesrv) as client, pytest.raises(RouteNotFound):
        group_lags(client, ["NoSuchTopic"])
