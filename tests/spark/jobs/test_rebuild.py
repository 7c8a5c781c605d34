"""Queues and index made again from the log alone."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs import rebuild
from cometmq.spark.options import BadOption
from tests.golden import library
from tests.store.stores import SMALL, fill, log_of, opened, put

pytestmark = pytest.mark.spark


def queue_files(root: Path) -> dict[str, bytes]:
    folder = root / "consumequeue"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def index_contents(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def test_as_our_broker_wrote_them(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 700)
    for number in range(30):
        put(store, "delayed", number % 2, b"body", tag="x", keys=(f"u{number}", "a", "b"))
    store.commit()
    store.close()
    told: list[tuple[str, int, int]] = []
    options = rebuild.RebuildOptions(store=str(root), target=str(tmp_path / "new"))
    report = rebuild.run(spark, options, lambda *progress: told.append(progress))
    assert report.ok
    assert (report.records, report.entries, report.queues) == (730, 730, 5)
    assert queue_files(tmp_path / "new") == queue_files(root)
    assert index_contents(tmp_path / "new") == index_contents(root)
    assert report.index_files == len(index_contents(root)) > 5
    assert {stage for stage, _, _ in told} == {"read log", "write queues", "write index"}
    assert not (tmp_path / "new" / "aside").exists()
    with pytest.raises(BadOption, match="give a new directory"):
        rebuild.run(spark, options)


def test_as_a_java_broker_wrote_them(spark: SparkSession, tmp_path: Path) -> None:
    root = library.unpack_store("clean", tmp_path)
    settings = library.stores()["clean"]["settings"]
    alone = tmp_path / "alone"
    shutil.copytree(root / "commitlog", alone / "commitlog")
    options = rebuild.RebuildOptions(
        store=str(alone),
        target=str(tmp_path / "new"),
        queue_file_bytes=settings["mappedFileSizeConsumeQueue"],
        index_slots=settings["maxHashSlotNum"],
        index_entries=settings["maxIndexNum"],
    )
    report = rebuild.run(spark, options)
    assert report.ok
    assert queue_files(tmp_path / "new") == {
        name: raw for name, raw in queue_files(root).items() if any(raw)
    }
    assert index_contents(tmp_path / "new") == index_contents(root)


def test_gaps_are_told_and_become_holes(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 100, queues=1)
    bad = log_of(store)[40]
    store.close()
    path = root / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[bad.physical_offset + 5] ^= 1
    path.write_bytes(raw)
    report = rebuild.run(
        spark, rebuild.RebuildOptions(store=str(root), target=str(tmp_path / "new"))
    )
    assert not report.ok
    assert (report.records, report.entries) == (99, 99)
    (gap,) = report.gaps
    assert (gap.start, gap.stop - gap.start) == (bad.physical_offset, bad.size_bytes)
    old, new = (b"".join(queue_files(at).values()) for at in (root, tmp_path / "new"))
    assert new[: 20 * 40] == old[: 20 * 40]
    assert new[20 * 41 : 20 * 100] == old[20 * 41 : 20 * 100]
    assert new[20 * 40 : 20 * 41] == bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)


def test_what_is_required() -> None:
    assert SMALL.queue_file_bytes
    with pytest.raises(BadOption, match="store"):
        rebuild.run(None, rebuild.RebuildOptions())  # type: ignore[arg-type]
