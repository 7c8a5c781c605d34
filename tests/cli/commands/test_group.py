"""Consumer groups from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cometmq import BlockingClient
from cometmq.admin.consumers import END
from cometmq.cli.commands.group import moment_of
from cometmq.cli.main import main
from cometmq.core.errors import SettingsError
from cometmq.testing.cluster import Cluster


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
    assert main([*reset, "last", *where]) == 0
    assert "offset" in capsys.readouterr().out
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


def test_moments() -> None:
    assert moment_of("first") == 0
    assert moment_of("last") == END
    assert moment_of("1700000000000") == 1_700_000_000_000
    assert moment_of("2023-11-14T22:13:20") == 1_700_000_000_000
    assert moment_of("2023-11-15T00:13:20+02:00") == 1_700_000_000_000
    with pytest.raises(SettingsError):
        moment_of("tomorrow")
