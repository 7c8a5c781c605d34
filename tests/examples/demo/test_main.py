"""The command of the demo: exit codes, and what it prints without a terminal."""

from pathlib import Path
from random import Random

import pytest

from examples.demo import __main__ as demo
from examples.demo.__main__ import main
from examples.demo.platform import Applied, Copy
from examples.demo.script import iso_regions
from examples.demo.tables import Change, Row

WORDS = ["--no-spark", "--changes", "200", "--rate", "2000"]
REGIONS = iso_regions(Random(1))[:300]


@pytest.fixture
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def iso_regions(random: Random) -> list[Row]:
        return REGIONS

    monkeypatch.setattr("examples.demo.run.iso_regions", iso_regions)


@pytest.mark.usefixtures("_small_world")
def test_a_good_run_exits_with_zero_and_shows_one_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "--directory", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "All copies are equal to the base, row by row." in shown
    assert "the relay is killed" in shown
    assert "\x1b" not in shown


@pytest.mark.usefixtures("_small_world")
def test_a_difference_exits_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that skips one row's last change looks up to date and is not."""
    apply = Copy.apply

    def skipping(copy: Copy, change: Change) -> Applied:
        if change.key == "FR" and change.row is not None:
            change = Change(
                change.table, change.op, "FR", change.change, 1, change.row | {"population": 1}
            )
        return apply(copy, change)

    monkeypatch.setattr(Copy, "apply", skipping)
    assert main([*WORDS, "--directory", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().out
    assert "The run FAILED." in shown
    assert "social: regions FR: population" in shown


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").touch()
    assert main([*WORDS, "--directory", str(tmp_path)]) == 2
    assert "not the demo's" in capsys.readouterr().err


@pytest.mark.usefixtures("_small_world")
def test_a_broker_that_cannot_start_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.demo.run.BROKER_SETTINGS", {"brokerNam": "a"})
    assert main([*WORDS, "--directory", str(tmp_path / "out")]) == 1
    complaint = capsys.readouterr().err
    # Other lines may be of a broker that another test runs in this process.
    assert sum("demo: ended with code 2" in line for line in complaint.splitlines()) == 1
    assert "Traceback" not in complaint


def test_what_is_missing_is_named_with_the_way_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert demo.what_is_missing(spark=False) == ""
    monkeypatch.setattr("examples.demo.__main__.shutil.which", lambda _: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "openjdk-17-jre-headless" in demo.what_is_missing(spark=True)
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    assert "make setup" in demo.what_is_missing(spark=True)
    assert main([*WORDS, "--directory", str(tmp_path / "out")]) == 2
    assert "pycountry" in capsys.readouterr().err
