"""Topics from the command line."""

import asyncio
import json
from pathlib import Path

import pytest

from cometmq import BlockingClient
from cometmq.admin.api import Admin
from cometmq.cli.main import main
from cometmq.client.client import Client
from cometmq.testing.cluster import Cluster
from tests.broker.replicated import group
from tests.broker.test_supervisor import living


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


def test_what_an_update_does_not_name_stays(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    with BlockingClient(cometmq_cluster.namesrv) as client:
        admin = Admin(client.inner.session)
        made = admin.create_topic("odd", queues=1, perm=7, filter_type="MULTI_TAG", sys_flag=2)
        client.wait(made)
        assert main(["topic", "update", "odd", "--queues", "2", *where]) == 0
        found = client.wait(admin.topic_config(cometmq_cluster.broker, "odd"))
        assert found is not None
        assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (2, 2, 7)
        assert (found.topic_filter_type, found.topic_sys_flag) == ("MULTI_TAG", 2)
        assert main(["topic", "permissions", "odd", "R", "--yes", *where]) == 0
        found = client.wait(admin.topic_config(cometmq_cluster.broker, "odd"))
        assert found is not None
        assert (found.perm, found.topic_filter_type) == (5, "MULTI_TAG")
    capsys.readouterr()
    words = ["topic", "update", "odd", "--queues", "3", "--broker", "broker-a"]
    assert main([*words, "--broker", "nosuch", *where]) == 1
    assert "broker 'nosuch': no master with this name" in capsys.readouterr().err


async def test_a_topic_is_deleted_where_the_question_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ran(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ["topic", "delete", *words, "-n", made.namesrv])
        told = capsys.readouterr()
        return code, told.err if code else told.out

    async with (
        group(tmp_path) as made,
        living(made, "a", brokerName="a", brokerClusterName="one"),
        living(made, "b", brokerName="b", brokerClusterName="two"),
        Client(made.namesrv) as client,
    ):
        admin = Admin(client.session)
        await admin.create_topic("t", queues=1)
        await client.send("t", b"")
        code, told = await ran("t", "--cluster", "one")
        assert code == 2
        assert " on a? This cannot be undone" in told
        assert (await ran("t", "--cluster", "nosuch", "--yes"))[0] == 1
        assert await ran("t", "--cluster", "one", "--yes") == (0, "deleted topic=t brokers=a\n")
        assert {queue.broker_name for queue in await admin.topic_stats("t")} == {"b"}
        code, told = await ran("t", "--cluster", "one", "--yes")
        assert (code, "no broker of cluster 'one' has it" in told) == (1, True)
