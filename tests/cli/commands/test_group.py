"""Consumer groups from the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq import BlockingClient, Client
from cometmq.admin.api import Admin
from cometmq.admin.groups import Groups
from cometmq.admin.messages import EARLIEST, LATEST, at_offset, at_time
from cometmq.cli.main import main
from cometmq.cli.nouns import load
from cometmq.cli.parser import position_of
from cometmq.core.errors import SettingsError
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.testing.cluster import Cluster
from tests.broker.replicated import group
from tests.broker.test_supervisor import living


@pytest.fixture
def client(cometmq_cluster: Cluster) -> Iterator[BlockingClient]:
    with BlockingClient(cometmq_cluster.namesrv, offset_persist_interval_ms=50) as client:
        yield client


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_group_is_looked_at_and_reset(
    client: BlockingClient, cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["topic", "create", "t", "--queues", "1", *where]) == 0
    for body in (b"0", b"1"):
        client.send("t", body)
    capsys.readouterr()
    with client.subscribe("t", group="g", start="first", concurrency=1) as given:
        messages = iter(given)
        for expected in (b"0", b"1"):
            message = next(messages)
            assert message.body == expected
            message.ack()
        assert main(["group", "members", "g", "--json", *where]) == 0
        (member,) = printed(capsys)
        assert (member["language"], member["version"]) == ("PYTHON", "V4_9_7")
        assert main(["group", "members", "g", *where]) == 0
        assert member["client_id"] in capsys.readouterr().out.replace("\n", "")
        assert main(["group", "status", "g", member["client_id"], "--json", *where]) == 0
        (queue,) = [row for row in printed(capsys) if row["topic"] == "t"]
        assert (queue["offset"], queue["held"]) == (2, 0)
        assert main(["group", "status", "g", member["client_id"], "--stacks", *where]) == 0
        assert "thread MainThread" in capsys.readouterr().out
        reset = ["group", "reset", "g", "t", "--to"]
        assert main([*reset, "first", "--json", *where]) == 0
        (row,) = printed(capsys)
        assert (row["topic"], row["queue"], row["offset"]) == ("t", 0, 0)
        message = next(messages)
        assert message.body == b"0"
        message.ack()
    assert main([*reset, "last", "--dry-run", *where]) == 0
    told = capsys.readouterr().out
    assert (
        "would reset topic=t broker=broker-a queue=0 before=1 offset=2 skipped=1 repeated=0\n"
        in told
    )
    assert told.endswith("queues=1 skipped=1 repeated=0\ndry run: nothing was changed\n")
    assert main([*reset, "last", *where]) == 0
    assert "before=1 offset=2" in capsys.readouterr().out
    assert main([*reset, "first", "--never-skip", "--json", *where]) == 0
    assert printed(capsys)[0]["offset"] == 0
    assert main(["group", "progress", "g", "--topic", "t", *where]) == 0
    assert "lag=2" in capsys.readouterr().out
    assert main(["group", "progress", "g", "--topic", "t", "--json", *where]) == 0
    assert printed(capsys)[0]["lag"] == 2


def test_a_group_without_members_is_one_line(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["group", "members", "nobody", *where]) == 1
    assert "nobody" in capsys.readouterr().err
    assert main(["group", "reset", "nobody", "t", "--to", "soon", *where]) == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["progress", "nosuch"], "group 'nosuch'"),
        (["progress", "nosuch", "--json"], "group 'nosuch'"),
        (["progress", "nosuch", "--topic", "t"], "group 'nosuch'"),
        (["progress", "g", "--topic", "nosuch"], "topic 'nosuch'"),
        (["progress", "g", "--topic", "other"], "group 'g': it has not consumed topic 'other'"),
        (["members", "nosuch"], "group 'nosuch'"),
        (["members", "g"], "no consumer of group 'g' is connected"),
        (["status", "nosuch", "somebody"], "group 'nosuch'"),
        (["reset", "nosuch", "t", "--to", "first"], "group 'nosuch'"),
        (["reset", "g", "nosuch", "--to", "first"], "topic 'nosuch'"),
        (["reset", "nosuch", "nosuch", "--to", "first"], "topic 'nosuch'"),
        (["reset", "nosuch", "nosuch", "--to", "first", "--new"], "topic 'nosuch'"),
    ],
)
def test_names_that_nobody_knows_are_refused_and_nothing_is_written(
    cometmq_session_cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    problem: str,
) -> None:
    where = cometmq_session_cluster.namesrv
    with BlockingClient(where, offset_persist_interval_ms=50) as client:
        admin = Admin(client.inner.session)
        for topic in ("t", "other"):
            client.wait(admin.create_topic(topic, queues=1))
        client.send("t", b"x")
        with client.subscribe("t", group="g", start="first") as given:
            next(iter(given)).ack()
        before = client.wait(admin.consumer_progress("g"))
        capsys.readouterr()
        assert main(["group", *words, "-n", where]) == 1
        told = capsys.readouterr()
        assert problem in told.err
        assert told.out == ""
        assert client.wait(admin.consumer_progress("g")) == before
        assert not client.wait(admin.knows_group("nosuch"))
        assert "nosuch" not in client.wait(admin.list_topics())


def test_a_group_may_be_given_a_beginning_before_it_exists(
    client: BlockingClient, cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-n", cometmq_cluster.namesrv]
    assert main(["topic", "create", "t", "--queues", "1", *where]) == 0
    client.send("t", b"0")
    client.send("t", b"1")
    assert main(["group", "reset", "young", "t", "--to", "last", "--new", *where]) == 0
    capsys.readouterr()
    assert main(["group", "progress", "young", *where]) == 0
    assert "lag=0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("first", EARLIEST),
        ("last", LATEST),
        ("1700000000000", at_time(1_700_000_000_000)),
        ("2023-11-14T22:13:20", at_time(1_700_000_000_000)),
        ("@2023-11-15T00:13:20+02:00", at_time(1_700_000_000_000)),
        ("@-1h", at_time(6_400_000)),
        ("-1.5m", at_time(9_910_000)),
        ("@-400d", at_time(0)),
    ],
)
def test_positions(text: str, found: object) -> None:
    assert position_of(text, 10_000_000) == found


def test_a_position_may_be_an_offset() -> None:
    assert position_of("17", 0, offsets=True) == at_offset(17)
    assert position_of("@17", 0, offsets=True) == at_time(17)
    for text in ("tomorrow", "-1x", "", "--"):
        with pytest.raises(SettingsError, match="is not first, last"):
            position_of(text, 0)


@pytest.mark.parametrize("text", ["-1h", "-30m", "-1.5d", "-17"])
def test_a_time_before_now_is_no_option(text: str) -> None:
    parser = load("group").commands["reset"].parser("cometmq group")
    assert parser.parse_args(["billing", "orders", "--to", text]).to == text


@pytest.mark.parametrize("text", ["9" * 19, "-" + "9" * 400 + "d", "9" * 5_000])
def test_a_time_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not first, last"):
        position_of(text, 0, offsets=True)


def test_a_group_that_exists_is_not_created_again(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    create = ["group", "create", "once", "-n", cometmq_cluster.namesrv]
    assert main([*create, "--retries", "3"]) == 0
    assert capsys.readouterr().out.startswith("created group=once ")
    assert main(create) == 1
    assert "group 'once' exists on broker-a: change it with" in capsys.readouterr().err
    assert main([*create, "--if-not-exists"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("unchanged group=once ")
    assert "retries=3" in line


async def test_a_group_is_created_where_it_is_wanted_and_lacking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def created(*words: str) -> str:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ["group", "create", "g", *words, "-n", made.namesrv])
        told = capsys.readouterr()
        return told.err if code else told.out

    async with (
        group(tmp_path) as made,
        living(made, "a", brokerName="a", brokerClusterName="one"),
        living(made, "b", brokerName="b", brokerClusterName="one"),
        living(made, "c", brokerName="c", brokerClusterName="two"),
        Client(made.namesrv) as client,
    ):
        admin = Admin(client.session)
        await admin.update_group(SubscriptionGroupConfig("g"), brokers=["a"])
        assert "cluster 'three'" in await created("--cluster", "three")
        assert (await created("--cluster", "two")).startswith("created group=g ")
        assert "exists on c:" in await created("--cluster", "two")
        assert "exists on a:" in await created("--cluster", "one")
        assert (await created("--if-not-exists")).startswith("created group=g ")
        assert set(await Groups(admin).config("g")) == {"a", "b", "c"}
        assert (await created("--if-not-exists")).startswith("unchanged group=g ")
