"""Contexts: where commands look for a cluster, and with which secrets."""

import argparse
import io
import json
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from cometmq.cli import connect, contexts
from cometmq.cli.contexts import Connection
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


@pytest.mark.parametrize("words", [["topic", "list", "--context", "prod"], ["topic", "list"]])
def test_secrets_that_others_may_read_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"prod": Connection("127.0.0.1:1", "ops", "s3cret"), "bare": Connection("b:1")}
    contexts.save(contexts.Contexts("prod", named))
    contexts.path().chmod(0o604)
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert f"every user of this machine may access it: chmod 600 {contexts.path()}" in shown
    assert "s3cret" not in shown
    contexts.path().chmod(0o640)
    assert contexts.load().named == named
    contexts.save(contexts.Contexts("bare", {"bare": named["bare"]}))
    contexts.path().chmod(0o644)
    assert contexts.load().current == "bare"


def test_no_file_is_written_where_others_may_write(capsys: pytest.CaptureFixture[str]) -> None:
    folder = contexts.path().parent
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert main([*CREATE, "prod", "-n", "a:1"]) == 2
    assert f"may write to {folder}: run chmod o-w" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_a_private_file_is_written_once_and_not_through_a_link(tmp_path: Path) -> None:
    """The descriptor that created the file is written to, whatever the name is by then."""
    target, link = tmp_path / "key", tmp_path / "link"
    contexts.write_private(target, b"one")
    assert target.read_bytes() == b"one"
    assert target.stat().st_mode & 0o777 == 0o600
    link.symlink_to(tmp_path / "elsewhere")
    for path in (target, link):
        with pytest.raises(FileExistsError):
            contexts.write_private(path, b"two")
    assert target.read_bytes() == b"one"
    assert not (tmp_path / "elsewhere").exists()


def test_a_private_file_that_cannot_be_written_is_removed(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match="File too large"):
            contexts.write_private(tmp_path / "key", bytes(5_000))
    finally:
        signal.signal(signal.SIGXFSZ, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_contexts_are_changed_renamed_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CREATE, "a", "-n", "a:1", "--access-key", "ops"]) == 0
    assert main([*CREATE, "a", "-n", "b:1"]) == 2
    assert "it exists already; --update changes it" in capsys.readouterr().err
    assert main([*CREATE, "a", "-n", "b:1", "--update"]) == 0
    found = contexts.load().named["a"]
    assert (found.namesrv, found.access_key) == ("b:1", "ops")
    assert main([*CREATE, "a", "--tls-ca", "/ca.pem", "--update"]) == 0
    assert main([*CREATE, "a", "--tls-verify", "false", "--update"]) == 0
    assert contexts.load().named["a"].tls_ca == "/ca.pem"
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
    really_sleep_ms = SystemClock.sleep_ms

    async def sleep_ms(clock: SystemClock, duration_ms: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            # A cluster that the tests of a session share runs in a thread of its own.
            return await really_sleep_ms(clock, duration_ms)
        slept.append(duration_ms)
        if len(slept) % 2 == 0:
            raise KeyboardInterrupt
        return None

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
