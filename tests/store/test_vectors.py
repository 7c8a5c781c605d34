"""numpy comes late: not at a start, not for a few rows, and nobody waits for it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cometmq.message import batch
from cometmq.store.batching import GeneralBatch, prepare
from cometmq.store.uniform import UniformBatch
from cometmq.store.vectors import VECTORS, Vectors
from tests.store.stores import fill, opened
from tests.store.test_batching import QUEUE, shared
from tests.store.test_uniform import alike

FEW_ROWS = """
import sys
from pathlib import Path
from tests.store.stores import assert_consistent, copied, fill, opened

store = opened(Path(sys.argv[1]) / "s")
fill(store, 5)
store.close()
store = opened(Path(sys.argv[1]) / "s")
fill(store, 5, first=5)
assert len(assert_consistent(store)) == 10
store.close()
assert "numpy" not in sys.modules
"""


def test_a_store_with_a_few_messages_does_without_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FEW_ROWS, str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)


def test_whoever_asks_first_starts_it_and_goes_on_without() -> None:
    vectors = Vectors()
    interval_s = sys.getswitchinterval()
    vectors.ready()
    deadline = time.monotonic() + 20
    while not vectors.ready():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert vectors.ready()
    while sys.getswitchinterval() != interval_s:
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Never(Vectors):
    """numpy that is still on its way."""

    def ready(self) -> bool:
        return False


def test_until_it_is_there_batches_go_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = batch.pack(alike(20))
    VECTORS.load()
    assert isinstance(prepare(raw, QUEUE, shared()), UniformBatch)
    assert isinstance(prepare(batch.pack(alike(3)), QUEUE, shared()), GeneralBatch)
    monkeypatch.setattr("cometmq.store.batching.VECTORS", Never())
    assert isinstance(prepare(raw, QUEUE, shared()), GeneralBatch)


def test_index_files_are_the_same_with_it_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    VECTORS.load()
    found = []
    for name in ("with", "without"):
        store = opened(tmp_path / name)
        fill(store, 400, turn=50)
        store.close()
        (*_, newest) = sorted((tmp_path / name / "index").iterdir())
        found.append(newest.read_bytes())
        monkeypatch.setattr("cometmq.store.index.VECTORS", Never())
    assert found[0] == found[1]
