"""A power cut leaves any mixture of unsynced changes, and all synced ones."""

from random import Random

import pytest

from tests.simulation.faults.disk import SECTOR_BYTES, Disk, File, Folder

SEEDS = range(60)


def cut(disk: Disk, seed: int) -> None:
    disk.lose_power(Random(seed))


def placed(disk: Disk, name: str, folder: Folder | None = None) -> File:
    file = File()
    disk.change([(folder or disk.root, name, file)])
    return file


def names_after(build: object, seed: int) -> frozenset[str]:
    disk = Disk()
    build(disk)  # type: ignore[operator]
    cut(disk, seed)
    return frozenset(disk.root.names)


def test_synced_bytes_stay_and_of_the_others_any_sector_may() -> None:
    seen: set[bytes] = set()
    for seed in SEEDS:
        disk = Disk()
        file = placed(disk, "f")
        disk.sync_names(disk.root)
        file.allocate(4 * SECTOR_BYTES)
        file.write(0, b"a" * SECTOR_BYTES)
        file.sync()
        file.write(SECTOR_BYTES, b"b" * 2 * SECTOR_BYTES)
        cut(disk, seed)
        assert bytes(file.data[:SECTOR_BYTES]) == b"a" * SECTOR_BYTES
        assert file.size == 4 * SECTOR_BYTES
        assert not any(file.data[3 * SECTOR_BYTES :])
        seen.add(bytes(file.data[SECTOR_BYTES : 3 * SECTOR_BYTES : SECTOR_BYTES]))
    assert seen == {b"\0\0", b"b\0", b"\0b", b"bb"}


def test_a_sector_is_never_torn_and_old_bytes_come_back() -> None:
    seen: set[bytes] = set()
    for seed in SEEDS:
        disk = Disk()
        file = placed(disk, "f")
        disk.sync_names(disk.root)
        file.write(0, b"old")
        file.sync()
        file.write(0, b"new")
        cut(disk, seed)
        seen.add(bytes(file.data))
    assert seen == {b"old", b"new"}


def test_any_size_since_the_last_sync_may_be_left() -> None:
    seen: set[int] = set()
    for seed in SEEDS:
        disk = Disk()
        file = placed(disk, "f")
        disk.sync_names(disk.root)
        file.resize(10)
        file.sync()
        file.resize(0)
        file.write(0, b"x" * 700)
        cut(disk, seed)
        assert len(file.data) == file.size
        seen.add(file.size)
    assert seen == {10, 0, 700}


def test_what_was_cut_off_reads_as_zeros() -> None:
    file = File()
    file.write(0, b"x" * 1000)
    file.resize(10)
    file.resize(1000)
    assert bytes(file.data) == b"x" * 10 + bytes(990)
    file.sync()
    file.lose_power(Random(0), 0.0)
    assert bytes(file.data) == b"x" * 10 + bytes(990)


def test_names_need_a_sync_of_their_folder() -> None:
    def unsynced(disk: Disk) -> None:
        placed(disk, "a")
        placed(disk, "b")

    def synced(disk: Disk) -> None:
        unsynced(disk)
        disk.sync_names(disk.root)

    assert {names_after(unsynced, seed) for seed in SEEDS} == {
        frozenset(text) for text in ("", "a", "b", "ab")
    }
    assert {names_after(synced, seed) for seed in SEEDS} == {frozenset("ab")}


def test_a_removal_may_be_lost_and_a_rename_is_whole() -> None:
    def renamed(disk: Disk) -> None:
        file = placed(disk, "a")
        placed(disk, "b")
        disk.sync_names(disk.root)
        disk.change([(disk.root, "c", file), (disk.root, "a", None)])
        disk.change([(disk.root, "b", None)])

    assert {names_after(renamed, seed) for seed in SEEDS} == {
        frozenset(text) for text in ("ab", "bc", "a", "c")
    }


def test_a_synced_folder_is_lost_with_its_own_name() -> None:
    seen: set[bool] = set()
    for seed in SEEDS:
        disk = Disk()
        folder = Folder()
        disk.change([(disk.root, "d", folder)])
        file = placed(disk, "f", folder)
        file.write(0, b"x")
        file.sync()
        disk.sync_names(folder)
        cut(disk, seed)
        assert (disk.find("/d/f") is file) == (disk.find("/d") is folder)
        seen.add(disk.find("/d") is folder)
    assert seen == {False, True}


def test_a_failed_sync_is_never_made_good_by_the_next() -> None:
    lost = 0
    for seed in SEEDS:
        disk = Disk()
        file = placed(disk, "f")
        disk.sync_names(disk.root)
        file.allocate(SECTOR_BYTES)
        file.sync()
        file.write(0, b"x")
        file.fail_sync(Random(seed))
        assert bytes(file.data[:1]) == b"x"
        file.sync()
        cut(disk, seed)
        lost += not file.data[0]
    assert 0 < lost < len(SEEDS)


def test_written_anew_it_reaches_the_device() -> None:
    file = File()
    file.write(0, b"x")
    for seed in SEEDS:
        file.fail_sync(Random(seed))
        file.write(0, b"y")
    file.sync()
    file.lose_power(Random(0), 0.0)
    assert bytes(file.data) == b"y"


def test_the_kernel_may_forget_what_a_failed_sync_left_behind() -> None:
    seen: set[bytes] = set()
    for seed in SEEDS:
        disk = Disk()
        file = placed(disk, "f")
        file.write(0, b"old")
        file.sync()
        file.write(0, b"new")
        disk.kill(Random(seed))
        assert bytes(file.data) == b"new"
        file.fail_sync(Random(seed))
        disk.kill(Random(seed + 1))
        seen.add(bytes(file.data))
    assert seen == {b"old", b"new"}


def test_what_the_device_took_by_itself_is_not_safe_from_what_follows() -> None:
    seen: set[bytes] = set()
    for seed in SEEDS:
        disk = Disk()
        file = placed(disk, "f")
        disk.sync_names(disk.root)
        file.write(0, b"one")
        file.sync()
        file.write(0, b"two")
        disk.write_back(Random(seed))
        file.write(0, b"six")
        cut(disk, seed)
        seen.add(bytes(file.data))
    assert seen == {b"one", b"two", b"six"}


def test_a_power_cut_is_a_new_boot_and_frees_locks() -> None:
    disk = Disk()
    disk.locks[placed(disk, "lock")] = 3
    disk.kill(Random(0))
    assert not disk.locks
    assert disk.boots == 0
    disk.locks[File()] = 3
    cut(disk, 0)
    assert not disk.locks
    assert disk.boots == 1


def test_names_of_a_file_are_counted() -> None:
    disk = Disk()
    file = placed(disk, "a")
    disk.change([(disk.root, "b", file)])
    assert file.links == 2
    disk.sync_names(disk.root)
    disk.change([(disk.root, "a", None)])
    assert file.links == 1
    assert list(disk.files()) == [file]
    counts = set()
    for seed in SEEDS:
        copy = Disk()
        twice = placed(copy, "a")
        copy.change([(copy.root, "b", twice)])
        cut(copy, seed)
        counts.add(twice.links if copy.root.names else 0)
    assert counts == {0, 1, 2}


def test_room_on_a_full_disk() -> None:
    file = File()
    file.resize(4 * SECTOR_BYTES)
    assert not file.has_room_for(0, 1)
    file.write(10, b"x")
    assert file.has_room_for(0, SECTOR_BYTES)
    assert not file.has_room_for(0, SECTOR_BYTES + 1)
    file.allocate(4 * SECTOR_BYTES)
    assert file.has_room_for(0, 4 * SECTOR_BYTES)
    file.resize(SECTOR_BYTES)
    file.resize(4 * SECTOR_BYTES)
    assert not file.has_room_for(0, 4 * SECTOR_BYTES)


def test_a_flipped_bit_is_on_the_device_too() -> None:
    file = File()
    file.write(0, b"\0\0")
    file.sync()
    file.flip(9)
    assert bytes(file.data) == b"\0\2"
    file.lose_power(Random(0), 0.0)
    assert bytes(file.data) == b"\0\2"


def test_a_mapped_file_does_not_grow_behind_its_map() -> None:
    file = File()
    file.allocate(10)
    view = memoryview(file.data)
    file.write(0, b"x")
    assert view[0] == ord("x")
    with pytest.raises(BufferError):
        file.allocate(20)
