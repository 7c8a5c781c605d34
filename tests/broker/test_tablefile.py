"""Table files: the backup, when they are written, failing devices."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.tables import WINDOW_MS, TableDirectory, TableFile, pretty, warn_of_missing
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.core.errors import StoreCorrupt, StoreError, StoreFull
from cometmq.net.tasks import Tasks
from cometmq.store.files import PosixFiles


class FailingFiles(PosixFiles):
    """A device that refuses to write while ``error`` is set."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.writes = 0

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        if self.error is not None:
            raise OSError(self.error, "no")
        self.writes += 1
        super().pwrite(handle, data, offset)


class World:
    def __init__(self, directory: Path, files: PosixFiles | None = None) -> None:
        self.path = directory / "config" / "x.json"
        self.value: dict[str, object] = {"a": 1}
        self.tasks = Tasks()
        place = TableDirectory(str(self.path.parent), SystemClock(), self.tasks, files)
        self.file = TableFile(place, self.path.name, self.encode)

    def encode(self) -> Iterator[bytes]:
        yield pretty({"table": self.value})

    def read(self) -> object:
        return self.file.read(lambda found: dict(found["table"]), required_key="table")

    def aside(self) -> dict[str, bytes]:
        """What was set aside, by its name without the time."""
        folder = self.path.parent.parent / "cometmq-set-aside"
        return {path.name.partition("-")[2]: path.read_bytes() for path in folder.glob("*")}


async def test_a_table_comes_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.read() is None
    await world.file.write()
    assert world.read() == {"a": 1}
    world.value = {"a": 2}
    await world.file.write()
    assert world.read() == {"a": 2}
    assert not world.path.with_name("x.json.tmp").exists()


DAMAGES = [
    b"", b"\0" * 100, b'{"table":{', b"[]", b'{"other":1}', b"\xff\xfe", b'{"table":7}',
    b"[" * 99_999,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
async def test_the_backup_is_read_when_the_table_cannot_be(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    await world.file.write()
    world.value = {"a": 2}
    await world.file.write()
    world.path.write_bytes(damage)
    assert world.read() == {"a": 1}
    assert "table_read_from_backup" in caplog.text
    assert world.aside() == {"config-x.json": damage}
    # The bad one is out of the way, so that the next write does not put it in the backup's place.
    world.value = {"a": 3}
    await world.file.write()
    assert world.read() == {"a": 3}
    world.path.unlink()
    assert world.read() == {"a": 1}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_bad_backup_does_not_matter(tmp_path: Path, damage: bytes) -> None:
    world = World(tmp_path)
    await world.file.write()
    world.path.with_name("x.json.bak").write_bytes(damage)
    assert world.read() == {"a": 1}
    assert world.aside() == {}


@pytest.mark.parametrize("backup", [None, b"", b"{"])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_table_is_never_silently_empty(
    tmp_path: Path, damage: bytes, backup: bytes | None
) -> None:
    world = World(tmp_path)
    await world.file.write()
    world.path.write_bytes(damage)
    if backup is not None:
        world.path.with_name("x.json.bak").write_bytes(backup)
    with pytest.raises(StoreCorrupt, match="restore the file from a copy") as caught:
        world.read()
    assert caught.value.path == str(world.path)
    assert "x.json: " in caught.value.problem
    assert ("x.json.bak: " in caught.value.problem) is (backup is not None)
    assert f"move {world.path} and its .bak file away" in str(caught.value)
    assert world.path.read_bytes() == damage


async def test_every_byte_of_a_table_flipped(tmp_path: Path) -> None:
    """It is read, or its backup is, or the start says why not; nothing else happens."""
    world = World(tmp_path)
    world.value = {f"name {number}": number for number in range(3)}
    await world.file.write()
    await world.file.write()
    good = world.path.read_bytes()
    backups = 0
    for at in range(len(good)):
        raw = bytearray(good)
        raw[at] ^= 1 << at % 8
        world.path.write_bytes(raw)
        found = world.read()
        assert isinstance(found, dict)
        backups += not world.path.exists()
        world.path.write_bytes(raw)
        world.path.with_name("x.json.bak").rename(tmp_path / "bak")
        with contextlib.suppress(StoreCorrupt):
            assert isinstance(world.read(), dict)
        (tmp_path / "bak").rename(world.path.with_name("x.json.bak"))
    assert backups > 10


class Unreadable(PosixFiles):
    """A device that does not give the table back."""

    def pread(self, handle: int, size_bytes: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".json"):
            raise OSError(errno.EIO, "Input/output error")
        return super().pread(handle, size_bytes, offset)


async def test_a_table_that_the_device_does_not_give(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.file.write()
    with pytest.raises(StoreCorrupt, match="Input/output error"):
        World(tmp_path, Unreadable()).read()
    await world.file.write()
    assert World(tmp_path, Unreadable()).read() == {"a": 1}
    assert list(world.aside()) == ["config-x.json"]


async def test_a_stop_writes_the_table_that_nobody_changed(tmp_path: Path) -> None:
    """So that it is missed when it is gone."""
    world = World(tmp_path)
    assert world.file.is_missing
    await world.file.close()
    assert world.read() == {"a": 1}
    before = world.path.stat().st_mtime_ns
    await world.file.close()
    assert world.path.stat().st_mtime_ns == before


def test_missing_tables_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "topics.json").write_text("{}")
    (tmp_path / "delayOffset.json.bak").write_text("{}")
    warn_of_missing(PosixFiles(), str(tmp_path))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" effect=")[0] for line in lines] == [
        f"table_missing path={tmp_path}/subscriptionGroup.json",
        f"table_missing path={tmp_path}/consumerOffset.json",
    ]
    assert "the position that its consumers choose" in lines[1]


async def test_changes_of_a_window_share_a_write(tmp_path: Path) -> None:
    files = FailingFiles()
    world = World(tmp_path, files)
    await world.file.write()
    started = files.writes

    async def alter(number: int) -> None:
        world.value[str(number)] = number
        world.file.touch()
        await world.file.saved()
        assert str(number) in str(world.read())

    await asyncio.gather(*(alter(number) for number in range(50)))
    assert files.writes - started == 1
    await world.tasks.close()


class CountingFiles(PosixFiles):
    """A device that counts writes."""

    def __init__(self) -> None:
        self.writes = 0

    def datasync(self, handle: int) -> None:
        self.writes += 1


async def test_a_change_that_nobody_waits_for_is_written_within_the_window(tmp_path: Path) -> None:
    clock, files, tasks = VirtualClock(), CountingFiles(), Tasks()
    directory = TableDirectory(str(tmp_path), clock, tasks, files)
    file = TableFile(directory, "x.json", lambda: iter((b"{}",)))
    file.touch()
    await file.saved()  # at once, for somebody waits
    await file.saved()
    assert files.writes == 1
    for _ in range(3):
        file.touch()
        for _ in range(5):
            await asyncio.sleep(0)
    clock.advance(WINDOW_MS - 1)
    await asyncio.sleep(0)
    assert files.writes == 1
    clock.advance(1)
    async with asyncio.timeout(60):
        while files.writes < 2:
            await asyncio.sleep(0.001)
    file.touch()
    await file.saved()  # also within the window
    assert files.writes == 3
    clock.advance(WINDOW_MS)
    for _ in range(5):
        await asyncio.sleep(0)
    assert files.writes == 3  # nothing was left for the window
    await tasks.close()


async def test_who_comes_while_a_write_is_under_way_shares_the_next(tmp_path: Path) -> None:
    files = SlowFiles()
    world = World(tmp_path, files)
    world.file.touch()
    first = asyncio.create_task(world.file.saved())
    await asyncio.to_thread(files.entered.wait, 10)
    late = []
    for number in range(5):
        world.value[str(number)] = number
        world.file.touch()
        late.append(asyncio.create_task(world.file.saved()))
        await asyncio.sleep(0)
    files.go_on.set()
    await asyncio.gather(first, *late)
    assert files.writes == 2
    assert world.read() == world.value
    await world.tasks.close()


async def test_saved_waits_for_nothing_when_nothing_changed(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.file.saved()
    assert not world.path.exists()


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreError)])
async def test_a_failing_device_is_told_and_tried_again(
    tmp_path: Path, number: int, kind: type[StoreError]
) -> None:
    files = FailingFiles()
    world = World(tmp_path, files)
    await world.file.write()
    files.error = number
    world.value = {"a": 2}
    world.file.touch()
    with pytest.raises(kind, match=r"x\.json"):
        await world.file.saved()
    assert world.read() == {"a": 1}
    files.error = None
    states = [world.file.unsaved]
    await world.file.close()
    assert [*states, world.file.unsaved] == [True, False]
    assert world.read() == {"a": 2}
    await world.tasks.close()


async def test_a_table_that_cannot_be_encoded_is_told_to_all_who_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.value = {"a": object()}
    world.file.touch()
    waiting = [asyncio.create_task(world.file.saved()) for _ in range(3)]
    async with asyncio.timeout(60):
        failures = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(failure) for failure in failures] == [StoreError] * 3
    assert len(set(map(id, failures))) == 3
    assert f"cannot write {world.path}: TypeError" in str(failures[0])
    lines = [each for each in caplog.records if "table not written" in each.getMessage()]
    assert str(world.path) in lines[0].getMessage()
    assert lines[0].exc_info
    with pytest.raises(StoreError, match="TypeError"):
        await world.file.write()
    world.value = {"a": 2}
    world.file.touch()
    await world.file.saved()
    assert world.read() == {"a": 2}
    await world.tasks.close()


async def test_a_write_that_is_cancelled_is_told_to_all_who_wait(tmp_path: Path) -> None:
    """They get an error, and are not cancelled with the writer."""
    files = SlowFiles()
    world = World(tmp_path, files)
    world.file.touch()
    waiting = asyncio.create_task(world.file.saved())
    await asyncio.to_thread(files.entered.wait, 10)
    joined = asyncio.create_task(world.file.saved())
    await asyncio.sleep(0)
    await world.tasks.close()
    for each in (waiting, joined):
        with pytest.raises(StoreError, match="Cancelled"):
            await each
    files.go_on.set()
    await world.file.close()
    assert world.read() == {"a": 1}


class SlowFiles(PosixFiles):
    """A device on which two writers would get in each other's way."""

    def __init__(self) -> None:
        self.writing = 0
        self.writes = 0
        self.fails = False
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.writing += 1
        assert self.writing == 1
        self.entered.set()
        self.go_on.wait(10)
        if self.fails:
            raise OSError(errno.EIO, "no")
        super().pwrite(handle, data, offset)
        self.writing -= 1
        self.writes += 1


async def test_a_stop_in_the_middle_of_a_write_spoils_nothing(tmp_path: Path) -> None:
    files = SlowFiles()
    world = World(tmp_path, files)
    world.file.touch()
    await asyncio.to_thread(files.entered.wait, 10)
    world.value = {"a": 2}
    world.file.touch()
    await world.tasks.close()  # cancels the task, not its thread
    closing = asyncio.create_task(world.file.close())
    await asyncio.sleep(0)
    files.go_on.set()
    await closing
    assert world.read() == {"a": 2}


async def test_who_joins_a_write_that_fails_is_told(tmp_path: Path) -> None:
    files = SlowFiles()
    world = World(tmp_path, files)
    world.file.touch()
    await asyncio.to_thread(files.entered.wait, 10)
    joined = asyncio.create_task(world.file.saved())
    await asyncio.sleep(0)
    files.fails = True
    files.go_on.set()
    with pytest.raises(StoreError, match="cannot write"):
        await joined
    await world.tasks.close()


async def test_closing_writes_what_is_left(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.touch()
    await world.file.close()
    assert world.read() == {"a": 1}
    await world.tasks.close()


async def test_a_long_encoding_gives_the_loop_back(tmp_path: Path) -> None:
    clock = SystemClock()

    def slow() -> Iterator[bytes]:
        for number in range(20):
            until_ns = clock.monotonic_ns() + 3_000_000
            while clock.monotonic_ns() < until_ns:
                pass
            yield b"%d" % number

    tasks = Tasks()
    file = TableFile(TableDirectory(str(tmp_path), clock, tasks), "x.json", slow)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await file.write()
    counting.cancel()
    assert turns >= 20
    await tasks.close()
