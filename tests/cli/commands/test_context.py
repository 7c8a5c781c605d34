"""Contexts: where commands look for a cluster, and with which secrets."""

import argparse
import io
import json
import os
from pathlib import Path

import pytest

from cometmq.cli import connect, contexts
from cometmq.cli.main import main
from cometmq.core.clock import SystemClock

CREATE = ["context", "create"]


def told(namesrv: str = "", context: str = "") -> str:
    """Return the name servers that a command with these options uses."""
    parser = argparse.ArgumentParser()
    connect.add_options(parser)
    options = parser.parse_args(["-n", namesrv, "--context", context])
    return connect.connection_of(options).namesrv


def test_options_beat_the_context_beats_the_environment_beats_the_current_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told() == connect.DEFAULT_NAMESRV
    assert main([*CREATE, "one", "-n", "one:1"]) == 0
    assert main([*CREATE, "two", "-n", "two:2"]) == 0
    assert told() == "one:1"
    assert main(["context", "use", "two"]) == 0
    assert told() == "two:2"
    monkeypatch.setenv("COMETMQ_CONTEXT", "one")
    assert told() == "one:1"
    monkeypatch.setenv("NAMESRV_ADDR", "env:3")
    assert told() == "env:3"
    assert told(context="two") == "two:2"
    assert told("option:4", context="two") == "option:4"


def test_a_context_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CREATE, "one", "-n", "one:1"]) == 0
    capsys.readouterr()
    for words in (["topic", "list", "--context", "x"], ["context", "use", "x"]):
        assert main(words) == 2
        assert "there is no context 'x'; contexts: one" in capsys.readouterr().err


def test_the_file_is_for_its_owner_and_secrets_are_hidden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config_home: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("s3cret\n"))
    words = ["-n", "a:1", "--access-key", "ops", "--secret-file", "-", "--tls", "true"]
    old = os.umask(0)
    try:
        assert main([*CREATE, "prod", *words]) == 0
    finally:
        os.umask(old)
    file = config_home / "cometmq" / "contexts.json"
    assert contexts.path() == file
    assert file.stat().st_mode & 0o777 == 0o600
    assert contexts.load().named["prod"].secret_key == "s3cret"
    assert "s3cret" not in repr(contexts.load())
    for form in ("wide", "json", "yaml", "ndjson"):
        for command in (["list"], ["show"], ["show", "prod"]):
            assert main(["context", *command, "-o", form]) == 0
    shown = capsys.readouterr()
    assert "s3cret" not in shown.out + shown.err
    assert shown.out.count("********") == 12
    file.chmod(0o644)
    told()
    assert "chmod 600" in capsys.readouterr().err


def test_contexts_are_changed_renamed_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CREATE, "a", "-n", "a:1", "--access-key", "ops"]) == 0
    assert main([*CREATE, "a", "-n", "b:1"]) == 2
    assert "it exists already; --update changes it" in capsys.readouterr().err
    assert main([*CREATE, "a", "-n", "b:1", "--update"]) == 0
    found = contexts.load().named["a"]
    assert (found.namesrv, found.access_key) == ("b:1", "ops")
    assert main(["context", "rename", "a", "c"]) == 0
    assert contexts.load().current == "c"
    assert main(["context", "delete", "c"]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert main(["context", "delete", "c", "--yes"]) == 0
    assert contexts.load() == contexts.Contexts("", {})
    assert main([*CREATE, "a/b", "-n", "a:1"]) == 2
    assert main([*CREATE, "ab"]) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"contexts": {"a": 1}}'])
def test_a_broken_file_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    contexts.path().parent.mkdir(parents=True)
    contexts.path().write_text(text)
    assert main(["context", "list"]) == 2
    assert "mend or delete it" in capsys.readouterr().err


def test_unknown_fields_of_a_newer_version_are_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    contexts.path().parent.mkdir(parents=True)
    contexts.path().write_text('{"contexts": {"a": {"namesrv": "a:1", "color": "red"}}}')
    assert main(["context", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["namesrv"] == "a:1"


def test_what_is_watched_is_printed_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep_ms(_: object, duration_ms: float) -> None:
        slept.append(duration_ms)
        if len(slept) % 2 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep_ms", sleep_ms)
    assert main([*CREATE, "one", "-n", "one:1"]) == 0
    capsys.readouterr()
    assert main(["context", "list", "--watch", "7"]) == 130
    shown = capsys.readouterr().out
    assert shown.count("every 7 s  20") == shown.count("\nNAME ") == 2
    assert main(["context", "list", "--watch", "-o", "ndjson"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["one", "one"]
    assert slept == [7_000, 7_000, 2_000, 2_000]
