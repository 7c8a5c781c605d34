"""Log files that are missing, too short, too long, or cannot be read."""

import errno
import shutil
from pathlib import Path

import pytest

from cometmq.core.errors import StoreCorrupt, StoreFull
from cometmq.store.config import DamagePolicy
from cometmq.store.files import Buffer
from cometmq.store.layout import HOLE_SIZE
from tests.store.damaged import FILE_BYTES, SKIP, TRUNCATE, Crashed, numbers
from tests.store.stores import OtherBoot, assert_consistent, entries_of, fill, opened


@pytest.fixture
def crashed(tmp_path: Path) -> Crashed:
    return Crashed(tmp_path)


class Unreadable(OtherBoot):
    """A device with a bad sector, until it is written."""

    def __init__(self, path: Path, offset: int) -> None:
        self.path = str(path)
        self.bad: int | None = offset
        self.handles: set[int] = set()

    def open(self, path: str, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        self.handles.discard(handle)
        if path == self.path:
            self.handles.add(handle)
        return handle

    def _covers(self, handle: int, offset: int, size: int) -> bool:
        bad = self.bad
        return handle in self.handles and bad is not None and offset <= bad < offset + size

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        if self._covers(handle, offset, len(buffer)):
            raise OSError(errno.EIO, "Input/output error")
        return super().read_into(handle, buffer, offset)

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if self._covers(handle, offset, len(data)):
            self.bad = None
        super().pwrite(handle, data, offset)


def test_a_sector_that_cannot_be_read(crashed: Crashed) -> None:
    record = crashed.records[160]
    path = crashed.root / "commitlog" / f"{2 * FILE_BYTES:020d}"
    files = Unreadable(path, record.physical_offset % FILE_BYTES + 20)
    with pytest.raises(StoreCorrupt, match=r"cannot be read from the device: .*Input/output") as e:
        opened(crashed.root, files=files)
    page = record.physical_offset // 4096 * 4096
    first = next(r for r in crashed.records if r.physical_offset + r.size_bytes > page)
    assert e.value.offset == first.physical_offset
    store = opened(crashed.root, files=files, damage_policy=SKIP)
    assert files.bad is None
    lost = {
        n
        for n, r in enumerate(crashed.records)
        if r.physical_offset + r.size_bytes > page and r.physical_offset < page + 4096
    }
    assert numbers(store) == [n for n in range(200) if n not in lost]
    store.close()


class NoRoomAside(OtherBoot):
    """There is room for nothing new."""

    def __init__(self) -> None:
        self.aside: set[int] = set()

    def open(self, path: str, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        if "set-aside" in path:
            self.aside.add(handle)
        return handle

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if handle in self.aside:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(handle, data, offset)


def test_without_room_to_set_it_aside_nothing_is_taken_out(crashed: Crashed) -> None:
    crashed.damaged(160)
    path = crashed.root / "commitlog" / f"{FILE_BYTES:020d}"
    before = path.read_bytes()
    with pytest.raises(StoreFull, match=r"to set \d+ bytes of the log aside"):
        opened(crashed.root, files=NoRoomAside(), damage_policy=SKIP)
    assert path.read_bytes() == before


def test_the_last_files_are_missing(crashed: Crashed) -> None:
    (crashed.root / "commitlog" / f"{2 * FILE_BYTES:020d}").unlink()
    with pytest.raises(StoreCorrupt, match="its last files are missing") as caught:
        crashed.open()
    assert caught.value.offset == 2 * FILE_BYTES
    store = crashed.open(TRUNCATE)
    records = [n for n, r in enumerate(crashed.records) if r.physical_offset < 2 * FILE_BYTES]
    assert numbers(store) == records
    assert_consistent(store)
    store.close()


def test_all_files_are_missing(crashed: Crashed) -> None:
    shutil.rmtree(crashed.root / "commitlog")
    with pytest.raises(StoreCorrupt, match="there is no log file, but the log reached"):
        crashed.open()
    with pytest.raises(StoreCorrupt, match="is its device mounted"):
        crashed.open(SKIP)
    store = crashed.open(TRUNCATE)
    assert store.log.segments.start == 3 * FILE_BYTES
    queue = store.queue("t", 0)
    assert queue.min_offset == queue.max_offset > 0
    fill(store, 30)
    assert_consistent(store)
    store.close()


def test_all_files_of_a_java_store_are_missing(crashed: Crashed) -> None:
    shutil.rmtree(crashed.root / "commitlog")
    (crashed.root / "cometmq-positions.json").unlink()
    with pytest.raises(StoreCorrupt, match="there is no log file, but the log reached"):
        crashed.open()


def test_a_file_in_the_middle_is_missing(crashed: Crashed) -> None:
    (crashed.root / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    with pytest.raises(StoreCorrupt, match="this log file is missing") as caught:
        crashed.open()
    assert caught.value.offset == FILE_BYTES
    assert caught.value.path.endswith(f"{FILE_BYTES:020d}")
    assert "--damage skip" in str(caught.value)
    lost = [r for r in crashed.records if r.physical_offset // FILE_BYTES == 1]
    store = crashed.open(SKIP)
    assert numbers(store) == [
        n for n, r in enumerate(crashed.records) if r.physical_offset // FILE_BYTES != 1
    ]
    assert_consistent(store, lost=lost)
    for record in lost:
        entry = entries_of(store.queue("t", record.queue_id))[record.queue_offset]
        assert entry[1] == HOLE_SIZE
    store.close()


def test_truncating_before_a_missing_file(crashed: Crashed) -> None:
    (crashed.root / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    store = crashed.open(TRUNCATE)
    assert numbers(store) == [
        n for n, r in enumerate(crashed.records) if r.physical_offset < FILE_BYTES
    ]
    assert_consistent(store)
    assert f"{2 * FILE_BYTES:020d}-whole" in crashed.aside()
    store.close()


@pytest.mark.parametrize("policy", [SKIP, TRUNCATE])
def test_a_file_is_too_short(crashed: Crashed, policy: DamagePolicy) -> None:
    path = crashed.root / "commitlog" / f"{FILE_BYTES:020d}"
    path.write_bytes(path.read_bytes()[:9_000])
    with pytest.raises(StoreCorrupt, match="it is 9000 bytes long, mappedFileSizeCommitLog is"):
        crashed.open()
    store = crashed.open(policy)
    cut = FILE_BYTES + 9_000
    before = [n for n, r in enumerate(crashed.records) if r.physical_offset + r.size_bytes <= cut]
    after = [n for n, r in enumerate(crashed.records) if r.physical_offset >= 2 * FILE_BYTES]
    assert numbers(store) == before + (after if policy is SKIP else [])
    assert_consistent(store, lost=crashed.records[len(before) : 200 - len(after)])
    store.close()


def test_a_file_is_too_long(crashed: Crashed) -> None:
    path = crashed.root / "commitlog" / f"{FILE_BYTES:020d}"
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(StoreCorrupt, match="16388 bytes long"):
        crashed.open()
    store = crashed.open(SKIP)
    assert len(assert_consistent(store)) == 200
    assert crashed.aside() == {f"{2 * FILE_BYTES:020d}": b"more"}
    store.close()


def test_a_file_of_another_log_does_not_fill_the_disk(crashed: Crashed) -> None:
    """Blank files take the place of missing ones, but not of half an exabyte."""
    before = set(crashed.log_files())
    far = f"{FILE_BYTES << 45:020d}"
    (crashed.root / "commitlog" / far).write_bytes(bytes([1]) * FILE_BYTES)
    with pytest.raises(StoreFull, match="belong to this log"):
        crashed.open(SKIP)
    assert set(crashed.log_files()) == before | {far}
