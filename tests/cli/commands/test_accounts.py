"""Accounts of a real broker changed from the command line, and what denied ones are told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.main import main
from cometmq.testing.cluster import Cluster, cluster_in_thread

RULES = """\
accounts:
- accessKey: operator
  secretKey: secret-of-operator
  admin: true
- accessKey: reader-key
  secretKey: secret-of-reader
  topicPerms: [open=SUB]
  groupPerms: [mine=SUB]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(RULES)
    with cluster_in_thread(tmp_path, acl_enable=True, rocketmq_home=str(tmp_path)) as cluster:
        yield cluster


class Shell:
    """Runs commands on a cluster as one of its accounts."""

    def __init__(self, cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._where = ["-n", cluster.namesrv]
        self._folder = folder
        self._capsys = capsys

    def run(self, *words: str, by: str = "operator", code: int = 0) -> list[str]:
        """Return the lines of a command; those of standard error if it fails."""
        path = self._folder / f"{by}.yml"
        if not path.exists():
            path.touch(0o600)
            path.write_text(f"accessKey: {by}\nsecretKey: secret-of-{by.removesuffix('-key')}\n")
        given = main([*words, *self._where, "--credentials", str(path)])
        shown = self._capsys.readouterr()
        assert given == code, shown
        return (shown.err if code else shown.out).splitlines()

    def rows(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, "--json")]


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(cluster, tmp_path, capsys)


@pytest.mark.parametrize(
    ("topic", "group", "what"),
    [("open", "theirs", "group:theirs"), ("shut", "mine", "topic:shut")],
)
@pytest.mark.parametrize("words", [[], ["--count", "1", "--timeout", "20"]])
def test_a_denied_consumer_is_an_error(
    shell: Shell, topic: str, group: str, what: str, words: list[str]
) -> None:
    shell.run("topic", "create", topic, "--queues", "2")
    told = shell.run("consume", topic, "-g", group, *words, by="reader-key", code=1)
    assert len(told) == 1, told
    assert told[0].startswith("cometmq consume: 127.0.0.1:")
    assert f"No default permission for {what}" in told[0]


def test_a_failed_command_prints_one_line(cluster: Cluster, shell: Shell, tmp_path: Path) -> None:
    """Also in a process of its own, where the client's log is not the test's."""
    shell.run("topic", "create", "open")
    path = tmp_path / "stranger.yml"
    path.touch(0o600)
    path.write_text("accessKey: stranger\nsecretKey: secret-of-stranger\n")
    words = ["consume", "open", "-g", "mine", "--credentials", str(path), "-n", cluster.namesrv]
    for namesrv in (cluster.namesrv, "127.0.0.1:9"):
        words[-1] = namesrv
        ended = subprocess.run(
            [sys.executable, "-m", "cometmq.cli", *words],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert ended.returncode == 1
        assert len(ended.stderr.splitlines()) == 1, ended.stderr


def test_accounts_are_made_changed_and_deleted(
    shell: Shell, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run("topic", "create", "orders", "--queues", "1")
    secret = tmp_path / "secret"
    secret.write_text("secret-of-shop\n")
    (line,) = shell.run("acl", "set", "shop-key", "--secret-file", str(secret), "--topic",
                        "orders=PUB", "--default-topic", "DENY")  # fmt: skip
    assert line.startswith("set server=broker-a address=127.0.0.1:")
    rows = {row["access_key"]: row for row in shell.rows("acl", "accounts")}
    assert set(rows) == {"operator", "reader-key", "shop-key"}
    made = rows["shop-key"]
    assert (made["admin"], made["default_topic"], made["topics"]) == (
        False, "DENY", ["orders=PUB"],
    )  # fmt: skip
    shell.run("send", "orders", "1", by="shop-key")
    (told,) = shell.run("message", "browse", "orders", by="shop-key", code=1)
    assert "No default permission" in told
    (told,) = shell.run("acl", "accounts", by="shop-key", code=1)
    assert "Need admin permission" in told

    shell.run("acl", "set", "shop-key", "--topic", "orders=SUB")
    (told,) = shell.run("send", "orders", "2", by="shop-key", code=1)
    assert "No default permission for topic:orders" in told
    shell.run("acl", "set", "shop-key", "--admin")
    shell.run("acl", "accounts", by="shop-key")
    (told,) = shell.run("acl", "set", "short", "--secret-file", str(secret), code=1)
    assert "accessKey=short" in told

    (told,) = shell.run("acl", "delete", "shop-key", code=2)
    assert told.endswith("add --yes to do it")
    shell.run("acl", "delete", "shop-key", "--yes")
    (told,) = shell.run("send", "orders", "4", by="shop-key", code=1)
    assert "No acl config for shop-key" in told
    (told,) = shell.run("acl", "delete", "shop-key", "--yes", code=1)
    assert "there is no account 'shop-key'" in told


def test_a_white_list_is_replaced(
    shell: Shell, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run("topic", "create", "orders", "--queues", "1")
    assert shell.rows("acl", "white-list", "show") == [{"broker": "broker-a", "addresses": []}]
    send = ["send", "orders", "1", "-n", cluster.namesrv]
    assert main(send) == 1
    assert "No accessKey is configured" in capsys.readouterr().err
    before = shell.rows("acl", "versions")
    (told,) = shell.run("acl", "white-list", "set", "127.0.0.x", "--yes", code=1)
    assert "127.0.0.x" in told
    shell.run("acl", "white-list", "set", "10.0.0.*", "127.0.0.1", "--yes")
    (row,) = shell.rows("acl", "white-list", "show")
    assert row["addresses"] == ["10.0.0.*", "127.0.0.1"]
    assert main(send) == 0
    capsys.readouterr()
    assert shell.rows("acl", "versions") != before
