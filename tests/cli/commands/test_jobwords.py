"""A dataclass of options as a command line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from cometmq.cli.command import Command
from cometmq.cli.commands.spark import command
from cometmq.spark.jobs.job import JobOption, size_bytes


@dataclass(frozen=True, slots=True)
class Options:
    nameservers: str
    path: Annotated[Path, JobOption("Where.", positional=True)]
    topics: Annotated[tuple[str, ...], JobOption("A topic.")] = ()
    size: Annotated[int, JobOption("How big.", name="max-size", read=size_bytes)] = 100
    limit: int | None = None
    by: Literal["queue", "key"] = "queue"
    deep: bool = False
    checked: bool = True
    extra: dict[str, str] = field(default_factory=dict)


def run(seen: list[Any], *words: str) -> int:
    def extra(options: Options, *, deep_too: bool = False) -> list[Any]:
        seen.append((options, deep_too))
        return []

    return Command("job", command(Options, extra)).run("cometmq spark", words)


def parsed(*words: str) -> tuple[Options, bool]:
    seen: list[Any] = []
    assert run(seen, *words) == 0
    found: tuple[Options, bool] = seen[0]
    return found


def test_defaults_are_the_dataclass_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed("-n", "a:1", "x") == (Options("a:1", Path("x")), False)
    monkeypatch.setenv("NAMESRV_ADDR", "b:2")
    assert parsed("x")[0].nameservers == "b:2"


def test_every_kind_of_option() -> None:
    words = ["--namesrv", "a:1", "x", "--topic", "t", "--topic", "u", "--max-size", "2k"]
    words += ["--limit", "3", "--by", "key", "--deep", "--no-checked", "--extra", "k=v"]
    options, deep_too = parsed(*words, "--deep-too")
    wanted = Options("a:1", Path("x"), ("t", "u"), 2_000, 3, "key", True, False, {"k": "v"})
    assert (options, deep_too) == (wanted, True)


@pytest.mark.parametrize(
    "words",
    [
        ["x"],
        ["-n", "a:1"],
        ["-n", "a:1", "x", "--max-size", "many"],
        ["-n", "a:1", "x", "--by", "z"],
    ],
)
def test_bad_words_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as done:
        run([], *words)
    assert done.value.code == 2


def test_help_tells_what_the_words_say(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([], "--help")
    shown = capsys.readouterr().out
    assert "How big." in shown
    assert "--max-size" in shown
    assert "Where." in shown
