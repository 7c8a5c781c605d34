"""The log of a table's batches: whole entries, folded, one folder a query."""

from pathlib import Path

import pytest

from cometmq.spark.tables.datafiles import LocalFolder
from cometmq.spark.tables.parquet import BatchLog, DataFile, LogUnreadable
from cometmq.spark.tables.sink import NO_BATCH, Mark


def file(number: int) -> DataFile:
    return DataFile(f"data/batch={number:08}-q-00000000/part.parquet", number)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_empty_log(tmp_path: Path) -> None:
    log = BatchLog(LocalFolder(tmp_path))
    assert log.last("q") == NO_BATCH
    assert (log.files(), log.queries(), log.batches("q")) == ([], [], [])


def test_a_batch_is_there_once(tmp_path: Path) -> None:
    log = BatchLog(LocalFolder(tmp_path))
    assert log.commit(Mark("q", 0), [file(0)])
    assert not log.commit(Mark("q", 0), [file(7)])
    assert log.commit(Mark("q", 1), [])
    assert log.files() == [file(0)]
    assert (log.last("q"), log.last("other")) == (1, NO_BATCH)


def test_queries_do_not_meet(tmp_path: Path) -> None:
    log = BatchLog(LocalFolder(tmp_path))
    assert log.commit(Mark("a", 0), [file(0)])
    assert log.commit(Mark("b", 0), [file(1)])
    assert log.queries() == ["a", "b"]
    assert log.files() == [file(0), file(1)]


def test_entries_are_folded(tmp_path: Path) -> None:
    log = BatchLog(LocalFolder(tmp_path), fold=4)
    for number in range(10):
        assert log.commit(Mark("q", number), [file(number)])
        assert log.files() == [file(each) for each in range(number + 1)]
        assert log.last("q") == number
    folder = tmp_path / "_batches" / "q"
    assert names(folder) == ["00000007.all.json", "00000008.json", "00000009.json"]


def test_a_kill_while_folding_repeats_nothing(tmp_path: Path) -> None:
    log = BatchLog(LocalFolder(tmp_path), fold=4)
    for number in range(3):
        log.commit(Mark("q", number), [file(number)])
    folder = tmp_path / "_batches" / "q"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    log.commit(Mark("q", 3), [file(3)])
    for path, data in before.items():
        path.write_bytes(data)
    (folder / "._00000004.json.0badf00d").write_bytes(b"[")
    assert log.files() == [file(each) for each in range(4)]
    log.commit(Mark("q", 4), [file(4)])
    assert log.files() == [file(each) for each in range(5)]


def test_a_torn_entry_is_said(tmp_path: Path) -> None:
    log = BatchLog(LocalFolder(tmp_path))
    log.commit(Mark("q", 0), [file(0)])
    path = tmp_path / "_batches" / "q" / "00000000.json"
    path.write_bytes(path.read_bytes()[:5])
    with pytest.raises(LogUnreadable, match=r"q/00000000\.json is not an entry"):
        log.files()
