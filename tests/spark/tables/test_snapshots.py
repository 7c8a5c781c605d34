"""Versions of a table: whole, or not there."""

from pathlib import Path

from cometmq.spark.tables.snapshots import EMPTY, Manifest, SnapshotTable


def write(table: SnapshotTable, version: int, buckets: dict[int, int]) -> Manifest:
    """Write a version's own buckets, and commit it."""
    for bucket, owner in buckets.items():
        if owner == version:
            folder = table.folder(version) / f"bucket={bucket}"
            folder.mkdir(parents=True)
            (folder / "part.parquet").write_text(f"{version}/{bucket}", encoding="utf-8")
    manifest = Manifest(version, "q", version - 1, buckets, {})
    table.commit(manifest)
    return manifest


def test_an_empty_table(tmp_path: Path) -> None:
    table = SnapshotTable(tmp_path)
    assert table.current() == EMPTY
    assert table.paths(EMPTY) == []


def test_a_version_takes_over_what_it_did_not_write(tmp_path: Path) -> None:
    table = SnapshotTable(tmp_path)
    write(table, 1, {0: 1, 1: 1})
    newest = write(table, 2, {0: 1, 1: 2})
    assert table.current() == newest
    read = [(Path(path) / "part.parquet").read_text() for path in table.paths(newest)]
    assert read == ["1/0", "2/1"]
    assert table.paths(newest, [1, 7]) == [str(table.folder(2) / "bucket=1")]


def test_what_no_kept_version_needs_is_removed(tmp_path: Path) -> None:
    table = SnapshotTable(tmp_path)
    for version in range(1, 6):
        write(table, version, {0: 1, 1: version})
    kept = sorted(path.parent.name + path.name for path in tmp_path.glob("versions/*/bucket=*"))
    assert kept == ["00000001bucket=0", "00000004bucket=1", "00000005bucket=1"]
    assert len(list(tmp_path.glob("manifests/*"))) == 2


def test_files_of_an_unfinished_version_do_not_count(tmp_path: Path) -> None:
    table = SnapshotTable(tmp_path)
    first = write(table, 1, {0: 1})
    unfinished = table.folder(2) / "bucket=0"
    unfinished.mkdir(parents=True)
    assert table.current() == first
    assert [Path(path).parent.name for path in table.paths(first)] == ["00000001"]


def test_a_torn_manifest_is_passed_over(tmp_path: Path) -> None:
    table = SnapshotTable(tmp_path)
    first = write(table, 1, {0: 1})
    (tmp_path / "manifests" / "00000002.json").write_bytes(b'{"version": 2, "qu')
    assert table.current() == first
