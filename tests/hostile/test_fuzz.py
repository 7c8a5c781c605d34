"""The fuzzer finds planted faults, and for a seeded minute nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.rules import ROOT
from tests.hostile import fuzz, grammar
from tests.hostile.parsers import Parser


@pytest.mark.operation
@pytest.mark.parametrize(("target", "seconds"), [("core", 20), ("handlers", 40)])
def test_a_seeded_run_finds_nothing(target: str, seconds: int, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.hostile.fuzz", target, "--seconds", str(seconds)]
    words += ["--seed", "17", "--corpus", str(tmp_path / "corpus")]
    # Times are looked at: tracing what is covered would take most of them.
    plain = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    done = subprocess.run(
        words, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=seconds + 200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]


def slow(data: bytes) -> object:
    return [data for _ in range(15_000_000)]


def broken(data: bytes) -> object:
    return data[200]


@pytest.mark.parametrize("planted", [slow, broken])
def test_a_planted_fault_in_the_core_is_found(planted: object) -> None:
    assert callable(planted)
    parsers = [Parser("planted", planted, grammar.JSON)]
    with pytest.raises(fuzz.Finding):
        fuzz.fuzz(fuzz.core_target(parsers), fuzz.core_seeds(parsers), 20, 1)


def test_an_unexpected_error_of_a_handler_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = fuzz.Served(tmp_path)
    try:
        seed = fuzz.handler_seeds()[0]
        served.run(seed)
        monkeypatch.setattr(served, "surprises", fuzz.Surprises())
        served.surprises.found.append("handler failed")
        with pytest.raises(fuzz.Finding, match="handler failed"):
            served.run(seed)
    finally:
        served.stop()
