"""A dataclass of options as a command line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

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


def runner(seen: list[Any]) -> typer.Typer:
    def extra(options: Options, *, as_json: bool = False) -> None:
        seen.append((options, as_json))

    app = typer.Typer()
    app.command()(command(Options, extra))
    return app


def parsed(*words: str, **env: str) -> tuple[Options, bool]:
    seen: list[Any] = []
    done = CliRunner().invoke(runner(seen), list(words), env=env)
    assert done.exit_code == 0, done.output
    found: tuple[Options, bool] = seen[0]
    return found


def test_defaults_are_the_dataclass_s() -> None:
    assert parsed("-n", "a:1", "x") == (Options("a:1", Path("x")), False)
    assert parsed("x", NAMESRV_ADDR="b:2")[0].nameservers == "b:2"


def test_every_kind_of_option() -> None:
    words = ["--namesrv", "a:1", "x", "--topic", "t", "--topic", "u", "--max-size", "2k"]
    words += ["--limit", "3", "--by", "key", "--deep", "--no-checked", "--extra", "k=v"]
    options, as_json = parsed(*words, "--as-json")
    wanted = Options("a:1", Path("x"), ("t", "u"), 2_000, 3, "key", True, False, {"k": "v"})
    assert (options, as_json) == (wanted, True)


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
    done = CliRunner().invoke(runner([]), words, env={"NAMESRV_ADDR": ""})
    assert done.exit_code == 2


def test_help_tells_what_the_words_say() -> None:
    shown = CliRunner().invoke(runner([]), ["--help"]).output
    assert "How big." in shown
    assert "--max-size" in shown
    assert "Where." in shown
