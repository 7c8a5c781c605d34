"""Topics from the command line."""

import json

import pytest

from cometmq import BlockingClient
from cometmq.admin.api import Admin
from cometmq.cli.main import main
from cometmq.testing.cluster import Cluster


def test_a_topic_is_created_listed_and_described(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["topic", "create", "regions", "--queues", "3", *where]) == 0
    created = capsys.readouterr().out
    assert created.startswith("created topic=regions broker=broker-a read_queues=3 write_queues=3 ")

    assert main(["topic", "list", *where]) == 0
    assert capsys.readouterr().out.split() == ["TOPIC", "KIND", "regions", "normal"]
    assert main(["topic", "list", "--all", "--json", *where]) == 0
    everything = [json.loads(line)["topic"] for line in capsys.readouterr().out.splitlines()]
    assert {"regions", "TBW102"} <= set(everything)

    assert main(["send", "regions", "hello", *where]) == 0
    capsys.readouterr()
    assert main(["topic", "describe", "regions", *where]) == 0
    shown = capsys.readouterr().out
    assert "LAST-STORED-AT" in shown
    assert shown.count("broker-a") == 4
    host, _, port = cometmq_cluster.broker.rpartition(":")
    assert main(["topic", "describe", "regions", "--json", *where]) == 0
    state = json.loads(capsys.readouterr().out)
    assert sorted(queue["max_offset"] for queue in state["queues"]) == [0, 0, 1]
    (broker,) = state["brokers"]
    assert broker["addresses"] == [{"id": 0, "address": {"host": host, "port": int(port)}}]


def test_an_unknown_topic_or_broker_is_one_line(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["topic", "describe", "nowhere", *where]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere" in line
    assert main(["topic", "create", "t", "--broker", "broker-x", *where]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "broker" in line


def test_a_topic_is_created_on_all_brokers_that_are_named_or_on_none(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with BlockingClient(cometmq_cluster.namesrv) as client:
        admin = Admin(client.inner.session)
        (name,) = {broker.name for broker in client.wait(admin.brokers())}
        where = ["-n", cometmq_cluster.namesrv]
        words = ["topic", "create", "half", "--broker", name, "--broker", "nosuch", *where]
        assert main(words) == 1
        assert "broker 'nosuch': no master with this name" in capsys.readouterr().err
        assert "half" not in client.wait(admin.list_topics())
        assert main(["topic", "describe", "half", *where]) == 1
        assert "'half'" in capsys.readouterr().err


def test_a_topic_that_exists_is_not_created_again(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    create = ["topic", "create", "once", *where]
    assert main([*create, "--if-not-exists", "--queues", "3"]) == 0
    assert capsys.readouterr().out.startswith("created topic=once broker=broker-a read_queues=3 ")
    for words in (create, [*create, "--broker", "broker-a"]):
        assert main([*words, "--queues", "1"]) == 1
        assert "topic 'once' exists on broker-a: change it with" in capsys.readouterr().err
    assert main([*create, "--queues", "1", "--if-not-exists"]) == 0
    assert capsys.readouterr().out.startswith("unchanged topic=once broker=broker-a read_queues=3 ")
    for wrong in (["--broker", "broker-a", "--broker", "nosuch"], ["--cluster", "nosuch"]):
        assert main([*create, "--if-not-exists", *wrong]) == 1
        assert "'nosuch': " in capsys.readouterr().err
    at_address = ["topic", "create", "new", "--broker", cometmq_cluster.broker, *where]
    assert main(at_address) == 0
    assert capsys.readouterr().out.startswith("created topic=new broker=broker-a ")
