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
