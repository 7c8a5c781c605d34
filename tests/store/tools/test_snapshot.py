"""Snapshots: what they hold opens and is sound; what happens to the store does not reach them."""

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import NoStore, StoreError, StoreLocked
from cometmq.message.record import Record
from cometmq.store.files import PosixFiles, SnapshotFiles
from cometmq.store.messagestore import MessageStore
from cometmq.store.tools.directory import (
    StoreDirectory,
    StoreInUse,
    read_directory,
)
from cometmq.store.tools.snapshot import Snapshot, TargetNotEmpty, restore, snapshot
from tests.golden import library
from tests.store.sealed import FILE_BYTES, seal_all
from tests.store.stores import assert_consistent, config, fill, log_of, opened
from tests.store.tools.verifying import damage, verified, written

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "max_hash_slot_num": 500,
    "max_index_num": 1_500,
    "mapped_file_size_consume_queue": 20 * 500,
}


def taken(root: Path, target: Path, *, copy: bool = False) -> Snapshot:
    return snapshot(config(root, **SETTINGS), str(target), copy=copy)


def started(root: Path) -> MessageStore:
    return opened(root, VirtualClock(), **SETTINGS)


def records_of(root: Path) -> list[Record]:
    store = started(root)
    found = assert_consistent(store)
    store.close()
    return found


def test_a_stopped_store(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    (root / "cometmq-set-aside").mkdir()
    (root / "cometmq-set-aside" / "old").touch()
    made = taken(root, tmp_path / "snap")
    assert not made.running
    assert made.linked_bytes == 2 * FILE_BYTES
    names = {path.name for path in (tmp_path / "snap").iterdir()}
    assert names == {
        "checkpoint", "cometmq-positions.json", "cometmq-seals", "commitlog", "config",
        "consumequeue", "index",
    }  # fmt: skip
    found = verified(tmp_path / "snap")
    assert found.findings == []
    assert (found.records, found.sealed_files) == (2_500, 2)
    links = [path.stat().st_nlink for path in sorted((tmp_path / "snap" / "commitlog").iterdir())]
    assert links == [2, 2, 1]
    assert not (tmp_path / "snap.unfinished").exists()
    assert records_of(tmp_path / "snap") == records_of(root)


def test_what_a_store_does_later_does_not_reach_its_snapshot(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    before = records_of(root)
    taken(root, tmp_path / "snap")
    store = started(root)
    fill(store, 3_000, first=10_000)
    store.close()
    # A recovery that cuts into a linked file.
    for path in sorted((root / "commitlog").iterdir())[2:]:
        path.unlink()
    cut = next(each for each in before if each.physical_offset > FILE_BYTES * 1.5)
    (root / "abort").touch()
    (root / "cometmq-positions.json").unlink()
    store = started(root)
    file = store.log.segments.files[1]
    file.clear_from(cut.physical_offset)
    store.close()
    assert verified(tmp_path / "snap").findings == []
    assert records_of(tmp_path / "snap") == before


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_java_broker_s_store(tmp_path: Path, name: str) -> None:
    root = library.unpack_store(name, tmp_path)
    made = taken(root, tmp_path / "snap")
    assert made.linked_bytes == (2 if name == "clean" else 3) * 65_536 or made.linked_bytes > 0
    found = verified(tmp_path / "snap")
    assert damage(found) == []
    assert found.records == 459
    assert (tmp_path / "snap" / "abort").exists() is (name == "killed")


def test_a_running_store(tmp_path: Path) -> None:
    root = tmp_path / "s"
    clock = VirtualClock()
    store = opened(root, clock, **SETTINGS)
    fill(store, 1_500)
    store.flusher.sync_now()
    seal_all(store)
    fill(store, 700, first=5_000)
    asyncio.run(store.maintenance.flush_entries())
    noted = store.written_offset
    # What comes behind the note is not in the snapshot.
    fill(store, 50, first=9_000)
    made = taken(root, tmp_path / "snap")
    assert made.running
    assert (made.log_start, made.log_end) == (0, noted)
    assert made.linked_bytes == FILE_BYTES
    expected = [each for each in log_of(store) if each.physical_offset < noted]
    fill(store, 500, first=20_000)
    store.close()
    assert damage(verified(tmp_path / "snap")) == []
    snap = started(tmp_path / "snap")
    assert snap.report is not None
    assert snap.report.records == 0
    assert assert_consistent(snap) == expected
    fill(snap, 100, first=50_000)
    snap.close()
    assert verified(tmp_path / "snap").is_sound
    assert verified(root).is_sound


def test_a_running_store_that_notes_less_than_is_synced(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", **SETTINGS)
    fill(store, 500)
    asyncio.run(store.maintenance.flush_entries())
    store.flusher.sync_now()
    fill(store, 300, first=1_000)
    asyncio.run(store.maintenance.flush_entries())
    made = taken(tmp_path / "s", tmp_path / "snap")
    assert made.log_end == store.written_offset
    assert len(records_of(tmp_path / "snap")) == 800
    store.close()


def test_files_that_a_running_broker_drops_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "s", **SETTINGS)
    fill(store, 2_500)
    store.flusher.sync_now()
    asyncio.run(store.maintenance.flush_entries())

    def look_then_drop(*arguments: Any) -> StoreDirectory:
        found = read_directory(*arguments)
        Path(found.log_files[0].path).unlink()
        return found

    monkeypatch.setattr("cometmq.store.tools.snapshot.read_directory", look_then_drop)
    made = taken(tmp_path / "s", tmp_path / "snap")
    assert made.log_start == FILE_BYTES
    store.close()
    records = records_of(tmp_path / "snap")
    assert records[0].physical_offset == FILE_BYTES


def test_a_broker_that_has_noted_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    (tmp_path / "s" / "cometmq-positions.json").unlink(missing_ok=True)
    with pytest.raises(StoreError, match="not recorded yet"):
        taken(tmp_path / "s", tmp_path / "snap")
    assert not (tmp_path / "snap").exists()
    assert not (tmp_path / "snap.unfinished").exists()
    store.close()


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_a_store_without_messages(tmp_path: Path, running: bool) -> None:
    store = opened(tmp_path / "s", **SETTINGS)
    asyncio.run(store.maintenance.flush_entries())
    if not running:
        store.close()
    taken(tmp_path / "s", tmp_path / "snap")
    if running:
        store.close()
    restore(str(tmp_path / "snap"), str(tmp_path / "back"))
    assert verified(tmp_path / "back").is_sound
    assert records_of(tmp_path / "back") == []


def test_copies_instead_of_links(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    made = taken(root, tmp_path / "snap", copy=True)
    assert made.linked_bytes == 0
    assert verified(tmp_path / "snap").findings == []
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "snap" / "commitlog").iterdir())


def test_links_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = written(tmp_path / "s", sealed=True)

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreError, match="--copy"):
        taken(root, tmp_path / "snap")
    assert not (tmp_path / "snap.unfinished").exists()

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="Input/output"):
        taken(root, tmp_path / "snap")


def test_what_is_in_the_way(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(TargetNotEmpty):
        taken(root, tmp_path / "taken")
    with pytest.raises(TargetNotEmpty):
        taken(root, tmp_path / "taken" / "file")
    for inside in (root / "snap", root / "commitlog" / "snap"):
        with pytest.raises(StoreError, match="inside the store"):
            taken(root, inside)
    with pytest.raises(NoStore):
        taken(tmp_path / "none", tmp_path / "snap")
    # An unfinished one is begun again, and an empty directory is fine.
    (tmp_path / "snap.unfinished").mkdir()
    (tmp_path / "snap.unfinished" / "old").touch()
    (tmp_path / "snap").mkdir()
    taken(root, tmp_path / "snap")
    assert verified(tmp_path / "snap").findings == []


def test_a_java_broker_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = written(tmp_path / "s", sealed=False)

    def look_at_java(*arguments: Any) -> StoreDirectory:
        return replace(read_directory(*arguments), holder=4_711)

    monkeypatch.setattr("cometmq.store.tools.snapshot.read_directory", look_at_java)
    with pytest.raises(StoreInUse, match="4711, a Java broker"):
        taken(root, tmp_path / "snap")


def test_a_broker_that_comes_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = written(tmp_path / "s", sealed=False)
    locks: list[int] = []

    def look_then_lock(*arguments: Any) -> StoreDirectory:
        found = read_directory(*arguments)
        locks.append(PosixFiles().lock(str(root / "lock")))
        return found

    monkeypatch.setattr("cometmq.store.tools.snapshot.read_directory", look_then_lock)
    with pytest.raises(StoreLocked):
        taken(root, tmp_path / "snap")
    PosixFiles().close(locks[0])


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_what_is_no_snapshot_is_not_restored(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"there is no snapshot.*{name}"):
        restore(str(tmp_path / name), str(tmp_path / "back"))
    assert not (tmp_path / "back").exists()


def test_a_restore_reports_the_bytes_that_it_copied(tmp_path: Path) -> None:
    for name, size_bytes, at in (("commitlog/0", 8 << 20, 0), ("index/1", 40 << 20, 20 << 20)):
        path = tmp_path / "snap" / name
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.seek(at)
            file.write(b"x" * 10_000)
            file.truncate(size_bytes)
    told: list[int] = []
    copied = restore(str(tmp_path / "snap"), str(tmp_path / "back"), progress=told.append)
    assert 20_000 <= copied <= 20_000 + 4 * 4_096, "a block at most at both ends"
    assert sum(told) == 48 << 20, "progress counts holes, too"


def test_restoring(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    before = records_of(root)
    taken(root, tmp_path / "snap")
    told: list[int] = []
    began: list[int] = []
    copied = restore(str(tmp_path / "snap"), str(tmp_path / "back"), began=began.append,
        progress=told.append,
    )  # fmt: skip
    assert copied > 2 * FILE_BYTES
    assert sum(told) == began[0]
    assert verified(tmp_path / "back").findings == []
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "back" / "commitlog").iterdir())
    assert records_of(tmp_path / "back") == before
    with pytest.raises(TargetNotEmpty):
        restore(str(tmp_path / "snap"), str(tmp_path / "back"))
    assert verified(tmp_path / "snap").findings == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_file_whose_beginning_is_lost_is_in_the_snapshot(tmp_path: Path, number: int) -> None:
    """A lost sector at the beginning of a file does not leave the rest of it out."""
    root = written(tmp_path / "s", sealed=False)
    path = root / "commitlog" / f"{number * FILE_BYTES:020d}"
    content = bytes(512) + path.read_bytes()[512:]
    assert any(content)
    path.write_bytes(content)
    taken(root, tmp_path / "snap")
    names = sorted(each.name for each in (tmp_path / "snap" / "commitlog").iterdir())
    assert names == [f"{base:020d}" for base in range(0, 3 * FILE_BYTES, FILE_BYTES)]
    assert (tmp_path / "snap" / "commitlog" / path.name).read_bytes() == content


class OwnFileSystem(SnapshotFiles):
    """Each directory with ``lost+found`` is a file system's top. Only root may look into that."""

    def names(self, path: str) -> list[str]:
        if os.path.basename(path) == "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().names(path)


def test_a_store_on_a_file_system_of_its_own(tmp_path: Path) -> None:
    """A volume of Kubernetes is one, and so may be the one that a snapshot is restored to."""
    root = written(tmp_path / "s", sealed=False)
    for folder in (root, root / "consumequeue"):
        (folder / "lost+found").mkdir()
    files = OwnFileSystem()
    snapshot(config(root, **SETTINGS), str(tmp_path / "snap"), files)
    assert not [*(tmp_path / "snap").rglob("lost+found")]
    (tmp_path / "back" / "lost+found").mkdir(parents=True)
    restore(str(tmp_path / "snap"), str(tmp_path / "back"), files)
    assert verified(tmp_path / "back").findings == []
    (tmp_path / "back" / "other").touch()
    with pytest.raises(TargetNotEmpty):
        restore(str(tmp_path / "snap"), str(tmp_path / "back"), files)
