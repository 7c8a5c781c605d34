"""What docs/getting-started.md shows works as it stands there, word for word."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT

PAGE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
DEFAULT_NAMESRV = "127.0.0.1:9876"


def blocks(language: str, containing: str) -> list[str]:
    """The page's code blocks in a language, those that contain a text."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [block for block in found if containing in block]


def run(words: list[str], cluster: Cluster, folder: Path) -> str:
    """Runs a program to its end; gives what it printed."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | {"NAMESRV_ADDR": cluster.namesrv},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands(cometmq_cluster: Cluster, tmp_path: Path) -> None:
    [block] = blocks("sh", "topic create")
    command = Path(sys.executable).parent / "cometmq"
    printed = ""
    for line in block.splitlines():
        words = shlex.split(line)
        assert words[0] == ".venv/bin/cometmq"
        printed = run([str(command), *words[1:]], cometmq_cluster, tmp_path)
    assert "Canillo" in printed


def test_the_program(cometmq_cluster: Cluster, tmp_path: Path) -> None:
    [block] = blocks("python", "asyncio.run")
    program = tmp_path / "program.py"
    assert DEFAULT_NAMESRV in block
    program.write_text(block.replace(DEFAULT_NAMESRV, cometmq_cluster.namesrv), encoding="utf-8")
    assert run([sys.executable, str(program)], cometmq_cluster, tmp_path) == "b'Canillo'\n"


def test_the_test(pytester: pytest.Pytester) -> None:
    [block] = blocks("python", "def test_mine")
    pytester.makepyfile(block)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_what_the_machine_needs_is_what_the_setup_asks_for() -> None:
    script = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")
    asked = set(re.findall(r'apt-get install -y ([^"(]+)"', script))
    [block] = blocks("sh", "apt-get")
    assert set(" ".join(asked).split()) <= set(block.split())
