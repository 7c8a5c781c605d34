"""Two stores, compared."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs import verify
from cometmq.spark.options import BadOption
from tests.store.stores import fill, log_of, opened, put

pytestmark = pytest.mark.spark


def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A store and its copy."""
    store = opened(tmp_path / "a")
    fill(store, 300)
    store.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return tmp_path / "a", tmp_path / "b"


def compared(spark: SparkSession, one: Path, other: Path) -> verify.VerifyReport:
    told: list[tuple[str, int, int]] = []
    options = verify.VerifyOptions(stores=(str(one),), other_stores=(str(other),), limit=5)
    report = verify.run(spark, options, lambda *progress: told.append(progress))
    assert told[-1][1] == told[-1][2] > 0
    return report


def test_the_same(spark: SparkSession, tmp_path: Path) -> None:
    report = compared(spark, *pair(tmp_path))
    assert report == verify.VerifyReport(True, 300, 300, 0, 0, 0, ())


def test_another_body_and_messages_of_one_side(spark: SparkSession, tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    store = opened(other)
    put(store, "more", 1, b"only here")
    store.commit()
    record = log_of(store)[40]
    store.close()
    path = other / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[record.physical_offset + 11] ^= 1
    path.write_bytes(raw)
    report = compared(spark, one, other)
    assert not report.ok
    assert (report.messages, report.other_messages) == (300, 301)
    assert (report.differing, report.missing, report.other_missing) == (2, 1, 0)
    crc = (record.body_crc ^ 1 << 31) - (1 << 31)
    only, changed = report.differences
    assert only == verify.Difference("missing", "", "more", 1, 0, 0, 1, None, only.other_crc)
    assert (changed.kind, changed.queue, changed.offset) == (
        "crc", record.queue_id, record.queue_offset,
    )  # fmt: skip
    assert (changed.crc, changed.other_crc) == (crc, crc ^ 1)


def test_nothing_to_compare_with() -> None:
    with pytest.raises(BadOption, match="the other side is missing"):
        verify.VerifyOptions(stores=("/a",)).other()
