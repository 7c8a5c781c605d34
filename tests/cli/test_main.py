"""The command finds the room that serves its words, and servers do not pay for the others."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from cometmq.cli.app import BROKER_COMMANDS
from cometmq.cli.main import OF_A_BROKER, SERVERS, main
from cometmq.speedups import DESCRIPTION

#: Modules that a server has no use for before it serves.
HEAVY = (
    *("typer", "rich", "click", "yaml", "numpy"),
    *("cometmq.client", "cometmq.spark"),
)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in (*SERVERS, "topic", "send", "consume", "bench"):
        assert command in shown


def test_version_says_which_core_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cometmq {version('cometmq')}, core: {DESCRIPTION}\n"


def test_words_that_ask_a_broker_do_not_start_one() -> None:
    assert {f"broker {word}" for word in OF_A_BROKER} == BROKER_COMMANDS.keys()


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stat"]) == 2
    assert "stat" in capsys.readouterr().err


def test_an_unknown_log_level_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--log-level", "loud", "topic", "list"]) == 2
    assert "loud" in capsys.readouterr().err


def test_servers_take_their_own_words_also_behind_general_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--log-level", "error", "start", "--set", "brokerNam=a"]
    assert main(words) == 2
    assert "brokerName" in capsys.readouterr().err


LOADED_WHEN_READY = """
import os, signal, sys
from cometmq.cli.main import main
from cometmq.cli.serve import Lifetime

def announce(lifetime, line):
    lifetime._ready = True
    print(" ".join(sys.modules))
    os.kill(os.getpid(), signal.SIGTERM)

Lifetime.announce = announce
sys.exit(main(["start", "--store", sys.argv[1], "--namesrv-port", "0", "--broker-port", "0",
               "--set", "mappedFileSizeCommitLog=4194304"]))
"""


def test_a_server_that_is_ready_has_imported_nothing_it_does_not_need(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED_WHEN_READY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = done.stdout.split()
    assert "cometmq.broker.app" in loaded
    assert "cometmq.namesrv.app" in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []
