"""Store tools on a store whose log lies in several directories."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import NoStore, SettingsError, StoreCorrupt
from cometmq.message.record import Record
from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.layout import LOG_DIRECTORIES, file_name
from cometmq.store.recovery.opening import open_store
from cometmq.store.tools import erasure
from cometmq.store.tools.directory import read_directory
from cometmq.store.tools.erasure import Way
from cometmq.store.tools.inspection import DumpSelection, dump, inspect_store
from cometmq.store.tools.repair import repair, verify_and_plan
from cometmq.store.tools.snapshot import snapshot
from cometmq.store.tools.verify import verify
from tests.golden import library
from tests.store.sealed import FILE_BYTES
from tests.store.stores import assert_consistent, opened
from tests.store.tools.verifying import contents, damage, flip_byte, written

FILES = ReadOnlyFiles()
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "max_hash_slot_num": 500,
    "max_index_num": 1_500,
    "mapped_file_size_consume_queue": 20 * 500,
}


def spread(root: Path, place: Path) -> StoreConfig:
    """Move every second log file to a directory of its own, as a Java broker would have put it."""
    place.mkdir(parents=True)
    log = root / "commitlog"
    for path in sorted(log.iterdir())[1::2]:
        path.rename(place / path.name)
    return StoreConfig(str(root), f"{log},{place}")


def dumped(config: StoreConfig) -> list[Record]:
    return list(dump(config, DumpSelection()))


def test_all_of_it_is_read(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    before = dumped(StoreConfig(str(root)))
    config = spread(root, tmp_path / "other")
    as_it_was = contents(tmp_path)
    found = read_directory(config, FILES)
    assert [file.base for file in found.log_files] == [0, FILE_BYTES, 2 * FILE_BYTES]
    assert found.log_directory == config.store_path_commit_log
    seen = verify(config, FILES, processes=1)
    assert (seen.findings, seen.records, seen.sealed_files) == ([], 2_500, 2)
    assert dumped(config) == before
    info = inspect_store(config)
    assert (info.log_directory, info.warnings) == (config.store_path_commit_log, [])
    assert contents(tmp_path) == as_it_was


def test_a_snapshot_has_one_directory(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    # One of the directories lies in the store: it is no part of what is taken with the rest.
    config = spread(root, root / "commitlog2" / "files")
    (root / "config").mkdir()
    before = dumped(config)
    linked = snapshot(config, str(tmp_path / "linked"))
    assert linked.linked_bytes == 2 * FILE_BYTES
    copied = snapshot(config, str(tmp_path / "copied"), copy=True)
    assert copied.linked_bytes == 0
    shutil.rmtree(root)
    names = {path.name for path in (tmp_path / "copied").iterdir()}
    assert "commitlog2" not in names
    for made in (linked, copied):
        assert verify(StoreConfig(made.path), FILES, processes=1).findings == []
    store = opened(tmp_path / "copied", VirtualClock(), **SIZES)
    assert assert_consistent(store) == before
    store.close()


def test_a_snapshot_of_a_store_that_is_a_directory_of_its_log(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{}")
    (root / "config" / "log").mkdir()
    config = spread(root, tmp_path / "other")
    before = dumped(config)
    for path in (root / "commitlog").iterdir():
        path.rename(root / path.name)
    (root / "commitlog").rmdir()
    for path in (tmp_path / "other").iterdir():
        path.rename(root / "config" / "log" / path.name)
    config = StoreConfig(str(root), f"{root},{root / 'config' / 'log'}")
    assert dumped(config) == before
    made = snapshot(config, str(tmp_path / "copied"), copy=True)
    found = {str(path.relative_to(made.path)) for path in Path(made.path).rglob("0*")}
    logs = {name for name in found if not name.startswith("consumequeue")}
    assert {name for name in logs if not name.startswith("cometmq")} == {
        f"commitlog/{file_name(number * FILE_BYTES)}" for number in range(3)
    }
    assert Path(made.path, "config", "topics.json").exists()
    assert dumped(StoreConfig(made.path)) == before


def test_a_java_broker_s_store_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    for name in ("clean", "killed"):
        root = library.unpack_store(name, tmp_path / name)
        before = dumped(StoreConfig(str(root)))
        config = spread(root, tmp_path / f"{name}-other")
        assert dumped(config) == before
        target = tmp_path / f"{name}-one"
        snapshot(config, str(target))
        assert dumped(StoreConfig(str(target))) == before
        seen = verify(StoreConfig(str(target)), FILES, processes=1)
        assert damage(seen) == []


def test_nothing_inside_a_directory_of_the_log(tmp_path: Path) -> None:
    config = spread(written(tmp_path / "s", sealed=False), tmp_path / "other")
    with pytest.raises(Exception, match="is inside the store"):
        snapshot(config, str(tmp_path / "other" / "snap"))


def test_what_is_missing_or_there_twice(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    config = spread(root, tmp_path / "other")
    second = tmp_path / "other" / file_name(FILE_BYTES)
    stray = tmp_path / "other" / "notes"
    stray.touch()
    assert str(stray) in {each.path for each in verify(config, FILES, processes=1).findings}
    shutil.copy(second, root / "commitlog")
    with pytest.raises(StoreCorrupt, match="is the same log file"):
        read_directory(config, FILES)
    shutil.rmtree(tmp_path / "other")
    with pytest.raises(NoStore, match="other is missing: mount its device"):
        read_directory(config, FILES)


def test_a_repair(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    config = spread(root, tmp_path / "other")
    before = dumped(config)
    flip_byte(root / "consumequeue" / "t" / "1" / file_name(0), 8)
    found, plan, sizes = verify_and_plan(config, processes=1)
    assert damage(found)
    repair(sizes, plan, VirtualClock())
    assert verify(config, FILES, processes=1).findings == []
    assert dumped(config) == before
    # A start has noted the directories. That is nothing that a snapshot could use.
    assert (root / LOG_DIRECTORIES).exists()
    snapshot(config, str(tmp_path / "taken"))
    assert not (tmp_path / "taken" / LOG_DIRECTORIES).exists()
    open_store(
        replace(sizes, store_path_root_dir=str(tmp_path / "taken"), store_path_commit_log=""),
        VirtualClock(),
    ).close()


def test_it_is_not_rewritten_in_place(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    config = spread(root, tmp_path / "other")
    before = contents(tmp_path)
    with pytest.raises(SettingsError, match="not rewritten in place"):
        erasure.redact(config, ["k3"], VirtualClock(), Way(in_place=True))
    assert erasure.redact(config, ["k3"], VirtualClock(), Way()).records == 1
    assert contents(tmp_path) == before


def test_an_erased_copy_has_one_directory(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    config = spread(root, tmp_path / "other")
    moved = tmp_path / "other" / file_name(FILE_BYTES)
    done = erasure.redact(config, ["k3"], VirtualClock(), Way(str(tmp_path / "copy")))
    assert done.records == 1
    assert verify(StoreConfig(str(tmp_path / "copy")), FILES, processes=1).findings == []
    copy = tmp_path / "copy" / "commitlog" / moved.name
    assert copy.stat().st_mtime_ns == moved.stat().st_mtime_ns
