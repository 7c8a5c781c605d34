"""Attempts at a batch: their names, and when what others left is looked for."""

from pathlib import Path

from cometmq.spark.tables.datafiles import Attempts, LocalFolder, attempt_of
from cometmq.spark.tables.sink import Mark


def plant(root: Path, name: str) -> Path:
    path = root / "data" / name / "part.parquet"
    path.parent.mkdir(parents=True)
    path.touch()
    return path.parent


def test_an_attempt_is_named_once() -> None:
    attempts = Attempts()
    names = {attempts.begin(Mark("q-1", 7)) for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("batch=00000007-q-1-") for name in names)
    assert attempt_of("data/batch=7-q-1/a=b/part.parquet") == "batch=7-q-1"


def test_leftovers_are_looked_for_after_a_start_and_after_a_failure(tmp_path: Path) -> None:
    folder, attempts = LocalFolder(tmp_path), Attempts()
    asked: list[tuple[str, int]] = []

    def is_dead(name: str, batch: int) -> bool:
        asked.append((name, batch))
        return batch == 3

    dead, other = plant(tmp_path, "batch=00000003-q-0badf00d"), plant(tmp_path, "else")
    alive = plant(tmp_path, "batch=00000002-q-0badf00d")
    plant(tmp_path, "batch=00000003-p-0badf00d")
    attempts.begin(Mark("q", 3))
    attempts.settle(folder, Mark("q", 3), is_dead)
    assert sorted(asked) == [(alive.name, 2), (dead.name, 3)]
    assert not dead.exists()
    assert alive.exists()
    assert other.exists()
    asked.clear()
    attempts.begin(Mark("q", 4))
    attempts.settle(folder, Mark("q", 4), is_dead)
    assert asked == []
    attempts.begin(Mark("q", 5))
    attempts.begin(Mark("q", 5))
    attempts.settle(folder, Mark("q", 5), is_dead)
    assert asked == [(alive.name, 2)]
