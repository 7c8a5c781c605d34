"""The file layer, on the real file system."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.store.files import (
    PosixFiles,
    ReadOnlyFiles,
    _exchange,
    make_durable_directory,
    read_file,
    write_file_atomically,
    zeroed_memory,
)

FILES = PosixFiles()


def test_reading_and_writing(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        FILES.open(path)
    handle = FILES.open(path, create=True)
    FILES.allocate(handle, 100)
    assert FILES.size(handle) == 100
    FILES.pwrite(handle, b"abc", 10)
    FILES.datasync(handle)
    assert FILES.pread(handle, 5, 9) == b"\0abc\0"
    assert FILES.pread(handle, 50, 98) == b"\0\0"
    view = FILES.map(handle, 100)
    assert bytes(view[10:13]) == b"abc"
    with pytest.raises(TypeError):
        view[10] = 0
    buffer = bytearray(b"......")
    assert FILES.read_into(handle, buffer, 97) == 3
    assert buffer == b"\0\0\0..."
    FILES.resize(handle, 11)
    FILES.resize(handle, 100)
    assert FILES.pread(handle, 3, 10) == b"a\0\0"
    FILES.close(handle)


def test_short_writes_and_reads_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_read, real_readv = os.pwrite, os.pread, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: real_write(f, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda f, size, at: real_read(f, min(size, 4), at))
    monkeypatch.setattr(os, "preadv", lambda f, parts, at: real_readv(f, [parts[0][:2]], at))
    handle = FILES.open(str(tmp_path / "f"), create=True)
    FILES.pwrite(handle, b"0123456789", 0)
    assert FILES.pread(handle, 20, 0) == b"0123456789"
    buffer = bytearray(7)
    assert FILES.read_into(handle, buffer, 2) == 7
    assert buffer == b"2345678"
    FILES.close(handle)


def test_directories(tmp_path: Path) -> None:
    folder = str(tmp_path / "a" / "b")
    assert FILES.names(folder) == []
    FILES.make_directory(folder)
    FILES.make_directory(folder)
    for name in ("2", "1"):
        FILES.close(FILES.open(f"{folder}/{name}", create=True))
    assert FILES.names(folder) == ["1", "2"]
    FILES.rename(f"{folder}/1", f"{folder}/2")
    assert FILES.names(folder) == ["2"]
    FILES.sync_directory(folder)
    assert FILES.modified_ms(f"{folder}/2") > 0
    FILES.unlink(f"{folder}/2")
    FILES.unlink(f"{folder}/2")
    assert FILES.modified_ms(f"{folder}/2") == 0
    FILES.remove_tree(folder)
    FILES.remove_tree(folder)
    assert not FILES.exists(folder)


def test_small_files_are_replaced_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    assert read_file(FILES, path) is None
    write_file_atomically(FILES, path, b"a long first content", durable=True)
    write_file_atomically(FILES, path, b"short", durable=False)
    assert read_file(FILES, path) == b"short"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("can_swap", [True, False])
def test_an_unsynced_file_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_swap: bool
) -> None:
    tried: list[bool] = []

    def swap(source: str, target: str) -> bool:
        tried.append(can_swap and _exchange(source, target))
        return tried[-1]

    monkeypatch.setattr("cometmq.store.files._exchange", swap)
    path = str(tmp_path / "f")
    for data in (b"first", b"2nd", b"the third"):
        write_file_atomically(FILES, path, data, durable=False)
        assert read_file(FILES, path) == data
        assert os.listdir(tmp_path) == ["f"]
    assert tried == [can_swap, can_swap]


def test_names_are_not_swapped_if_one_is_missing(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"new")
    assert not _exchange(str(source), str(target))
    assert source.read_bytes() == b"new"
    with pytest.raises(FileNotFoundError):
        FILES.replace(str(target), str(source))
    assert source.read_bytes() == b"new"


def test_lock_is_exclusive_in_this_process_and_for_others(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    handle = FILES.lock(path)
    with pytest.raises(OSError, match="unavailable"):
        FILES.lock(path)
    # What a Java broker does: a lock of the process on the first byte.
    other = (
        "import fcntl, sys\n"
        "fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
    )
    command = [sys.executable, "-c", other, path]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    FILES.close(handle)
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    FILES.close(FILES.lock(path))


def test_machine_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = FILES.disk_space(str(tmp_path))
    assert 0 < space.used_ratio <= 1
    assert space.total_bytes >= space.free_bytes
    assert FILES.memory_bytes() > 1 << 20
    assert FILES.boot_id() == FILES.boot_id()

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    assert FILES.boot_id() == ""


class WatchedFolders(PosixFiles):
    """Notes which folders are synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def test_a_durable_directory_has_its_name_synced_and_those_of_new_parents(tmp_path: Path) -> None:
    files = WatchedFolders()
    root = str(tmp_path)
    make_durable_directory(files, f"{root}/a/b")
    assert sorted(files.synced) == [root, f"{root}/a"]
    files.synced.clear()
    make_durable_directory(files, f"{root}/a/b")
    assert files.synced == [f"{root}/a"]


def test_a_folder_above_that_may_not_be_read_is_no_hindrance(tmp_path: Path) -> None:
    class Unreadable(PosixFiles):
        def sync_directory(self, path: str) -> None:
            raise PermissionError(path)

    make_durable_directory(Unreadable(), str(tmp_path / "a"))
    assert (tmp_path / "a").is_dir()


def test_reading_only(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    (tmp_path / "lock").write_bytes(b"abc")
    files = ReadOnlyFiles()
    handle = files.open(path)
    assert files.pread(handle, 3, 0) == b"abc"
    for change in (
        lambda: files.pwrite(handle, b"x", 0),
        lambda: files.resize(handle, 9),
        lambda: files.allocate(handle, 9),
        lambda: files.open(str(tmp_path / "new"), create=True),
        lambda: files.make_directory(str(tmp_path / "new")),
        lambda: files.rename(path, str(tmp_path / "new")),
        lambda: files.unlink(path),
        lambda: files.remove_tree(str(tmp_path)),
        lambda: files.lock(path),
    ):
        with pytest.raises(OSError, match=r"reading only|Bad file|Invalid"):
            change()
    files.close(handle)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]
    assert (tmp_path / "lock").read_bytes() == b"abc"


def test_who_holds_a_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    files, reader = PosixFiles(), ReadOnlyFiles()
    assert reader.lock_holder(path) == 0
    ours = files.lock(path)
    assert reader.lock_holder(path) == -1
    files.close(ours)
    assert reader.lock_holder(path) == 0
    # As a Java broker locks it: bound to the process.
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert reader.lock_holder(path) == other.pid
        assert other.stdin is not None
        other.stdin.close()
    assert reader.lock_holder(path) == 0


@pytest.mark.parametrize("size_bytes", [0, 7, 4095, 4096, 100_000])
def test_new_memory_is_zero(size_bytes: int) -> None:
    memory = zeroed_memory(size_bytes)
    assert memory == bytes(size_bytes)
    memory[:] = b"x" * size_bytes


MAP_BYTES = 1 << 20


def test_only_bytes_that_were_touched_are_in_memory(tmp_path: Path) -> None:
    handle = FILES.open(str(tmp_path / "log"), create=True)
    FILES.resize(handle, MAP_BYTES)
    is_resident = FILES.residency(FILES.map(handle, MAP_BYTES))
    assert not is_resident(0, MAP_BYTES)
    FILES.pwrite(handle, b"x" * 50_000, 100_000)
    assert is_resident(100_000, 150_000)
    assert is_resident(100_001, 100_002)
    assert not is_resident(90_000, 150_000)
    assert not is_resident(100_000, 160_000)
    FILES.close(handle)


def test_what_is_longer_than_an_answer_holds_is_not_asked(tmp_path: Path) -> None:
    handle = FILES.open(str(tmp_path / "log"), create=True)
    size = 5_000 * 4_096
    FILES.resize(handle, size)
    mapped = FILES.map(handle, size)
    is_resident = FILES.residency(mapped)
    FILES.pwrite(handle, bytes(size), 0)
    assert is_resident(0, size // 2)
    assert not is_resident(0, size)
    FILES.close(handle)


def test_positions_outside_of_the_map(tmp_path: Path) -> None:
    handle = FILES.open(str(tmp_path / "log"), create=True)
    FILES.resize(handle, 4_096)
    mapped = FILES.map(handle, 4_096)
    FILES.pwrite(handle, b"x" * 4_096, 0)
    assert FILES.residency(mapped)(0, 4_096)
    assert not FILES.residency(mapped)(1 << 40, (1 << 40) + 1)
    FILES.close(handle)
