"""The fuzzer finds planted faults, and for a seeded minute nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.architecture.rules import ROOT
from tests.conftest import cores
from tests.hostile import core, fuzz, grammar, pumped
from tests.hostile.bothcores import COMPARED, Compared
from tests.hostile.finding import Finding
from tests.hostile.parsers import Parser


@pytest.mark.operation
@pytest.mark.parametrize(("target", "seconds"), [("core", 20), ("handlers", 30), ("queues", 10)])
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


def campaign_of(
    planted: Callable[[bytes], object], refuses: tuple[type[Exception], ...] = ()
) -> fuzz.Campaign:
    parsers = [Parser("planted", planted, grammar.JSON, refuses=refuses)]
    return fuzz.Campaign(
        core.core_target(parsers),
        core.core_seeds(parsers),
        lambda data, most, chance: core.other_input(parsers, data, chance)[:most],
        [],
    )


@pytest.mark.parametrize("planted", [slow, broken])
def test_a_planted_fault_in_the_core_is_found(planted: object) -> None:
    assert callable(planted)
    with pytest.raises(Finding):
        fuzz.fuzz(campaign_of(planted), 20, 1)


def quadratic(data: bytes) -> object:
    """In the length of a run of `[`, as many patterns are."""
    run = data[: len(data) - len(data.lstrip(b"["))]
    return [run[at:].count(b"[") for at in range(len(run)) for _ in range(32)]


def deep(data: bytes) -> object:
    """Fails for many levels only."""
    return json.loads(data or b"0")


@pytest.mark.parametrize(
    ("planted", "kind"), [(quadratic, "not linear|is slow"), (deep, "RecursionError")]
)
def test_what_only_long_texts_show_is_found(planted: object, kind: str) -> None:
    assert callable(planted)
    with pytest.raises(Finding, match=kind):
        fuzz.fuzz(campaign_of(planted, (ValueError,)), 150, 1)


def test_an_unexpected_error_of_a_handler_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = fuzz.Served(tmp_path)
    try:
        seed = fuzz.handler_seeds()[0]
        served.run(seed)
        monkeypatch.setattr(served, "surprises", fuzz.Surprises())
        served.surprises.found.append(Finding("handler failed"))
        with pytest.raises(Finding, match="handler failed"):
            served.run(seed)
    finally:
        served.stop()


@pytest.mark.parametrize("compared", COMPARED, ids=lambda compared: compared.name)
def test_both_cores_make_the_same_of_texts_that_went_the_fast_way(compared: Compared) -> None:
    parsers = [Parser(compared.name, compared, compared.grammar, 2_000, (), factor=60)]
    target, chance, before = core.core_target(parsers), Random(5), compared.fast
    wholes = [
        b"\0" + pumped.Pumped(b"", b"", whole, b"").packed() for whole in compared.grammar.wholes
    ]
    for whole in wholes:
        target(whole)
    assert compared.fast - before == len(wholes)
    for number in range(300):
        data = chance.choice(wholes)
        for _ in range(number % 4):
            data = core.other_input(parsers, data, chance)
        target(data)
    assert compared.fast - before > 75


def test_cores_that_differ_are_found() -> None:
    compared = Compared(
        "planted", lambda made, data: (made.name * (b"[" in data), True), grammar.JSON
    )
    if len(cores()) > 1:
        with pytest.raises(Finding, match="CoresDiffer"):
            fuzz.fuzz(campaign_of(compared), 20, 1)
