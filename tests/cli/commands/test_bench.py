"""The bench measures what really happened."""

import json

import pytest

from cometmq.cli.commands.bench import Phase
from cometmq.cli.main import main
from cometmq.testing.cluster import Cluster


def test_it_sends_and_pulls_the_same_messages(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv, "--json"]
    small = ["--seconds", "0.3", "--connections", "2", "--in-flight", "8", "--queues", "2"]
    assert main(["bench", *small, *where]) == 0
    send, pull = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert send["phase"] == "send"
    assert pull["phase"] == "pull"
    assert send["messages"] == send["requests"] == pull["messages"] > 0
    assert 0 < send["p50_ms"] <= send["p99_ms"] <= send["max_ms"]


def test_without_pull_and_as_a_table(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "--seconds", "0.1", "--connections", "1", "--in-flight", "1", "--no-pull"]
    assert main([*words, "-n", cometmq_cluster.namesrv]) == 0
    shown = capsys.readouterr().out
    assert "REQUESTS" in shown
    assert "send" in shown
    assert "pull" not in shown


def test_a_topic_that_is_there_stays_as_it_is(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["topic", "create", "orders", "--queues", "3", *where]) == 0
    small = ["--seconds", "0.1", "--connections", "1", "--in-flight", "1", "--no-pull"]
    assert main(["bench", "--topic", "orders", "--queues", "1", *small, *where]) == 0
    capsys.readouterr()
    assert main(["topic", "config", "orders", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["write_queues"] == 3


def test_a_phase_without_requests_has_numbers_too() -> None:
    found = Phase("send", 0).result()
    assert (found.messages_per_s, found.p99_ms) == (0, 0.0)
