"""Servers stop on signals with 0; what stops a start is one line and 2."""

import asyncio
import errno
import gc
import os
import pwd
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.cli import serve
from cometmq.core.errors import SettingsError, StoreLocked
from cometmq.net.server import reserve


def signal_self(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_with_zero(number: signal.Signals) -> None:
    stopped = []

    async def main(lifetime: serve.Lifetime) -> None:
        lifetime.announce("ready")
        signal_self(number)
        async with asyncio.timeout(60):
            await lifetime.wait()
        stopped.append(number)

    assert serve.run("start", main) == 0
    assert stopped == [number]


@pytest.mark.parametrize("ready", [False, True])
def test_a_start_or_a_stop_that_hangs_is_given_up(
    ready: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(lifetime: serve.Lifetime) -> None:
        if ready:
            lifetime.announce("ready")
            signal_self(signal.SIGTERM)
            await lifetime.wait()
        signal_self(signal.SIGTERM)
        async with asyncio.timeout(60):
            await asyncio.Event().wait()

    assert serve.run("start", main) == 0
    assert "stopped before its start" in caplog.text


#: Gets the signals again once its servers have stopped: before the interpreter ends, and when it
#: has taken the handlers away.
SIGNALLED_WHILE_IT_ENDS = """
import asyncio, os, signal, sys
from cometmq.cli import serve

if sys.argv[1] == "asyncio":
    serve.loop_factory = lambda: asyncio.new_event_loop

async def main(lifetime):
    lifetime.announce("ready")
    os.kill(os.getpid(), signal.SIGTERM)
    await lifetime.wait()

def signal_self(kill=os.kill, own=os.getpid()):
    for number in (15, 2, 1):
        kill(own, number)

class Last:
    def __del__(self, signal_self=signal_self, write=os.write):
        signal_self()
        write(1, b"ended")

sys.last = Last()  # deleted after all modules
code = serve.run("start", main, on_hangup=lambda: None)
signal_self()
sys.exit(code)
"""


@pytest.mark.parametrize("loop", ["asyncio", "fastest"])
def test_signals_in_the_last_moments_do_not_change_the_exit_code(loop: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_WHILE_IT_ENDS, loop],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\nended", "")


def failing(error: Exception) -> serve.Main:
    async def main(lifetime: serve.Lifetime) -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (StoreLocked("/data/store"), "stop that broker, or choose another --store"),
        (SettingsError("x", "no such setting"), "no such setting"),
        (
            OSError(errno.EADDRINUSE, "Address already in use"),
            "choose another port (0: a free one)",
        ),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign"), "choose another --bind"),
        (
            OSError(errno.EACCES, "Permission denied", "/x"),
            "choose a directory or port that this user may use",
        ),
        (OSError(errno.ENOSPC, "No space left", "/x"), "free some, or choose another --store"),
        (OSError(errno.EIO, "Input/output error", "/x"), "/x: Input/output error"),
    ],
)
def test_a_start_that_cannot_be_says_why_on_one_line(
    error: Exception, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve.run("start", failing(error)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("cometmq start: ")
    assert advice in line


def test_whose_a_directory_is_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = OSError(errno.EACCES, "Permission denied", str(tmp_path / "commitlog"))
    assert serve.run("broker", failing(log)) == 2
    assert "belongs to" not in capsys.readouterr().err
    owner = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: 2_000_000_000)
    assert serve.run("broker", failing(log)) == 2
    whose = f"({tmp_path} belongs to {owner}, this process runs as user 2000000000)"
    assert whose in capsys.readouterr().err
    port = OSError(errno.EACCES, "Permission denied", "127.0.0.1:80")
    assert serve.run("broker", failing(port)) == 2
    assert "belongs to" not in capsys.readouterr().err


def test_a_complaint_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.refuse("start", "first\nsecond\n  third") == 2
    assert capsys.readouterr().err == "cometmq start: first second third\n"


def test_a_bug_is_no_refusal() -> None:
    with pytest.raises(ZeroDivisionError):
        serve.run("start", failing(ZeroDivisionError()))


def test_the_ready_line_leaves_at_once_and_the_collector_starts_fresh(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def main(lifetime: serve.Lifetime) -> None:
        assert not gc.isenabled()
        lifetime.announce("ready namesrv=127.0.0.1:1")
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0

    assert serve.run("namesrv", main) == 0
    gc.unfreeze()
    assert capsys.readouterr().out == "ready namesrv=127.0.0.1:1\n"
    assert gc.isenabled()


def test_an_address_in_use_is_named_with_its_process_and_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def main(lifetime: serve.Lifetime) -> None:
        reserve("127.0.0.1", port).listen()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve.run("broker", main, ports={port: "listenPort"}) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"127.0.0.1:{port}: address already in use by process {os.getpid()} (" in line
    assert line.endswith("choose another port (listenPort)")


def test_a_process_of_another_user_is_not_seen() -> None:
    assert serve.listening_process(0) == "by a process that this user cannot see"
