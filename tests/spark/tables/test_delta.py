"""The Delta table: each batch once, beside other writers, as other readers see it."""

import datetime
import json
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.delta import DeltaLakeTable, partition_values
from cometmq.spark.tables.sink import NO_BATCH, ColumnsDiffer, Mark

pytestmark = pytest.mark.spark


def rows_of(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2).selectExpr(
        "id",
        "if(id % 3 = 0, null, concat(id % 3, ' =/ü%')) as part",
        "timestamp_micros(id) as at",
        "map('a', cast(id as string)) as more",
    )


def ids(root: Path) -> list[int]:
    """As deltalake reads them."""
    return sorted(DeltaTable(root).to_pyarrow_table(columns=["id"]).column("id").to_pylist())


def attempts(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "data").iterdir())


def test_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "ü t"
    table = DeltaLakeTable(str(root))
    assert table.last(spark, "q") == NO_BATCH
    assert table.apply(rows_of(spark, 0, 4), Mark("q", 0))
    assert not table.apply(rows_of(spark, 0, 4), Mark("q", 0))
    assert table.apply(rows_of(spark, 4, 4), Mark("q", 1))
    assert not DeltaLakeTable(str(root)).apply(rows_of(spark, 4, 4), Mark("q", 1))
    assert table.apply(rows_of(spark, 4, 6), Mark("other", 0))
    assert ids(root) == list(range(6))
    assert (table.last(spark, "q"), table.last(spark, "other")) == (1, 0)
    assert DeltaTable(root).transaction_version("q") == 1


def test_partitions(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaLakeTable(str(tmp_path), partition_by=["part"])
    table.apply(rows_of(spark, 0, 6), Mark("q", 0))
    read = DeltaTable(tmp_path).to_pyarrow_table().sort_by("id").to_pylist()
    found = [(row["id"], row["part"], dict(row["more"])) for row in read]
    assert found == [(n, None if n % 3 == 0 else f"{n % 3} =/ü%", {"a": str(n)}) for n in range(6)]
    assert read[5]["at"] == datetime.datetime(1970, 1, 1, microsecond=5, tzinfo=datetime.UTC)
    with pytest.raises(SettingsError, match=r"is partitioned by \['part'\]"):
        DeltaLakeTable(str(tmp_path), partition_by=["id"]).apply(rows_of(spark, 6, 7), Mark("q", 1))
    DeltaLakeTable(str(tmp_path)).apply(rows_of(spark, 6, 7), Mark("q", 1))
    assert ids(tmp_path) == list(range(7))


@pytest.mark.parametrize(("column", "said"), [("at", "is timestamp"), ("x", "no column 'x'")])
def test_columns_that_cannot_be_partitions(
    spark: SparkSession, tmp_path: Path, column: str, said: str
) -> None:
    table = DeltaLakeTable(str(tmp_path), partition_by=[column])
    with pytest.raises(SettingsError, match=said):
        table.apply(rows_of(spark, 0, 1), Mark("q", 0))
    assert not (tmp_path / "_delta_log").exists()


def test_partition_values_of_a_name() -> None:
    name = "data/batch=1-q-0/a%3Db=x%2Fy/day=__HIVE_DEFAULT_PARTITION__/part-0.parquet"
    assert partition_values(name, 2) == {"a=b": "x/y", "day": None}
    assert partition_values(name, 0) == {}


def test_statistics_let_readers_pass_files_over(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaLakeTable(str(tmp_path))
    table.apply(rows_of(spark, 0, 4).coalesce(1), Mark("q", 0))
    table.apply(rows_of(spark, 4, 9).coalesce(1), Mark("q", 1))
    log = (tmp_path / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    added = next(each["add"] for each in map(json.loads, log) if "add" in each)
    found = json.loads(added["stats"])
    assert found["numRecords"] == 4
    assert (found["minValues"]["id"], found["maxValues"]["id"]) == (0, 3)
    # A file whose bounds rule it out is not opened: it may as well be gone.
    (tmp_path / added["path"].replace("%3D", "=")).unlink()
    dataset = DeltaTable(tmp_path).to_pyarrow_dataset()
    assert dataset.to_table(filter=pc.field("id") > 3).num_rows == 5


def test_other_writers_do_not_disturb(spark: SparkSession, tmp_path: Path) -> None:
    """One appends, compacts and deletes between our reading of the table and our commit."""
    table = DeltaLakeTable(str(tmp_path))
    table.apply(rows_of(spark, 0, 2), Mark("q", 0))
    own = DeltaTable(tmp_path)
    write_deltalake(own, own.to_pyarrow_table(), mode="append")
    DeltaTable(tmp_path).optimize.compact()
    DeltaTable(tmp_path).delete("id = 0")
    assert table.apply(rows_of(spark, 2, 4), Mark("q", 1))
    assert ids(tmp_path) == [1, 1, 2, 3]


def test_a_driver_that_was_thought_dead_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both have seen that batch 1 is not there; the second to commit learns that it is."""
    first, second = DeltaLakeTable(str(tmp_path)), DeltaLakeTable(str(tmp_path))
    first.apply(rows_of(spark, 0, 2), Mark("q", 0))
    assert second.last(spark, "q") == 0
    assert first.write(rows_of(spark, 2, 4), Mark("q", 1))
    assert not second.write(rows_of(spark, 2, 4), Mark("q", 1))
    assert ids(tmp_path) == [0, 1, 2, 3]
    assert len(attempts(tmp_path)) == 2


def test_a_conflict_is_tried_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake gives up on a commit; the next try, on the newest version, succeeds."""
    from deltalake.exceptions import CommitFailedError

    table = DeltaLakeTable(str(tmp_path))
    table.apply(rows_of(spark, 0, 2), Mark("q", 0))
    real = DeltaTable.create_write_transaction
    failures = iter([True, True, False])

    def refused(*args: object, **words: object) -> None:
        if next(failures):
            raise CommitFailedError("others were faster")
        real(*args, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)
    assert table.apply(rows_of(spark, 2, 4), Mark("q", 1))
    assert ids(tmp_path) == [0, 1, 2, 3]


def test_other_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaLakeTable(str(tmp_path))
    table.apply(rows_of(spark, 0, 2), Mark("q", 0))
    with pytest.raises(ColumnsDiffer, match="column 'more' is missing"):
        table.apply(rows_of(spark, 2, 4).drop("more"), Mark("q", 1))
    table.apply(rows_of(spark, 2, 4).select("more", "at", "part", "id"), Mark("q", 1))
    assert ids(tmp_path) == [0, 1, 2, 3]


def test_what_crashed_attempts_left(spark: SparkSession, tmp_path: Path) -> None:
    """That of the batch itself goes with it; all else with Delta's own vacuum."""
    table = DeltaLakeTable(str(tmp_path))
    table.apply(rows_of(spark, 0, 2), Mark("q", 0))
    for name in ("00000001-q-0badf00d", "00000000-q-0badf00d", "00000007-r-0badf00d"):
        rows_of(spark, 0, 2).write.parquet(str(tmp_path / "data" / f"batch={name}"))
    table = DeltaLakeTable(str(tmp_path))
    table.apply(rows_of(spark, 2, 4), Mark("q", 1))
    assert "batch=00000001-q-0badf00d" not in attempts(tmp_path)
    assert len(attempts(tmp_path)) == 4
    removed = [name for name in table.clean(spark, 0) if name.endswith(".parquet")]
    assert {name.split("/")[1] for name in removed} == {
        "batch=00000000-q-0badf00d",
        "batch=00000007-r-0badf00d",
    }
    assert ids(tmp_path) == [0, 1, 2, 3]
