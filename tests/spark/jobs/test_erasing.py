"""Archives without the content of some messages: each row keeps its place, nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from cometmq.message.record import COMPRESSED
from cometmq.spark.jobs import archive, compact, erasing, redact
from cometmq.spark.jobs.archive import CountDiffers, table_at
from cometmq.spark.jobs.inputs import read_archive
from cometmq.spark.options import BadOption
from cometmq.spark.schema import COLUMNS
from cometmq.spark.tables.sink import Mark

pytestmark = pytest.mark.spark

Kind = Literal["parquet", "delta"]
KINDS: tuple[Kind, ...] = ("parquet", "delta")
CHANGED = {"keys", "tags", "body", "properties", "flag", "sys_flag", "body_crc"}


def planted(spark: SparkSession, count: int, start: int = 0) -> DataFrame:
    """Messages of two topics, one a minute, of customers 0 to 9."""
    columns = [f.lit(None).cast(each.spark).alias(each.name) for each in COLUMNS]
    customer = f.concat(f.lit("customer-"), f.col("id") % 10, f.lit("-x"))
    known = {
        "topic": f.when(f.col("id") % 3 == 0, "%RETRY%shop").otherwise("orders"),
        "broker_name": f.lit("broker-a"),
        "queue_id": f.lit(0),
        "queue_offset": f.col("id"),
        "physical_offset": f.col("id") * 100,
        "msg_id": f.concat(f.lit("id-"), f.col("id")),
        "keys": f.when(f.col("id") % 5 != 4, f.concat_ws(" ", customer, f.lit("all"))),
        "tags": f.lit("paid"),
        "body": f.encode(f.concat(f.lit("body of "), customer), "utf-8"),
        "properties": f.create_map(
            f.lit("UNIQ_KEY"), f.concat(f.lit("id-"), f.col("id")), f.lit("name"), customer,
            f.lit("RETRY_TOPIC"), f.lit("orders"),
        ),
        "sys_flag": f.lit(COMPRESSED | 4),
        "flag": f.lit(9),
        "body_crc": f.lit(77),
        "store_timestamp": f.timestamp_millis(f.col("id") * 60_000),
    }  # fmt: skip
    source = spark.range(start, start + count, numPartitions=4)
    rows = source.select(*columns, "id")
    return rows.select(
        *(known.get(each.name, f.col(each.name)).alias(each.name) for each in COLUMNS)
    )


def made(spark: SparkSession, path: Path, kind: Kind) -> None:
    options = archive.ArchiveOptions(target=str(path), format=kind)
    archiver = archive.Archiver(table_at(options.target, kind, hours=False), options)
    for batch in range(3):
        archiver.add(planted(spark, 40, 40 * batch), Mark("q", batch))


def held(spark: SparkSession, path: Path) -> dict[int, Row]:
    return {row.queue_offset: row for row in read_archive(spark, str(path)).collect()}


def plain_texts(path: Path, left: tuple[str, ...] = ()) -> bytes:
    """All data files but those ``left``, decoded: pages of Parquet are compressed."""
    import pyarrow.parquet as pq

    files = [each for each in path.rglob("*.parquet") if str(each.relative_to(path)) not in left]
    return repr([pq.read_table(each, partitioning=None).to_pylist() for each in files]).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_the_messages_of_a_key(spark: SparkSession, tmp_path: Path, kind: Kind) -> None:
    made(spark, tmp_path, kind)
    before = held(spark, tmp_path)
    names = {path.name for path in tmp_path.rglob("*.parquet")}
    keys = ("customer-3-x", "id-7", "nobody")

    def job(*, in_place: bool, **wanted: Any) -> redact.RedactReport:
        options = redact.RedactOptions(target=str(tmp_path), keys=keys, in_place=in_place, **wanted)
        return redact.run(spark, options)

    counted = job(in_place=False)
    assert (counted.ok, counted.erased, counted.messages) == (True, False, 13)
    assert {each.topic: each.messages for each in counted.topics} == {"orders": 9, "%RETRY%shop": 4}
    assert {path.name for path in tmp_path.rglob("*.parquet")} == names
    done = job(in_place=True)
    assert (done.erased, done.messages, done.files) == (True, 13, counted.files)
    after = held(spark, tmp_path)
    assert after.keys() == before.keys()
    for at, old in before.items():
        new = after[at]
        if at % 10 != 3 and at != 7:
            assert new == old
            continue
        # Tags and ids may not be null here: all planted messages have them.
        assert (new["keys"], new.tags, bytes(new.body)) == (None, "", b"")
        assert (new.flag, new.body_crc, new.sys_flag) == (0, 0, 4)
        kept = {"RETRY_TOPIC": "orders", "COMETMQ_ERASED": "redacted"}
        assert new.properties == (kept if at == 7 else kept | {"UNIQ_KEY": f"id-{at}"})
        assert new.msg_id == ("" if at == 7 else f"id-{at}")
        same = set(before[at].asDict()) - CHANGED - {"msg_id"}
        assert {name: new[name] for name in same} == {name: old[name] for name in same}
    assert b"customer-3-x" not in plain_texts(tmp_path)
    assert b"'id-7'" not in plain_texts(tmp_path)
    again = job(in_place=True)
    assert (again.messages, again.files) == (0, 0)
    assert again.left == done.left
    assert all(name.startswith("_delta_log/") for name in done.left)
    assert done.ok is (not done.left)
    if kind == "parquet":
        assert done.left == ()
    # The archive goes on, and its small files are joined.
    options = archive.ArchiveOptions(target=str(tmp_path), format=kind)
    archiver = archive.Archiver(table_at(options.target, kind, hours=False), options)
    archiver.add(planted(spark, 40), Mark("q", 0))
    archiver.add(planted(spark, 10, 120), Mark("q", 3))
    archive.run(spark, archive.ArchiveOptions(target=str(tmp_path), compact=True))
    assert {at: row for at, row in held(spark, tmp_path).items() if at < 120} == after
    last = job(in_place=True)
    assert last.messages == 1
    # A Delta table keeps the files that were joined: the report names them.
    assert b"customer-3-x" not in plain_texts(tmp_path, last.left)
    assert (b"customer-3-x" in plain_texts(tmp_path)) is (kind == "delta")
    assert last.ok is (kind == "parquet")


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_newest_of_each_key_keeps_its_content(
    spark: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    made(spark, tmp_path, kind)
    before = held(spark, tmp_path)
    options = compact.CompactOptions(target=str(tmp_path), topic="orders", in_place=True)
    newest: dict[str, int] = {}
    for at, row in sorted(before.items()):
        if row.topic == "orders" and row["keys"]:
            newest[row["keys"]] = at
    replaced = {
        at
        for at, row in before.items()
        if row.topic == "orders" and row["keys"] and newest[row["keys"]] != at
    }
    counting = compact.CompactOptions(target=str(tmp_path), topic="orders")
    assert compact.run(spark, counting).messages == len(replaced)
    assert compact.run(spark, options).messages == len(replaced)
    after = held(spark, tmp_path)
    assert {at for at, row in after.items() if row != before[at]} == replaced
    assert {after[at].properties["COMETMQ_ERASED"] for at in replaced} == {"compacted"}
    assert compact.run(spark, options).messages == 0


def test_only_messages_sent_to_a_topic(spark: SparkSession, tmp_path: Path) -> None:
    made(spark, tmp_path, "parquet")
    for topic, count in (("orders", 12), ("%RETRY%shop", 4), ("other", 0)):
        options = redact.RedactOptions(
            target=str(tmp_path), keys=("customer-3-x",), topics=(topic,)
        )
        assert redact.run(spark, options).messages == count


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_ends_before_the_exchange_or_after_it(
    spark: SparkSession, tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(spark, tmp_path, kind)
    before = held(spark, tmp_path)
    options = redact.RedactOptions(target=str(tmp_path), keys=("customer-3-x",), in_place=True)
    with monkeypatch.context() as patched:
        patched.setattr(erasing, "balanced", lambda rows, *_: rows.limit(1))
        with pytest.raises(CountDiffers):
            redact.run(spark, options)
    assert held(spark, tmp_path) == before
    files = erasing.files_of(spark, str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(type(files), "exchange", lambda *_: False)
        with pytest.raises(erasing.ArchiveChanged):
            redact.run(spark, options)
    assert held(spark, tmp_path) == before
    removed = type(files.folder).remove
    with monkeypatch.context() as patched:

        def killed(folder: Any, name: str) -> None:
            raise KeyboardInterrupt

        patched.setattr(type(files.folder), "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            redact.run(spark, options)
    assert type(files.folder).remove is removed
    redact.run(spark, options)
    after = held(spark, tmp_path)
    assert {at for at, row in after.items() if row != before[at]} == set(range(3, 120, 10))
    if kind == "parquet":
        assert b"customer-3-x" not in plain_texts(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_another_run_has_replaced_the_files(
    spark: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    made(spark, tmp_path, kind)
    files = erasing.files_of(spark, str(tmp_path))
    options = redact.RedactOptions(target=str(tmp_path), keys=("customer-3-x",), in_place=True)
    redact.run(spark, options)
    after = held(spark, tmp_path)
    assert files.exchange(files.names[:1], []) is False
    assert held(spark, tmp_path) == after


def test_words_that_cannot_be_used(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("a\n\n b \na\n")
    assert redact.RedactOptions(target="x", keys=("c",), keys_file=str(path)).wanted() == (
        "c", "a", "b",
    )  # fmt: skip
    for keys in ((), ("a b",), ("",), ("~",)):
        with pytest.raises(BadOption, match="key"):
            redact.RedactOptions(target="x", keys=keys).wanted()
    with pytest.raises(BadOption, match="no archive"):
        redact.run(spark, redact.RedactOptions(target=str(tmp_path), keys=("a",)))
