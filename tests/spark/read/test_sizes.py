"""A number of bytes becomes a number of messages."""

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import offsets
from cometmq.spark.read.planning import Range
from cometmq.spark.read.reader import rows_within
from cometmq.testing.cluster import Cluster
from tests.spark.scripted import ScriptedCluster, holder
from tests.spark.topics import access, fill, make_topic


def test_the_mean_is_weighed_by_what_there_is_to_read(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with Client(cometmq_session_cluster.namesrv) as client:
        small, large = make_topic(client, "Sizes", 2)
        fill(client, small, ["x"] * 60)
        fill(client, large, ["y" * 2000] * 20)
    sizes = offsets.samples({small: 0, large: 0}, reached)
    todo = [Range(small, 0, 60), Range(large, 0, 20)]
    total = 60 * sizes[small].size_bytes + 20 * sizes[large].size_bytes
    assert rows_within(int(total), todo, reached) in (79, 80)
    assert rows_within(int(total / 4), todo, reached) in (19, 20)
    assert rows_within(1, todo, reached) == 1


def test_what_is_gone_has_no_size() -> None:
    with ScriptedCluster("T", holder(6, 9)) as peers:
        todo = [Range(MessageQueue("T", "broker-a", 0), 0, 3)]
        assert rows_within(1000, todo, access(peers.namesrv)) is None
