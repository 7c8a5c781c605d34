"""Files that stand in for others."""

from pathlib import Path

from cometmq.spark.tables.batchlog import BatchLog, DataFile, Replaced, Stand, current, exchange
from cometmq.spark.tables.folders import LocalFolder
from cometmq.spark.tables.sink import Mark


def test_what_was_exchanged_counts_and_queries_write_on(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    log = BatchLog(folder)
    log.commit(Mark("q", 0), [DataFile("a", 1), DataFile("b", 2)])
    first = current(folder)
    assert first == Replaced()
    assert exchange(folder, first, ["a", "b"], [Stand("ab", 3)])
    log.commit(Mark("q", 1), [DataFile("c", 4)])
    assert [file.name for file in log.files()] == ["ab", "c"]
    assert log.last("q") == 1

    assert not exchange(folder, first, ["c"], [Stand("lost", 4)])
    assert exchange(folder, current(folder), ["ab", "c"], [Stand("abc", 7)])
    assert log.files() == [DataFile("abc", 7)]
    assert current(folder).gone == ["a", "ab", "b", "c"]
