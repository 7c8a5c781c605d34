"""Files that replace others."""

from pathlib import Path

from cometmq.spark.tables.datafiles import LocalFolder
from cometmq.spark.tables.parquet import BatchLog, DataFile, Replaced, replace_files, replaced_files
from cometmq.spark.tables.sink import Mark


def test_what_was_exchanged_counts_and_queries_write_on(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    log = BatchLog(folder)
    log.commit(Mark("q", 0), [DataFile("a", 1), DataFile("b", 2)])
    first = replaced_files(folder)
    assert first == Replaced()
    assert replace_files(folder, first, ["a", "b"], [DataFile("ab", 3)])
    log.commit(Mark("q", 1), [DataFile("c", 4)])
    assert [file.name for file in log.files()] == ["ab", "c"]
    assert log.last("q") == 1

    assert not replace_files(folder, first, ["c"], [DataFile("lost", 4)])
    assert replace_files(folder, replaced_files(folder), ["ab", "c"], [DataFile("abc", 7)])
    assert log.files() == [DataFile("abc", 7)]
    assert replaced_files(folder).gone == ["a", "ab", "b", "c"]
