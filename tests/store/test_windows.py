"""What is read far behind the end: once for all who come by, ahead of them, and compared."""

import asyncio
import errno
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.store.files import PosixFiles
from cometmq.store.layout import file_name
from cometmq.store.mapped import LogFile
from cometmq.store.seals import BLOCK_BYTES, Seal, Seals, Summary, sums_of
from cometmq.store.windows import WINDOW_BYTES, Windows

BASE = 10 * WINDOW_BYTES
SIZE = 3 * WINDOW_BYTES + 5_000
CONTENT = random.Random(1).randbytes(SIZE)
SUMMARY = Summary(0, -1, -1, 0, 0, 0, 0)


class Device(PosixFiles):
    """Says what was read in threads and what the system was told to fetch, as (position, size).

    The system has nothing else in memory; ``refuses`` are errors of the next reads.
    """

    __slots__ = ("at_hand", "reads", "refuses", "wanted")

    def __init__(self) -> None:
        self.at_hand = False
        self.reads: list[tuple[int, int]] = []
        self.wanted: list[tuple[int, int]] = []
        self.refuses: list[OSError] = []

    def read_cached(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        return super().read_into(handle, buffer, offset) if self.at_hand else 0

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        self.reads.append((offset, len(buffer)))
        if self.refuses:
            raise self.refuses.pop()
        return super().read_into(handle, buffer, offset)

    def will_need(self, handle: int, offset: int, size_bytes: int) -> None:
        super().will_need(handle, offset, size_bytes)
        self.wanted.append((offset, size_bytes))


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def file(tmp_path: Path, device: Device) -> Iterator[LogFile]:
    """A log file that begins at BASE and holds CONTENT."""
    path = tmp_path / file_name(BASE)
    path.write_bytes(CONTENT)
    file = LogFile(device, str(path), BASE, SIZE, device.open(str(path)))
    yield file
    file.close()


@pytest.fixture
def seals(tmp_path: Path, device: Device) -> Seals:
    """The right seal of the file."""
    seals = Seals(device, str(tmp_path))
    seals.add(Seal(BASE, SIZE, 0, SUMMARY, sums_of(CONTENT)))
    return seals


def windows_of(file: LogFile) -> Windows:
    return Windows(lambda: file.end)


def found(windows: Windows, file: LogFile, start: int, stop: int) -> bytes | None:
    view = windows.find(file, start, stop)
    return None if view is None else bytes(view)


async def fetched(windows: Windows, file: LogFile, start: int, stop: int) -> tuple[bytes, int]:
    view, damage = await windows.fetch(file, start, stop)
    return bytes(view), damage


def expected(start: int, stop: int) -> bytes:
    return CONTENT[start - BASE : stop - BASE]


def flip(file: LogFile, offset: int) -> None:
    with open(file.path, "r+b") as raw:
        raw.seek(offset - BASE)
        found = raw.read(1)[0]
        raw.seek(offset - BASE)
        raw.write(bytes([found ^ 1]))


async def test_a_read_serves_all_who_come_by(file: LogFile, device: Device) -> None:
    windows = windows_of(file)
    start = BASE + BLOCK_BYTES + 100
    assert found(windows, file, start, start + 50) is None
    view, damage = await fetched(windows, file, start, start + 50)
    assert (view, damage) == (expected(start, start + 50), -1)
    assert device.reads == [(BLOCK_BYTES, BLOCK_BYTES)]
    assert device.wanted[0] == (BLOCK_BYTES, WINDOW_BYTES - BLOCK_BYTES)
    assert found(windows, file, start + 50, start + 90) == expected(start + 50, start + 90)
    assert found(windows, file, start - 2, start + BLOCK_BYTES) is None
    assert len(device.reads) == 1


async def test_what_the_system_fetched_meanwhile_takes_no_thread(
    file: LogFile, device: Device
) -> None:
    windows = windows_of(file)
    await fetched(windows, file, BASE, BASE + 10)
    device.at_hand = True
    step = 3_000
    for start in range(BASE, file.end, step):
        stop = min(start + step, file.end)
        assert found(windows, file, start, stop) == expected(start, stop)
    assert len(device.reads) == 1
    # Each window was asked for when something was given from the one before.
    assert [position // WINDOW_BYTES for position, _ in device.wanted] == [0, 1, 2, 3]


async def test_a_range_over_the_edges_of_windows(file: LogFile, device: Device) -> None:
    windows = windows_of(file)
    start, stop = BASE + WINDOW_BYTES - 7, BASE + 2 * WINDOW_BYTES + 9
    view, damage = await fetched(windows, file, start, stop)
    assert (view, damage) == (expected(start, stop), -1)
    assert found(windows, file, start, stop) == expected(start, stop)
    assert found(windows, file, stop - 20, stop) == expected(stop - 20, stop)
    over = BASE + 3 * WINDOW_BYTES
    assert found(windows, file, over - BLOCK_BYTES - 1, over + 1) is None


async def test_readers_at_once_share_a_read(file: LogFile, device: Device) -> None:
    windows = windows_of(file)
    answers = await asyncio.gather(
        *(fetched(windows, file, BASE + at, BASE + at + 10) for at in range(0, 1_000, 10))
    )
    assert b"".join(view for view, _ in answers) == CONTENT[:1_000]
    assert len(device.reads) == 1


async def test_a_read_that_is_over_before_anybody_was_told(
    file: LogFile, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    def at_once(_: object, call: Callable[..., object], *values: object) -> asyncio.Future[object]:
        done = loop.create_future()
        done.set_result(call(*values))
        return done

    monkeypatch.setattr(loop, "run_in_executor", at_once)
    assert await fetched(windows_of(file), file, BASE, BASE + 10) == (CONTENT[:10], -1)
    assert len(device.reads) == 1


async def test_a_reader_who_gives_up_leaves_the_others_theirs(
    file: LogFile, device: Device
) -> None:
    windows = windows_of(file)
    first = asyncio.create_task(fetched(windows, file, BASE, BASE + 10))
    second = asyncio.create_task(fetched(windows, file, BASE, BASE + 10))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == (CONTENT[:10], -1)
    assert len(device.reads) == 1


async def test_an_error_is_for_whoever_waits_and_the_next_tries_again(
    file: LogFile, device: Device
) -> None:
    windows = windows_of(file)
    device.refuses.append(OSError(errno.EIO, "no"))
    with pytest.raises(OSError, match="no"):
        await fetched(windows, file, BASE, BASE + 10)
    assert await fetched(windows, file, BASE, BASE + 10) == (CONTENT[:10], -1)
    assert not file.is_pinned


@pytest.mark.parametrize("at_hand", [False, True])
async def test_a_block_that_differs_is_not_given_and_told_once(
    file: LogFile, device: Device, seals: Seals, caplog: pytest.LogCaptureFixture, at_hand: bool
) -> None:
    file.seal(seals, proven=False)
    bad = BASE + 3 * BLOCK_BYTES
    flip(file, bad + 17)
    windows = windows_of(file)
    await fetched(windows, file, BASE, BASE + 1)
    device.at_hand = at_hand
    assert await fetched(windows, file, bad - 5, bad) == (expected(bad - 5, bad), -1)
    _, damage = await fetched(windows, file, bad - 5, bad + BLOCK_BYTES + 5)
    assert damage == bad
    assert found(windows, file, bad, bad + 5) is None
    end = bad + BLOCK_BYTES
    assert found(windows, file, end, end + 5) == expected(end, end + 5)
    assert file.is_proven(bad - 5, bad)
    assert not file.is_proven(bad, bad + 1)
    assert caplog.text.count("log_block_damaged") == 1


async def test_a_file_that_got_its_seal_after_a_window_was_read(
    file: LogFile, device: Device, seals: Seals
) -> None:
    windows = windows_of(file)
    await fetched(windows, file, BASE, BASE + 1)
    device.at_hand = True
    assert found(windows, file, BASE, BASE + 1) is not None
    file.seal(seals, proven=False)
    flip(file, BASE + BLOCK_BYTES)
    assert found(windows, file, BASE + BLOCK_BYTES, BASE + BLOCK_BYTES + 1) is None
    _, damage = await fetched(windows, file, BASE + BLOCK_BYTES, BASE + BLOCK_BYTES + 1)
    assert damage == BASE + BLOCK_BYTES


async def test_a_seal_that_cannot_be_read(
    file: LogFile, seals: Seals, caplog: pytest.LogCaptureFixture
) -> None:
    os.truncate(seals.path(BASE), 20)
    file.seal(seals, proven=False)
    windows = windows_of(file)
    with caplog.at_level(logging.ERROR):
        assert await fetched(windows, file, BASE, BASE + 9) == (CONTENT[:9], -1)
    assert file.seals is None
    assert "seal_unreadable" in caplog.text


async def test_the_end_moves_on(file: LogFile, device: Device) -> None:
    end = BASE + 5_000
    windows = Windows(lambda: end)
    await fetched(windows, file, BASE, BASE + 5_000)
    assert found(windows, file, BASE, BASE + 5_000) == CONTENT[:5_000]
    assert found(windows, file, BASE, BASE + 5_001) is None
    # Nothing is asked for behind the end.
    assert device.wanted == [(0, 5_000)]
    end = BASE + WINDOW_BYTES + 9
    assert found(windows, file, BASE, BASE + 5_001) is None
    device.at_hand = True
    assert found(windows, file, BASE, BASE + 7_000) == CONTENT[:7_000]
    over = BASE + WINDOW_BYTES
    view, _ = await fetched(windows, file, over - 9, over + 9)
    assert view == expected(over - 9, over + 9)


async def test_another_file_in_the_place_of_one_that_is_gone(
    file: LogFile, device: Device, tmp_path: Path
) -> None:
    windows = windows_of(file)
    await fetched(windows, file, BASE, BASE + 9)
    path = tmp_path / "another"
    path.write_bytes(bytes(SIZE))
    another = LogFile(device, str(path), BASE, SIZE, device.open(str(path)))
    assert found(windows, another, BASE, BASE + 9) is None
    assert await fetched(windows, another, BASE, BASE + 9) == (bytes(9), -1)
    another.close()


async def test_windows_are_few(tmp_path: Path, device: Device) -> None:
    path = tmp_path / file_name(0)
    path.touch()
    os.truncate(path, 40 * WINDOW_BYTES)
    file = LogFile(device, str(path), 0, 40 * WINDOW_BYTES, device.open(str(path)))
    windows = windows_of(file)
    for start in range(0, file.end, WINDOW_BYTES):
        await fetched(windows, file, start, start + 5)
    assert found(windows, file, 0, 5) is None
    last = file.end - WINDOW_BYTES
    assert found(windows, file, last, last + 5) == bytes(5)
    windows.forget()
    assert found(windows, file, last, last + 5) is None
    file.close()
