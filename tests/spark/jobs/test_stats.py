"""Topics measured: planted rates, delays, tags, keys and lags are found."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.admin.api import Admin
from cometmq.client.blocking import Client
from cometmq.core.clock import SystemClock
from cometmq.message.model import Message
from cometmq.spark.jobs import stats
from cometmq.spark.jobs.statsreport import HotKey
from cometmq.testing.cluster import Cluster
from tests.spark.topics import make_topic

pytestmark = pytest.mark.spark
DELAY_MS = 50_000


@pytest.fixture(scope="module")
def planted(cometmq_session_cluster: Cluster) -> str:
    """30 messages in queue 0, 10 in queue 1, every fourth born long before; a group lacks 5."""
    namesrv = cometmq_session_cluster.namesrv
    now_ms = SystemClock().wall_ms()
    with Client(namesrv) as client:
        queues = make_topic(client, "Stats", 2)
        for at in range(40):
            message = Message(
                topic="Stats",
                body=bytes(100),
                tag="ab"[at % 2],
                keys=("hot", str(at)) if at % 4 == 0 else (str(at),),
                born_ms=now_ms - DELAY_MS if at % 4 == 0 else 0,
            )
            client.send(message, queue=queues[at >= 30])
        admin = Admin(client.inner.session)
        client.wait(admin.commit_group_offsets("Stats-readers", {queues[0]: 25, queues[1]: 10}))
    return namesrv


def test_what_was_planted_is_measured(spark: SparkSession, planted: str, tmp_path: Path) -> None:
    options = stats.StatsOptions(
        nameservers=planted, topics=("Stats",), output=tmp_path, hot_keys=2
    )
    report = stats.run(spark, options)
    (topic,) = report.topics
    assert (topic.name, topic.messages) == ("Stats", 40)
    assert topic.lag_ms["p50"] < DELAY_MS / 2 < topic.lag_ms["p95"] <= topic.lag_ms["max"]
    assert topic.size_bytes["p50"] > 188
    assert [queue.messages for queue in report.queues] == [30, 10]
    assert [(skew.fullest[-2:], skew.over_mean) for skew in report.skew] == [("/0", 1.5)]
    assert {tag.name: tag.messages for tag in report.tags} == {"Stats a": 20, "Stats b": 20}
    assert report.hot_keys == (HotKey("Stats", "hot", 10), HotKey("Stats", "0", 1))
    assert sum(report.rates["Stats"].values()) == 40
    (group,) = report.groups
    assert (group.group, group.topic, group.lag) == ("Stats-readers", "Stats", 5)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["topics"][0]["messages"] == 40
    page = (tmp_path / "report.html").read_text()
    for told in ("Stats-readers", "Hot keys", "<svg", "prefers-color-scheme"):
        assert told in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_heads_alone(spark: SparkSession, planted: str, tmp_path: Path) -> None:
    options = stats.StatsOptions(
        nameservers=planted, topics=("Stats",), output=tmp_path, hot_keys=0, tags=False
    )
    report = stats.run(spark, options)
    assert not report.hot_keys
    assert not report.tags
    assert report.topics[0].messages == 40


def test_a_topic_without_messages(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        make_topic(client, "StatsOfNothing", 1)
    options = stats.StatsOptions(
        nameservers=cometmq_session_cluster.namesrv, topics=("StatsOfNothing",), output=tmp_path
    )
    assert stats.run(spark, options).topics == ()
    assert "There are no messages" in (tmp_path / "report.html").read_text()
