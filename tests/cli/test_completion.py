"""Completion: the words that can follow, and the scripts in the real shells."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cometmq.cli.completion import SCRIPTS, complete
from cometmq.cli.main import main
from tests.debian import libraries, unpacked

LIMIT_S = 60
#: What is typed, and the words that the program gets; a tab completes.
LINES = {
    "cometmq topic sh\t": "topic show",
    "cometmq bro\tconf\tge\t broker-a": "broker config get broker-a",
    "cometmq topic list --al\t": "topic list --all",
    "cometmq topic create t --permi\tRW": "topic create t --permissions RW",
    "cometmq completion zs\t": "completion zsh",
    "cometmq topic list --credentials too\t": "topic list --credentials tools.yml",
}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], {"topic", "broker", "start"}),
        (["to"], {"topic"}),
        (["--ver"], {"--version"}),
        (["topic", ""], {"list", "show", "create"}),
        (["topic", "sh"], {"show"}),
        (["topic", "list", "--a"], {"--all"}),
        (["topic", "create", "t", "--permissions", "R"], {"R", "RW"}),
        (["broker", "config", ""], {"get", "set"}),
        (["broker", "--nam"], {"--namesrv"}),
        (["start", "--st"], {"--stop-with-input", "--store"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["send", "--ta"], {"--tag"}),
        (["help", "top"], {"topic"}),
    ],
)
def test_words_that_can_follow(words: list[str], wanted: set[str]) -> None:
    assert wanted <= set(complete(["--", *words]))
    if words and len(words[-1]) > 1:
        assert set(complete(words)) == wanted


@pytest.mark.parametrize("words", [["nonsense", ""], ["topic", "nonsense", ""]])
def test_nothing_follows_what_is_unknown(words: list[str]) -> None:
    assert complete(words) == []


#: Stands for ``cometmq`` at the prompt: notes its words; what completes is the real one.
PROGRAM = """\
#!/bin/sh
if [ "$1" = complete ]; then exec "{python}" -m cometmq.cli "$@"; fi
printf '%s\\n' "$*" >> {typed}
"""

#: What a user has in a shell's start file, after the script of `cometmq completion`.
ZSHRC = """\
module_path=({modules}) fpath=({functions})
autoload -U compinit; compinit -u -D
source {script}
PS1='$ '
"""


class Shell:
    """An interactive shell on a terminal, in which the script of completion was sourced."""

    def __init__(self, name: str, folder: Path) -> None:
        self._typed = folder / "typed"
        self._typed.touch()
        (folder / "bin").mkdir()
        program = folder / "bin" / "cometmq"
        program.write_text(PROGRAM.format(python=sys.executable, typed=self._typed))
        program.chmod(0o755)
        script = folder / "script"
        script.write_text(SCRIPTS[name])
        self._home = folder / "home"
        self._home.mkdir()
        (self._home / "tools.yml").touch()
        self._environment = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(self._home), "TERM": "dumb",
            "ZDOTDIR": str(folder), "LC_ALL": "C.UTF-8", "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        words = self._words(name, folder, script)
        self._process, self._terminal = _on_a_terminal(words, self._environment, self._home)

    def _words(self, name: str, folder: Path, script: Path) -> list[str]:
        if name == "bash":
            (folder / "bashrc").write_text(f"source {script}\n")
            return ["/bin/bash", "--rcfile", str(folder / "bashrc"), "-i"]
        packages = unpacked("shells", ["zsh", "fish"])
        found = libraries(packages)
        self._environment["LD_LIBRARY_PATH"] = ":".join(map(str, found))
        if name == "fish":
            # It finds its functions beside itself only if its settings are there too.
            with suppress(FileExistsError):
                (packages / "usr" / "etc").symlink_to("../etc")
            return [str(packages / "usr" / "bin" / "fish"), "-i", "-C", f"source {script}"]
        modules = next((packages / "usr" / "lib").glob("*/zsh/[0-9]*"))
        folders = [
            each for each in (packages / "usr/share/zsh/functions").rglob("*") if each.is_dir()
        ]
        text = ZSHRC.format(modules=modules, functions=" ".join(map(str, folders)), script=script)
        (folder / ".zshrc").write_text(text)
        return [str(packages / "bin" / "zsh"), "-i"]

    def typed(self, keys: str) -> str:
        """Type keys and return the words that the program got."""
        before = self._typed.read_text()
        os.write(self._terminal, f"{keys}\r".encode())
        shown = b""
        deadline_s = time.monotonic() + LIMIT_S
        while (now := self._typed.read_text()) == before:
            assert time.monotonic() < deadline_s, shown.decode(errors="replace")
            ready, _, _ = select.select([self._terminal], [], [], 0.1)
            shown += os.read(self._terminal, 65_536) if ready else b""
        return now.removeprefix(before).rstrip("\n")

    def close(self) -> None:
        """End the shell."""
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


def _on_a_terminal(
    words: list[str], environment: dict[str, str], folder: Path
) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = os.openpty()
    # fish wants a terminal that is its own.
    process = subprocess.Popen(
        ["setsid", "--ctty", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder,
    )  # fmt: skip
    os.close(theirs)
    return process, ours


@pytest.fixture(params=list(SCRIPTS))
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(request.param, tmp_path)
    try:
        yield opened
    finally:
        opened.close()


def test_lines_are_completed_at_the_prompt(shell: Shell) -> None:
    for keys, words in LINES.items():
        assert shell.typed(keys) == words


@pytest.mark.parametrize("shell_name", SCRIPTS)
def test_the_command_prints_the_script(shell_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell_name]) == 0
    assert capsys.readouterr().out == SCRIPTS[shell_name]
