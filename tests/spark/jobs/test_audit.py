"""Whole stores looked through by Spark: what verifying finds, neither more nor less."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs import audit
from cometmq.spark.options import BadOption
from cometmq.store.tools.verify import verify
from tests.golden import library
from tests.store.stores import config, fill, log_of, opened

pytestmark = pytest.mark.spark


def audited(spark: SparkSession, *roots: Path) -> audit.AuditReport:
    return audit.run(spark, audit.AuditOptions(stores=tuple(map(str, roots)), full=True))


def test_sound_stores(spark: SparkSession, tmp_path: Path) -> None:
    java = library.unpack_store("clean", tmp_path)
    store = opened(tmp_path / "ours")
    fill(store, 500)
    store.close()
    told: list[tuple[str, int, int]] = []
    options = audit.AuditOptions(stores=(str(java), str(tmp_path / "ours")))
    report = audit.run(spark, options, lambda *progress: told.append(progress))
    assert report.ok
    assert report.records == 459 + 500
    assert report.entries == 459 + 500
    assert report.index_entries > 1_000
    assert {stage for stage, _, _ in told} == {"read queues", "read index", "check file"}


def test_planted_faults_are_told_as_verifying_tells_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 700)
    records = log_of(store)
    store.close()
    body, chain = records[20], records[90]
    log = root / "commitlog"
    _flip(log / f"{0:020d}", body.physical_offset + 90)
    _flip(log / f"{16_384:020d}", chain.physical_offset - 16_384 + 2)
    _flip(root / "consumequeue" / "t" / "1" / f"{0:020d}", 20 * 7 + 6)
    index = min((root / "index").iterdir())
    _flip(index, 40 + 64 * 4 + 20 * 9 + 2)
    report = audited(spark, root)
    expected = verify(config(root), processes=1, full=True)
    assert not report.ok
    assert [(each.kind, each.path, each.offset, each.count) for each in report.findings] == [
        (each.kind, each.path, each.offset, each.count) for each in expected.findings
    ]
    damage = {each.kind: each for each in report.findings if each.severity == "damage"}
    assert damage["body"].offset == body.physical_offset
    assert damage["gap"].offset == chain.physical_offset
    assert {kind.split("-")[0] for kind in damage} >= {"queue", "index", "body", "gap"}


def _flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x10
    path.write_bytes(raw)


def test_no_store() -> None:
    with pytest.raises(BadOption, match="give a store"):
        audit.run(None, audit.AuditOptions())  # type: ignore[arg-type]
