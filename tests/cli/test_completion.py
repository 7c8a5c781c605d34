"""Completion: the words that can follow, and the scripts in the real shells."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.cli.completion import SCRIPTS, complete
from cometmq.cli.main import main


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


def path_with_cometmq(directory: Path) -> str:
    """Return a PATH on which this program is ``cometmq``."""
    program = directory / "cometmq"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cometmq.cli "$@"\n')
    program.chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


IN_A_SHELL = {
    "bash": "source {script}; COMP_WORDS=(cometmq topic sh); COMP_CWORD=2; _cometmq; "
    "echo ${{COMPREPLY[@]}}",
    "zsh": "autoload -U compinit; compinit -u -D; source {script}; "
    "compadd() {{ shift; print -l ${{found}} }}; words=(cometmq topic sh); CURRENT=3; _cometmq",
    "fish": "source {script}; complete -C 'cometmq topic sh'",
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_completes_in_its_shell(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert script.read_text() == SCRIPTS[shell]
    found = shutil.which(shell)
    if found is None:
        assert "cometmq complete -- " in script.read_text()
        return
    monkeypatch.setenv("PATH", path_with_cometmq(tmp_path))
    words = IN_A_SHELL[shell].format(script=script)
    done = subprocess.run(
        [found, "-c", words], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["show"], done.stderr
