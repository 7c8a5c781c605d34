"""Both kinds of folder do the same."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.tables.datafiles import Folder, HadoopFolder, LocalFolder, folder_at


def check_folder(folder: Folder, root: Path) -> None:
    """What every folder must do."""
    assert (folder.names("a"), folder.files("a")) == ([], [])
    with pytest.raises(FileNotFoundError):
        folder.read("a/x.json")
    assert folder.publish("a/x.json", b"one")
    assert not folder.publish("a/x.json", b"two")
    assert folder.publish("a/b/ü %=.json", "öne".encode())
    assert folder.read("a/x.json") == b"one"
    assert folder.read("a/b/ü %=.json").decode() == "öne"
    assert (folder.read_end("a/x.json", 2), folder.read_end("a/x.json", 9)) == (b"ne", b"one")
    with pytest.raises(FileNotFoundError):
        folder.read_end("a/y.json", 1)
    shown = [name for name in folder.names("a") if not name.startswith(".")]
    assert shown == ["b", "x.json"]
    found = [file for file in folder.files("a") if not file.name.endswith(".crc")]
    assert [(file.name, file.size_bytes) for file in found] == [
        ("a/b/ü %=.json", 4),
        ("a/x.json", 3),
    ]
    assert found[1].modified_ms == pytest.approx((root / "a/x.json").stat().st_mtime * 1000, abs=1)
    folder.remove("a/x.json")
    folder.remove("a/x.json")
    assert [file.name for file in folder.files("a") if "x.json" in file.name] == []
    folder.remove("a/b")
    assert folder.files("a/b") == []


def test_local(tmp_path: Path) -> None:
    check_folder(LocalFolder(tmp_path), tmp_path)
    assert folder_at(f"file://{tmp_path}").url("x y%") == f"file://{tmp_path}/x y%"


@pytest.mark.spark
def test_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    check_folder(HadoopFolder(spark, f"file://{tmp_path}"), tmp_path)


@pytest.mark.spark
def test_what_spark_means_by_a_path(spark: SparkSession, tmp_path: Path) -> None:
    for path in (str(tmp_path), f"file://{tmp_path}", f"file:{tmp_path}"):
        found = folder_at(path, spark)
        assert isinstance(found, LocalFolder)
        assert found.url("x") == f"file://{tmp_path}/x"
