"""``cometmq spark JOB``: the frame around a job."""

import json
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from pyspark.errors import AnalysisException

from cometmq.cli import render
from cometmq.cli.command import Exit
from cometmq.cli.commands import spark as command
from cometmq.cli.main import main
from cometmq.core.errors import CometError, SettingsError
from cometmq.spark.jobs.job import JOBS, Job


@dataclass(frozen=True)
class Row:
    name: str
    count: int


@dataclass(frozen=True)
class Report:
    messages: int = 1234
    by_tag: tuple[Row, ...] = (Row("a", 1), Row("b", 2))
    notes: tuple[str, ...] = ("a note",)
    lags: dict[str, int] | None = None
    ok: bool = True


@dataclass(frozen=True)
class Lines(Report):
    LINES: ClassVar[str] = "by_tag"


@dataclass(frozen=True)
class Options:
    fail: str = ""


def test_help_lists_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [job.name for job in JOBS if job.name not in shown] == []


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_tells_its_options(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", job.name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--master" in shown
    assert "--json" in shown


def test_without_pyspark_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "pyspark" else 1)
    assert main(["spark", "sync", "--help"]) == 2
    assert "pip install 'cometmq[spark]'" in capsys.readouterr().err


def test_without_java_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["spark", "sync"]) == 2
    assert "openjdk" in capsys.readouterr().err


def test_bad_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "sync", "--nonsense"]) == 2
    assert main(["spark", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_a_report_is_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_one(Report(lags={"p50": 1200}))
    shown = capsys.readouterr().out
    assert "by tag:" in shown
    assert "1234" in shown
    assert "a note" in shown
    assert "p50=1200" in shown
    assert command.items_of(Report()) == [Report()]
    assert command.items_of(Lines()) == [Row("a", 1), Row("b", 2)]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that fails as its option says, without a session."""
    errors = {
        "it": CometError("no"),
        "words": SettingsError("x", "bad"),
        "os": OSError("io"),
        "cut": KeyboardInterrupt(),
        "sql": AnalysisException("[UNRESOLVED_COLUMN] x\n\nJVM stacktrace:\na.b"),
        "lack": ModuleNotFoundError("No module named 'deltalake'", name="deltalake"),
        "bug": KeyError("bug"),
    }

    def run(_: None, options: Options, progress: Any) -> Report:
        progress("work", 1, 2)
        if options.fail in errors:
            raise errors[options.fail]
        return Report(ok=options.fail != "found")

    module = ModuleType("cometmq.spark.jobs.fake")
    for name, value in {"FakeOptions": Options, "FakeReport": Report, "run": run}.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(command, "_session", lambda *_: None)
    monkeypatch.setattr(command, "_stop", lambda _: None)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("fail", "code", "told"),
    [
        ("", 0, ""),
        ("found", 1, ""),
        ("it", 1, "cometmq spark fake: no"),
        ("words", 2, "cometmq spark fake: setting 'x': bad"),
        ("os", 1, "cometmq spark fake: io"),
        ("cut", 130, "cometmq spark fake: interrupted"),
        (
            "lack",
            2,
            "cometmq spark fake: No module named 'deltalake': pip install 'cometmq[delta]'",
        ),
        ("sql", 1, "cometmq spark fake: [UNRESOLVED_COLUMN"),
    ],
)
def test_exit_codes(fail: str, code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        done = command.of_job(Job("fake", "Fails.")).run("spark", ["--fail", fail, "--json"])
    except Exit as ended:
        done = ended.exit_code
    shown = capsys.readouterr()
    assert done == code
    assert shown.err.startswith(told)
    if not told:
        assert json.loads(shown.out)["messages"] == 1234


class Session:
    """What of a session an interrupt speaks to."""

    def __init__(self) -> None:
        self.streams = self.sparkContext = self
        self.active = [self]
        self.stopped = threading.Event()

    def stop(self) -> None:
        pass

    def cancelAllJobs(self) -> None:
        self.stopped.set()


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_cancels_and_is_told(fails: bool) -> None:
    session = Session()
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with command._interruptible(session):  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGINT)
            assert session.stopped.wait(20)
            if fails:
                raise AnalysisException("cancelled")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_waits_for_nothing() -> None:
    def work() -> None:
        with command._interruptible(Session()):  # type: ignore[arg-type]
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("not interrupted")

    with pytest.raises(KeyboardInterrupt):
        work()


@pytest.mark.usefixtures("fake")
def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(KeyError, match="bug"):
        command.of_job(Job("fake", "Fails.")).run("spark", ["--fail", "bug"])
