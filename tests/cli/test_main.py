"""The command finds the room that serves its words, and servers do not pay for the others."""

import subprocess
import sys

import pytest

from cometmq.cli.main import SERVERS, main

#: Modules that a server has no use for before it serves.
HEAVY = ("typer", "rich", "click", "cometmq.client", "cometmq.demo", "cometmq.spark", "yaml")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in (*SERVERS, "topic", "send", "consume", "bench", "demo"):
        assert command in shown


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


def test_starting_a_server_imports_nothing_it_does_not_need() -> None:
    code = (
        "import sys; from cometmq.cli.main import main; main(['start', '--set', 'x=1']); "
        "import cometmq.broker.app, cometmq.namesrv.app; print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = done.stdout.split()
    assert "cometmq.broker.app" in loaded
    found = [name for name in loaded if name.startswith(HEAVY) and name != "cometmq.client"]
    assert found == []
