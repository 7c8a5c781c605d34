"""The command of deep runs."""

from pathlib import Path

import pytest

from tests.simulation import __main__ as command
from tests.simulation.cluster.invariants import Violated
from tests.simulation.cluster.run import Report


def fake(seed: int) -> Report:
    """Return a report, or raise a violation in every third seed."""
    if seed % 3 == 2:
        error = Violated("order", f"of seed {seed}")
        error.add_note(f"the trace of {seed}")
        raise error
    return Report(seed, f"digest{seed}", 200, 90, 1, 5_000, 0, 10_000, ("one line",))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds that were run."""
    seeds: list[int] = []

    def run(seed: int) -> Report:
        seeds.append(seed)
        return fake(seed)

    monkeypatch.setattr(command, "run", run)
    return seeds


def test_one_seed(runs: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["7"]) == 0
    assert runs == [7]
    assert "digest7" in capsys.readouterr().out
    assert command.main(["7", "--trace"]) == 0
    assert "one line" in capsys.readouterr().out


def test_many_seeds_say_what_they_found(
    runs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["0:400"]) == 100
    out = capsys.readouterr().out
    assert len(runs) == 400
    assert "seed 398 VIOLATED order: of seed 398\nthe trace of 398" in out
    assert "267 of 400 seeds passed, 133 violated" in out
    assert command.main(["0:9", "--stop"]) == 1
    assert runs[400:] == [0, 1, 2]


def test_a_deep_run_goes_on_from_its_ledger(
    runs: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = str(tmp_path / "ledger")
    assert command.main(["0:5", "--ledger", ledger]) == 1
    assert command.main(["0:8", "--ledger", ledger]) == 2
    assert runs == list(range(8))
    assert "6 of 8 seeds passed, 2 violated" in capsys.readouterr().out
