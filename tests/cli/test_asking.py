"""Questions on a terminal, and what an interrupt does to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cometmq.cli.asking import secret_from
from cometmq.core.errors import SettingsError

#: Asks within an event loop, as commands on a cluster do.
ASKS = """
import sys
from cometmq.cli.command import Noun, confirm
noun = Noun("thing", "A thing.")

@noun.command("drop", "thing drop")
async def drop() -> None:
    confirm("Drop it?", False)
    print("dropped", flush=True)

import cometmq.cli.nouns as nouns
nouns.load = lambda word: noun
from cometmq.cli import main
main.load = nouns.load
sys.exit(main.main(["topic", "drop"]))
"""


@pytest.mark.parametrize(("answer", "code", "told"), [("y", 0, b"dropped\n"), ("", 130, b"")])
def test_an_interrupt_ends_a_question(answer: str, code: int, told: bytes) -> None:
    terminal, ours = os.openpty()
    words = [sys.executable, "-c", ASKS]
    with subprocess.Popen(words, stdin=ours, stderr=ours, stdout=subprocess.PIPE) as process:
        try:
            asked = b""
            while b"[y/N] " not in asked:
                asked += os.read(terminal, 1_000)
            if answer:
                os.write(terminal, f"{answer}\n".encode())
            else:
                wait_until_it_reads(process.pid)
                process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=30)[0] == told
            assert process.returncode == code
        finally:
            process.kill()
    os.close(terminal)
    os.close(ours)


def wait_until_it_reads(pid: int) -> None:
    """Python looks at signals between its steps, so one just before a read waits for its end."""
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(" the-secret \n")
    assert secret_from(str(path)) == "the-secret"
    assert secret_from("") == ""
    path.write_text("\n")
    with pytest.raises(SettingsError, match="is empty"):
        secret_from(str(path))


def test_a_terminal_does_not_show_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda _: "typed")
    assert secret_from("-") == "typed"
