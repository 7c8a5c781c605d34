"""The seeds that every CI run goes through, and that a seed is always the same run."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cometmq.broker.app import Broker
from cometmq.store.messagestore import MessageStore
from tests.apart import run_apart
from tests.simulation.cluster.invariants import Violated
from tests.simulation.cluster.loop import SimLoop
from tests.simulation.cluster.run import Run, run

#: Minutes of simulated clusters: more than the unit tests have.
pytestmark = pytest.mark.cluster

SEEDS = 300
AT_ONCE = 50
LIMIT_S = 120


@pytest.fixture(autouse=True)
def collected_at_the_end() -> Iterator[None]:
    """Collect garbage once at the end, because automatic collection takes a third of the time."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_seeds(first: int) -> None:
    stop = str(first + AT_ONCE)
    said = run_apart("tests.simulation.cluster.seeded", str(first), stop, limit_s=LIMIT_S)
    assert f"{AT_ONCE} seeds passed" in said


def test_a_seed_is_the_same_run_whatever_python_does_with_hashes() -> None:
    seeds = range(1000, 1008)
    here = [run(seed).digest for seed in seeds]
    assert here == [run(seed).digest for seed in reversed(seeds)][::-1]
    program = (
        "from tests.simulation.cluster.run import run\n"
        f"print(*(run(seed).digest for seed in {list(seeds)}))"
    )
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        )
        assert there.stdout.split() == here


def test_a_run_leaves_nothing_in_memory() -> None:
    # What other tests of this process still hold, as a failed one does, is none of this run.
    before = in_memory()
    run(1000)
    left = [each for each in in_memory() if not any(each is known for known in before)]
    assert left == []


def in_memory() -> list[object]:
    """What a run is made of, as far as garbage collection has left it."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Broker | MessageStore | SimLoop)]


def test_a_violation_stops_the_run_and_says_how_to_run_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Run._be_struck

    async def be_struck(self: Run) -> None:
        self.watch.violate("order", "planted")
        await real(self)

    monkeypatch.setattr(Run, "_be_struck", be_struck)
    with pytest.raises(Violated, match="order: planted") as caught:
        run(3)
    assert caught.value.name == "order"
    assert "python -m tests.simulation 3" in caught.value.__notes__[-1]
    assert "VIOLATED order" in caught.value.__notes__[0].splitlines()[-1]
