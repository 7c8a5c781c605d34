"""Pages that show a session in a shell: their files are written, their commands run in order, and
what they print is compared with what the page shows.

A page shows files as code blocks whose first line is a comment with the name, and commands as
`console` blocks: `$ ` before a command, then what it prints. A line `...` stands for any lines.
What differs in each run (ids, times, sizes, fill of disks) is compared by its form, widths of
columns are not compared.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.architecture.rules import ROOT

LIMIT_S = 120
ANY_LINES = "..."

#: What differs in each run, and what is compared in its place.
VOLATILE = (
    (re.compile(r"\b[0-9A-F]{32}\b"), "ID"),
    (re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z"), "TIME"),
    (re.compile(r"\d+% full"), "N% full"),
    (re.compile(r"\b(size_bytes|topics)=\d+"), r"\1=N"),
    (re.compile(r"^(born on:.*):\d+"), r"\1:N"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page, and the lines that the page shows below it."""

    command: str
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """What a page has to be run: files by name, and the commands in order."""

    files: Mapping[str, str]
    steps: tuple[Step, ...]


def read_page(text: str) -> Page:
    """Return the files and commands of a page in Markdown."""
    files, steps = {}, []
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "console":
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *shown = part.replace("\\\n", "").splitlines()
                steps.append(Step(command, tuple(shown)))
        elif name := re.match(r"# (\S+\.\w+)\n", block):
            files[name[1]] = block
    return Page(files, tuple(steps))


@dataclass(slots=True)
class Shell:
    """Runs commands of a page in a folder; `renamed` are addresses and ports of the page, and those
    that the test has in their place. A command may take `limit_s`."""

    folder: Path
    renamed: Mapping[str, str] = field(default_factory=dict)
    exit_code: int = 0
    limit_s: float = LIMIT_S

    def write(self, files: Mapping[str, str], more: str = "") -> None:
        """Write the files of a page; settings files end with `more`."""
        for name, text in files.items():
            path = self.folder / name
            path.write_text(self._here(text) + (more if name.endswith(".conf") else ""))
            path.chmod(0o600)

    def run(self, step: Step) -> list[str]:
        """Run one command; return the lines that it printed, with the page's addresses."""
        environment = environment_in(self.folder)
        output = self.folder / "printed.txt"
        with output.open("w") as file:
            shell = subprocess.Popen(
                ["bash", "-c", f"(exit {self.exit_code})\n{self._here(step.command)}"],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self.exit_code = shell.wait(self.limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, signal.SIGKILL)
                raise
        return self._there(output.read_text()).splitlines()

    def _here(self, text: str) -> str:
        return _replaced(text, self.renamed)

    def _there(self, text: str) -> str:
        return _replaced(text, {here: there for there, here in self.renamed.items()})


def environment_in(folder: Path) -> dict[str, str]:
    """Return the environment of commands that have their configuration in a folder."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    for name in ("NAMESRV_ADDR", "COMETMQ_CONTEXT", "ROCKETMQ_HOME"):
        environment.pop(name, None)
    return environment


def _replaced(text: str, words: Mapping[str, str]) -> str:
    if not words:
        return text
    pattern = "|".join(rf"\b{re.escape(word)}\b" for word in words)
    return re.sub(pattern, lambda found: words[found[0]], text)


def form_of(line: str) -> str:
    """Return a line without what differs in each run."""
    for pattern, word in VOLATILE:
        line = pattern.sub(word, line)
    return line.strip()


def matches(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Return whether lines are those that a page shows."""
    parts = [
        ".*" if line.strip() == ANY_LINES else re.escape(form_of(line) + "\n") for line in shown
    ]
    text = "".join(f"{form_of(line)}\n" for line in printed)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None
