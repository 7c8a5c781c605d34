"""The commands on the pages about jobs can be run as they stand."""

import re
import shlex
from typing import Any

import pytest

from cometmq.cli.commands import spark as command
from cometmq.spark.jobs.job import BY_NAME
from tests.architecture.rules import ROOT

FOLDER = ROOT / "docs" / "spark" / "jobs"
COMMANDS = sorted(
    {
        line.split("  #")[0]
        for page in (*FOLDER.glob("*.md"), ROOT / "docs" / "cli.md")
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
        if re.match(r"cometmq spark (?!--help)", line)
    }
)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(command, "run", lambda job, options, **_: seen.append(options))
    _, _, name, *words = shlex.split(line)
    if "--help" in words:
        with pytest.raises(SystemExit):
            command.of_job(BY_NAME[name]).run("cometmq spark", words)
    else:
        assert command.of_job(BY_NAME[name]).run("cometmq spark", words) == 0
        assert seen


def test_every_job_has_its_page() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    for name in BY_NAME:
        assert f"({name}.md)" in index
        assert (FOLDER / f"{name}.md").is_file()
