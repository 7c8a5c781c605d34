"""Dead letters told and sent again, each once."""

import pytest
from pyspark.sql import SparkSession

from cometmq.admin.api import Admin
from cometmq.client.blocking import Client
from cometmq.spark.jobs import dlq
from cometmq.spark.options import BadOption
from cometmq.testing.cluster import Cluster
from tests.spark.jobs.dying import kill_all
from tests.spark.topics import make_topic

pytestmark = pytest.mark.spark


def test_letters_are_told_and_sent_again_once(
    spark: SparkSession, cometmq_session_cluster: Cluster
) -> None:
    namesrv = cometmq_session_cluster.namesrv
    with Client(namesrv) as client:
        make_topic(client, "Dying", 2)
        for at in range(6):
            client.send("Dying", f"order {at}".encode(), keys=[f"k{at}"], tag="paid")
        kill_all(client, "Dying", "dying-readers", 6)
    everything = dlq.DlqOptions(nameservers=namesrv, group="dying-readers")
    report = dlq.run(spark, everything)
    assert (report.dead, report.chosen, report.sent, report.before) == (6, 6, 0, 0)
    (origin,) = report.origins
    assert (origin.topic, origin.letters) == ("Dying", 6)
    assert {each.keys for each in report.letters} == {f"k{at}" for at in range(6)}
    assert not any(each.redriven for each in report.letters)

    some = dlq.DlqOptions(nameservers=namesrv, group="dying-readers", key="k3", redrive=True)
    report = dlq.run(spark, some)
    assert (report.chosen, report.sent, report.missing, report.ok) == (1, 1, 0, True)
    rest = dlq.DlqOptions(nameservers=namesrv, group="dying-readers", redrive=True)
    report = dlq.run(spark, rest)
    assert (report.chosen, report.before, report.sent, report.missing) == (6, 1, 5, 0)
    assert all(each.redriven for each in report.letters)
    report = dlq.run(spark, rest)
    assert (report.before, report.sent) == (6, 0)
    with Client(namesrv) as client:
        held = client.wait(Admin(client.inner.session).topic_stats("Dying"))
    assert sum(each.max_offset for each in held.values()) == 12


def test_a_group_without_dead_letters(
    spark: SparkSession, cometmq_session_cluster: Cluster
) -> None:
    report = dlq.run(
        spark, dlq.DlqOptions(nameservers=cometmq_session_cluster.namesrv, group="nobody")
    )
    assert (report.dead, report.waiting, report.ok) == (0, 0, True)


def test_a_topic_that_may_only_be_written(
    spark: SparkSession, cometmq_session_cluster: Cluster
) -> None:
    namesrv = cometmq_session_cluster.namesrv
    with Client(namesrv) as client:
        admin = Admin(client.inner.session)
        client.wait(admin.create_topic("%DLQ%hidden", queues=1))
        client.send("%DLQ%hidden", b"a letter")
        client.wait(admin.create_topic("%DLQ%hidden", queues=1, perm=2))
    hidden = dlq.DlqOptions(nameservers=namesrv, group="hidden")
    with pytest.raises(BadOption, match="updateTopicPerm"):
        dlq.run(spark, hidden)
    shown = dlq.DlqOptions(nameservers=namesrv, group="hidden", make_readable=True, redrive=True)
    report = dlq.run(spark, shown)
    assert (report.dead, report.lost, report.sent, report.ok) == (1, 1, 0, True)
    assert report.origins[0].topic == "?"
