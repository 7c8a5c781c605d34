"""Files in memory behave like real files, and fail or end their process on command."""

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.store.files import Files, PosixFiles
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles, Moment, ProcessEnded
from tests.simulation.faults.threads import SteppedExecutor, SteppedThreads


def made(disk: Disk | None = None, seed: int = 0, **options: int) -> MemoryFiles:
    return MemoryFiles(disk or Disk(), VirtualClock(), Random(seed), **options)  # type: ignore[arg-type]


def whole(files: Files, path: str) -> bytes:
    handle = files.open(path)
    found = files.pread(handle, 1 << 20, 0)
    assert len(found) == files.size(handle)
    files.close(handle)
    return found


# --- the same on a real disk and in memory ---------------------------------------------------


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    """A file layer and a folder in it."""
    if request.param == "real":
        return PosixFiles(), str(tmp_path)
    files = made()
    files.make_directory("/disk/x")
    return files, "/disk/x"


def test_bytes(place: tuple[Files, str]) -> None:
    files, root = place
    path = f"{root}/f"
    with pytest.raises(FileNotFoundError):
        files.open(path)
    assert files.modified_ms(path) == 0
    handle = files.open(path, create=True)
    files.pwrite(handle, b"abc", 4)
    assert files.size(handle) == 7
    assert files.pread(handle, 10, 3) == b"\0abc"
    assert files.pread(handle, 10, 7) == b""
    files.allocate(handle, 20)
    files.allocate(handle, 5)
    assert files.size(handle) == 20
    view = files.map(handle, 20)
    files.pwrite(handle, memoryview(b"xyz"), 18 - 1)
    assert bytes(view[17:]) == b"xyz"
    with pytest.raises(TypeError):
        view[0] = 1
    buffer = bytearray(b"......")
    assert files.read_into(handle, memoryview(buffer), 16) == 4
    assert buffer == b"\0xyz.."
    files.resize(handle, 5)
    files.resize(handle, 8)
    assert files.pread(handle, 10, 0) == b"\0\0\0\0a\0\0\0"
    files.datasync(handle)
    files.close(handle)
    assert files.modified_ms(path) > 0


def test_names(place: tuple[Files, str]) -> None:
    files, root = place
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/d/f", create=True)
    files.make_directory(f"{root}/d/e")
    files.make_directory(f"{root}/d/e")
    for name in "ba":
        files.close(files.open(f"{root}/d/{name}", create=True))
    with pytest.raises(IsADirectoryError):
        files.open(f"{root}/d/e")
    assert files.names(f"{root}/d") == ["a", "b", "e"]
    assert files.names(f"{root}/none") == []
    files.rename(f"{root}/d/a", f"{root}/d/e/c")
    files.rename(f"{root}/d/b", f"{root}/d/e/c")
    assert files.names(f"{root}/d/e") == ["c"]
    with pytest.raises(FileNotFoundError):
        files.rename(f"{root}/d/a", f"{root}/d/b")
    assert files.exists(f"{root}/d/e")
    assert not files.exists(f"{root}/d/a")
    files.sync_directory(f"{root}/d")
    with pytest.raises(FileNotFoundError):
        files.sync_directory(f"{root}/none")
    files.unlink(f"{root}/d/a")
    files.remove_tree(f"{root}/d")
    files.remove_tree(f"{root}/d")
    assert files.names(root) == []


def test_a_removed_file_can_be_used_on(place: tuple[Files, str]) -> None:
    files, root = place
    handle = files.open(f"{root}/f", create=True)
    assert files.link_count(handle) == 1
    files.unlink(f"{root}/f")
    assert files.link_count(handle) == 0
    files.pwrite(handle, b"x", 0)
    assert files.pread(handle, 1, 0) == b"x"
    files.close(handle)


def test_a_lock_is_held_once(place: tuple[Files, str]) -> None:
    files, root = place
    handle = files.lock(f"{root}/lock")
    with pytest.raises(BlockingIOError):
        files.lock(f"{root}/lock")
    files.close(handle)
    files.close(files.lock(f"{root}/lock"))


def test_data_is_found_behind_zeros(place: tuple[Files, str]) -> None:
    files, root = place
    handle = files.open(f"{root}/f", create=True)
    files.allocate(handle, 1 << 20)
    files.pwrite(handle, b"x", 1 << 19)
    assert 0 <= files.next_data(handle, 0) <= 1 << 19
    assert files.next_data(handle, 1 << 19) == 1 << 19
    files.close(handle)


def test_the_machine(place: tuple[Files, str]) -> None:
    files, root = place
    space = files.disk_space(root)
    assert 0 < space.used_bytes + space.free_bytes <= space.total_bytes
    assert files.memory_bytes() > 0
    assert files.boot_id() == files.boot_id()
    executor = files.threads(1, "test")
    assert executor.submit(lambda: 5).result() == 5
    executor.shutdown()


# --- ends ------------------------------------------------------------------------------------


def work(files: MemoryFiles) -> None:
    files.make_directory("/d")
    handle = files.open("/d/f", create=True)
    files.allocate(handle, 10_000)
    files.pwrite(handle, b"x" * 9_000, 0)
    files.datasync(handle)
    files.sync_directory("/d")
    files.rename("/d/f", "/d/g")
    files.resize(handle, 5)
    files.link("/d/g", "/d/h")
    files.unlink("/d/g")
    files.remove_tree("/d")


@pytest.mark.parametrize("moment", list(Moment))
def test_a_process_ends_at_every_changing_operation(moment: Moment) -> None:
    plain = made()
    work(plain)
    assert plain.steps == 12
    for step in range(plain.steps):
        files = made(seed=step)
        files.end_at(step, moment)
        with pytest.raises(ProcessEnded, match=moment.value):
            work(files)
        assert files.steps == step + 1
        with pytest.raises(ProcessEnded):
            files.make_directory("/other")
        with pytest.raises(ProcessEnded):
            files.open("/d/f")


@pytest.mark.parametrize(
    ("moment", "found"),
    [(Moment.BEFORE, {0}), (Moment.WITHIN, {0, 3096, 7192}), (Moment.AFTER, {9000})],
)
def test_a_write_is_left_out_or_there_up_to_a_page_or_whole(
    moment: Moment, found: set[int]
) -> None:
    lengths = set()
    for seed in range(30):
        files = made(seed=seed)
        handle = files.open("/f", create=True)
        files.end_at(files.steps, moment)
        with pytest.raises(ProcessEnded):
            files.pwrite(handle, b"x" * 9_000, 1_000)
        lengths.add(whole(made(files.disk), "/f").count(b"x"))
    assert lengths == found


@pytest.mark.parametrize(("moment", "kept"), [(Moment.BEFORE, False), (Moment.AFTER, True)])
def test_a_sync_counts_once_it_is_done(moment: Moment, kept: bool) -> None:
    survived = set()
    for seed in range(30):
        files = made(seed=seed)
        handle = files.open("/f", create=True)
        files.sync_directory("/")
        files.pwrite(handle, b"x", 0)
        files.end_at(files.steps, moment)
        with pytest.raises(ProcessEnded):
            files.datasync(handle)
        files.disk.lose_power(Random(seed))
        survived.add(whole(made(files.disk), "/f") == b"x")
    assert survived == ({True} if kept else {True, False})


def test_a_dead_process_holds_no_lock_and_locks_nothing() -> None:
    files = made()
    handle = files.lock("/lock")
    files.end()
    files.close(handle)
    assert files.disk.locks
    files.disk.kill(Random(0))
    made(files.disk).lock("/lock")


def test_whoever_watches_is_told_of_synced_folders() -> None:
    files = made()
    told: list[str] = []
    files.on_names_synced = told.append
    files.make_directory("/d")
    files.sync_directory("/d")
    files.faults.append(Fault("sync_directory", errno.EIO))
    with pytest.raises(OSError, match="/d"):
        files.sync_directory("/d")
    assert told == ["/d"]


# --- faults ----------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[MemoryFiles, int], object]] = {
    "open": lambda files, handle: files.open("/d/f"),
    "create": lambda files, handle: files.open("/d/new", create=True),
    "pwrite": lambda files, handle: files.pwrite(handle, b"xyz", 0),
    "read": lambda files, handle: files.pread(handle, 1, 0),
    "datasync": lambda files, handle: files.datasync(handle),
    "allocate": lambda files, handle: files.allocate(handle, 900),
    "resize": lambda files, handle: files.resize(handle, 1),
    "mkdir": lambda files, handle: files.make_directory("/d/e"),
    "sync_directory": lambda files, handle: files.sync_directory("/d"),
    "rename": lambda files, handle: files.rename("/d/f", "/d/g"),
    "link": lambda files, handle: files.link("/d/f", "/d/g"),
    "unlink": lambda files, handle: files.unlink("/d/f"),
}


@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_an_operation_fails_as_often_as_it_is_told_to(operation: str) -> None:
    files = made()
    files.make_directory("/d")
    handle = files.open("/d/f", create=True)
    files.faults += [Fault(operation, errno.EIO, 2, "/d"), Fault(operation, errno.EIO, 9, "else")]
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output") as caught:
            OPERATIONS[operation](files, handle)
        assert caught.value.errno == errno.EIO
    assert len(files.faults) == 1
    OPERATIONS[operation](files, handle)


def test_a_failed_write_may_have_written_a_part() -> None:
    lengths = set()
    for seed in range(20):
        files = made(seed=seed)
        handle = files.open("/f", create=True)
        files.faults.append(Fault("pwrite", errno.EIO))
        with pytest.raises(OSError, match="/f"):
            files.pwrite(handle, bytes(3 * 4096), 0)
        lengths.add(files.size(handle))
    assert lengths == {0, 4096, 2 * 4096}


def test_a_full_disk_takes_what_has_room_already() -> None:
    files = made()
    handle = files.open("/f", create=True)
    files.allocate(handle, 4096)
    files.disk.full = True
    files.pwrite(handle, b"x" * 4096, 0)
    files.allocate(handle, 10)
    refused: list[Callable[[], object]] = [
        lambda: files.pwrite(handle, b"x", 4096),
        lambda: files.allocate(handle, 8192),
        lambda: files.open("/g", create=True),
        lambda: files.make_directory("/d"),
    ]
    for call in refused:
        with pytest.raises(OSError, match="No space") as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
    files.disk.used_ratio = 0.95
    assert files.disk_space("/").used_ratio == pytest.approx(0.95)


def test_a_sync_takes_its_time() -> None:
    files = made(sync_ms=4)
    handle = files.open("/f", create=True)
    clock = files._clock
    before = clock.monotonic_ms()
    files.datasync(handle)
    assert clock.monotonic_ms() - before == 4


def test_threads_are_those_that_are_told_to_run() -> None:
    threads = SteppedThreads(Random(0))
    files = MemoryFiles(Disk(), VirtualClock(), Random(0), threads=threads)
    assert isinstance(files.threads(2, "x"), SteppedExecutor)
