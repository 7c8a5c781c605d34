"""What is given without a wait for the device, what a thread reads, and what is given to nobody."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.filter.tags import tag_code
from cometmq.message.record import Record, decode_one, iter_decode
from cometmq.net.tasks import Tasks
from cometmq.store.files import PosixFiles
from cometmq.store.layout import file_name
from cometmq.store.log.checksums import BLOCK_BYTES
from cometmq.store.log.segments import LogFile
from cometmq.store.messagestore import MessageStore
from cometmq.store.read import coldreads
from cometmq.store.read.coldreads import PARTS, WINDOW_BYTES, FarTurns, Share, Windows
from cometmq.store.read.reader import ReadStatus
from tests.store.faults import ForgetfulFiles
from tests.store.sealed import FILE_BYTES, flip, reopened, scrub, sealed_store
from tests.store.stores import fill, log_of, opened, put

# --- at once -------------------------------------------------------------------------------------


class Watched(ForgetfulFiles):
    """Counts maps that are made and reads that wait for the device."""

    __slots__ = ("maps", "reads")

    def __init__(self) -> None:
        super().__init__()
        self.maps = self.reads = 0

    def map(self, handle: int, size_bytes: int) -> memoryview:
        self.maps += 1
        return super().map(handle, size_bytes)

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        self.reads += 1
        return super().read_into(handle, buffer, offset)


def rerun(root: Path, files: Watched, hot_percent: int = 40) -> MessageStore:
    """A store with 200 messages in three queues that another run wrote; nothing is counted yet."""
    store = opened(root, files=files)
    fill(store, 200)
    store.close()
    store = opened(root, files=files, access_message_in_memory_max_ratio=hot_percent)
    for file in store.log.segments.files:
        file.unmap()
    for queue_id in range(3):
        store.queue("t", queue_id)
    files.maps = files.reads = 0
    return store


async def replay(store: MessageStore, queue_id: int) -> tuple[list[int], int]:
    """The queue offsets that a consumer gets, and how many of its reads were cold."""
    got: list[int] = []
    cold = offset = 0
    while True:
        result = store.read("t", queue_id, offset, 32)
        if result.status is not ReadStatus.FOUND:
            return got, cold
        if result.cold:
            cold += 1
            await store.load(result)
        found = [record for chunk in result.chunks for record in iter_decode(chunk)]
        assert len(found) == result.count > 0
        got += [record.queue_offset for record in found]
        offset = result.next_offset


async def test_what_this_run_wrote_comes_through_maps(tmp_path: Path) -> None:
    files = Watched()
    store = rerun(tmp_path, files)
    start = store.written_offset
    first = store.queue("t", 0).max_offset
    fill(store, 60, first=201)
    assert start >= store.reads.recent_from
    assert start - 1 < store.reads.recent_from
    result = store.read("t", 0, first, 32)
    assert (result.cold, result.count, files.reads) == (False, 20, 0)
    assert files.maps > 0
    store.close()


async def test_after_a_start_the_system_is_asked_what_it_has(tmp_path: Path) -> None:
    files = Watched()
    store = rerun(tmp_path, files)
    files.cold = False
    assert await replay(store, 1) == (list(range(67)), 0)
    assert files.reads == 0
    store.close()


async def test_what_the_system_lacks_is_read_in_a_thread(tmp_path: Path) -> None:
    files = Watched()
    store = rerun(tmp_path, files)
    got, cold = await replay(store, 1)
    assert got == list(range(67))
    assert cold >= 3
    assert files.reads >= cold
    store.close()


async def test_what_a_window_has_near_the_end_is_not_touched_through_the_map(
    tmp_path: Path,
) -> None:
    files = Watched()
    store = rerun(tmp_path, files)
    files.cold = False
    file = store.log.segments.files[0]
    view = file.view
    file._is_resident = lambda _start, _stop: False
    await store.reads.load([(0, 2_000)], ahead=True)
    assert store.reads.mapped(file, 100, 1_000) is None
    assert store.reads.at_once(file, 100, 1_000) == view[100:1_000]
    reads = files.reads
    assert not store.read("t", 0, 0, 3).cold
    assert files.reads == reads
    store.close()


async def test_entries_that_are_not_in_memory(tmp_path: Path) -> None:
    files = Watched()
    store = rerun(tmp_path, files)
    result = store.read("t", 0, 5, 4, codes=frozenset({1, 2}))
    assert result.query is not None
    assert (result.cold, result.count) == (True, 0)
    await store.load(result)
    assert (result.status, result.count) == (ReadStatus.NO_MATCHED_MESSAGE, 0)
    assert result.next_offset > 5
    store.close()


async def test_entries_of_files_that_are_gone(tmp_path: Path) -> None:
    files = Watched()
    store = rerun(tmp_path, files)
    lost, expired = store.read("t", 0, 5, 4), store.read("t", 0, 5, 4)
    store.pool.drop(str(tmp_path / "consumequeue" / "t" / "0"), 0)
    with pytest.raises(StoreCorrupt, match="cannot read this queue file"):
        await store.load(lost)
    store.queue("t", 0).min_offset = 40
    await store.load(expired)
    assert (expired.status, expired.count) == (ReadStatus.OFFSET_FOUND_NULL, 0)
    files.cold = False
    assert store.read("t", 0, 5, 4).status is ReadStatus.OFFSET_TOO_SMALL
    store.close()


async def test_far_behind_the_end_a_window_serves_what_follows(tmp_path: Path) -> None:
    files = Watched()
    store = rerun(tmp_path, files, hot_percent=0)
    files.cold = False
    got, cold = await replay(store, 1)
    assert got == list(range(67))
    # One window a log file, however many reads; the system has its bytes.
    assert cold <= len(store.log.segments.files)
    assert files.reads == 0
    store.reads.windows.forget()
    assert store.read("t", 1, 0, 4).cold
    store.close()


async def test_ranges_far_apart_are_read_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Watched()
    store = rerun(tmp_path, files)
    files.cold = False
    monkeypatch.setattr(coldreads, "GAP_BYTES", 0)
    assert await replay(store, 2) == (list(range(66)), 0)
    store.close()


# --- from all over the log ----------------------------------------------------------------------


async def test_records_in_memory_and_on_disk_come_in_the_order_asked(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 200)
    records = log_of(store)
    store.close()
    store = opened(tmp_path)
    fill(store, 50, first=200)
    records = log_of(store)
    wanted = [*records[::3], *records[1::7][::-1]]
    ranges = [(each.physical_offset, each.size_bytes) for each in wanted]
    found = await store.reads.gather(ranges)
    assert [decode_one(view).body for view in found if isinstance(view, memoryview)] == [
        each.body for each in wanted
    ]
    store.close()


async def test_what_the_log_has_no_longer_is_none(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 200)
    records = log_of(store)
    store.log.segments.drop_first()
    start = store.log.segments.start
    ranges = [(each.physical_offset, each.size_bytes) for each in records]
    found = await store.reads.gather([*ranges, (1 << 40, 10)])
    for (at, _), view in zip(ranges, found, strict=False):
        assert (view is None) == (at < start)
    assert found[-1] is None
    store.close()


async def test_damage_is_told_of_the_record_that_has_it(tmp_path: Path) -> None:
    store = sealed_store(tmp_path / "s")
    records = log_of(store)
    store.close()
    bad = records[40].physical_offset
    flip(tmp_path / "s", bad)
    store = reopened(tmp_path / "s", access_message_in_memory_max_ratio=0)
    await scrub(store)
    found = await store.reads.gather([(each.physical_offset, each.size_bytes) for each in records])
    block = bad - bad % BLOCK_BYTES
    for record, view in zip(records, found, strict=True):
        stop = record.physical_offset + record.size_bytes
        if record.physical_offset < block + BLOCK_BYTES and stop > block:
            assert isinstance(view, StoreCorrupt)
        else:
            assert isinstance(view, memoryview)
    store.close()


# --- windows ------------------------------------------------------------------------------------

BASE = 10 * WINDOW_BYTES
SIZE = 3 * WINDOW_BYTES + 5_000
CONTENT = random.Random(1).randbytes(SIZE)


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


def windows_of(file: LogFile) -> Windows:
    return Windows(lambda: file.end)


def found(windows: Windows, file: LogFile, start: int, stop: int) -> bytes | None:
    view = windows.find(file, start, stop)
    return None if view is None else bytes(view)


async def fetched(windows: Windows, file: LogFile, start: int, stop: int) -> bytes:
    return bytes(await windows.fetch(file, start, stop))


def expected(start: int, stop: int) -> bytes:
    return CONTENT[start - BASE : stop - BASE]


async def test_a_read_serves_all_who_come_by(file: LogFile, device: Device) -> None:
    windows = windows_of(file)
    start = BASE + BLOCK_BYTES + 100
    assert found(windows, file, start, start + 50) is None
    assert await fetched(windows, file, start, start + 50) == expected(start, start + 50)
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
    assert await fetched(windows, file, start, stop) == expected(start, stop)
    assert found(windows, file, start, stop) == expected(start, stop)
    assert found(windows, file, stop - 20, stop) == expected(stop - 20, stop)
    over = BASE + 3 * WINDOW_BYTES
    assert found(windows, file, over - BLOCK_BYTES - 1, over + 1) is None


async def test_readers_at_once_share_a_read(file: LogFile, device: Device) -> None:
    windows = windows_of(file)
    answers = await asyncio.gather(
        *(fetched(windows, file, BASE + at, BASE + at + 10) for at in range(0, 1_000, 10))
    )
    assert b"".join(answers) == CONTENT[:1_000]
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
    assert await fetched(windows_of(file), file, BASE, BASE + 10) == CONTENT[:10]
    assert len(device.reads) == 1


async def test_a_reader_who_gives_up_leaves_the_others_theirs(
    file: LogFile, device: Device
) -> None:
    windows = windows_of(file)
    first = asyncio.create_task(fetched(windows, file, BASE, BASE + 10))
    second = asyncio.create_task(fetched(windows, file, BASE, BASE + 10))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == CONTENT[:10]
    assert len(device.reads) == 1


async def test_an_error_is_for_whoever_waits_and_the_next_tries_again(
    file: LogFile, device: Device
) -> None:
    windows = windows_of(file)
    device.refuses.append(OSError(errno.EIO, "no"))
    with pytest.raises(OSError, match="no"):
        await fetched(windows, file, BASE, BASE + 10)
    assert await fetched(windows, file, BASE, BASE + 10) == CONTENT[:10]
    assert not file.is_pinned


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
    view = await fetched(windows, file, over - 9, over + 9)
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
    assert await fetched(windows, another, BASE, BASE + 9) == bytes(9)
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


# --- sealed files -------------------------------------------------------------------------------


def made(tmp_path: Path, **changes: object) -> tuple[Path, list[Record]]:
    """A directory with sealed files, closed, and its records."""
    store = sealed_store(tmp_path / "s", **changes)
    records = log_of(store)
    store.close()
    return tmp_path / "s", records


async def replayed(store: MessageStore, queue_id: int) -> tuple[list[int], set[int]]:
    """The queue offsets that a consumer gets who steps over errors, and where errors were."""
    got: list[int] = []
    errors: set[int] = set()
    queue = store.queue("t", queue_id)
    offset = 0
    while offset < queue.max_offset:
        result = store.read("t", queue_id, offset, 32)
        try:
            if result.cold:
                await store.load(result)
        except StoreCorrupt as error:
            errors.add(error.offset)
            offset += 1
            continue
        assert result.status is ReadStatus.FOUND
        found = [record for chunk in result.chunks for record in iter_decode(chunk)]
        assert result.size_bytes == sum(map(len, result.chunks))
        assert result.count == len(found)
        assert [record.queue_offset for record in found] == list(range(offset, offset + len(found)))
        got += [record.queue_offset for record in found]
        offset = result.next_offset
    return got, errors


@pytest.mark.parametrize("ratio", [0, 40])
async def test_sealed_files_are_served_whole(tmp_path: Path, ratio: int) -> None:
    root, records = made(tmp_path)
    store = reopened(root, access_message_in_memory_max_ratio=ratio)
    sealed = [file for file in store.log.segments.files if file.seals is not None]
    assert len(sealed) >= 2
    for queue_id in range(3):
        got, errors = await replayed(store, queue_id)
        assert got == [each.queue_offset for each in records if each.queue_id == queue_id]
        assert not errors
    store.close()


def touching(records: list[Record], block: int) -> set[tuple[int, int]]:
    """Queue and offset of the records that have bytes in a block."""
    return {
        (each.queue_id, each.queue_offset)
        for each in records
        if each.physical_offset < block + BLOCK_BYTES
        and each.physical_offset + each.size_bytes > block
    }


async def assert_refused(store: MessageStore, records: list[Record], block: int) -> None:
    """All records are served but those that have bytes in a block."""
    lost = touching(records, block)
    assert len(lost) > 50
    for queue_id in range(3):
        got, errors = await replayed(store, queue_id)
        assert set(got) == {
            each.queue_offset
            for each in records
            if each.queue_id == queue_id and (queue_id, each.queue_offset) not in lost
        }
        assert errors == {block}


@pytest.mark.parametrize("ratio", [0, 40])
async def test_a_damaged_block_is_never_served_and_the_others_are(
    tmp_path: Path, ratio: int, caplog: pytest.LogCaptureFixture
) -> None:
    root, records = made(tmp_path)
    block = FILE_BYTES + BLOCK_BYTES
    flip(root, block + 1_000)
    store = reopened(root, access_message_in_memory_max_ratio=ratio)
    await store.reads.load([(block + 900, 200)], ahead=True)
    await scrub(store)
    assert store.reads.windows.find(store.log.segments.files[1], block + 900, block + 1_100)
    await assert_refused(store, records, block)
    codes = frozenset(tag_code(f"g{number}") for number in range(4))
    first = min(offset for queue_id, offset in touching(records, block) if queue_id == 0)
    result = store.read("t", 0, first, 1, codes=codes)
    assert result.cold
    with pytest.raises(StoreCorrupt):
        await store.load(result)
    assert caplog.text.count("log_block_damaged") == 1
    assert store.runtime()["damaged_blocks"] == 1
    store.close()


async def test_damage_in_what_this_run_wrote_is_not_served_either(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    records = log_of(store)
    flip(tmp_path, BLOCK_BYTES + 77)
    assert store.reads.recent_from == 0
    await scrub(store)
    assert store.reads.recent_from == 2 * BLOCK_BYTES
    await assert_refused(store, records, BLOCK_BYTES)
    store.close()


async def test_every_way_to_read_refuses_a_damaged_block(tmp_path: Path) -> None:
    root, records = made(tmp_path)
    # The flag of the first record: nothing in RocketMQ's files would show it.
    flip(root, 16)
    store = reopened(root)
    assert await store.fetch_at(0) is not None
    await scrub(store)
    assert store.message_at(0) is None
    for question in (
        store.fetch_at(0),
        store.store_time_at("t", 0, 0),
        store.earliest_time("t", 0),
        store.offset_by_time("t", 0, 0),
        store.query_index("t", "k0", 5, 0, 1 << 62),
        store.reads.bytes_at(0, 10),
    ):
        with pytest.raises(StoreCorrupt, match="changed") as caught:
            await question
        assert caught.value.offset == 0
        assert caught.value.path.endswith("0" * 20)
    last = records[-1]
    assert await store.fetch_at(last.physical_offset) is not None
    store.close()


@pytest.mark.parametrize("ratio", [0, 40])
async def test_a_block_that_was_brought_back_is_served_again(
    tmp_path: Path, ratio: int, caplog: pytest.LogCaptureFixture
) -> None:
    root, records = made(tmp_path)
    flip(root, 16)
    store = reopened(root, access_message_in_memory_max_ratio=ratio)
    got, _ = await replayed(store, 0)
    assert 0 in got
    await scrub(store)
    for _ in range(2):
        _, errors = await replayed(store, 0)
        assert errors == {0}
    flip(root, 16)
    assert await store.fetch_at(0) is not None
    assert store.runtime()["damaged_blocks"] == 0
    got, errors = await replayed(store, 0)
    assert got == [each.queue_offset for each in records if each.queue_id == 0]
    assert not errors
    result = store.read("t", records[0].queue_id, records[0].queue_offset, 1)
    if result.cold:
        await store.load(result)
    assert next(iter_decode(result.chunks[0])) == records[0]
    assert caplog.text.count("log_block_restored") == 1
    store.close()


async def test_a_block_that_cannot_be_read_again_stays_damaged(tmp_path: Path) -> None:
    root, _ = made(tmp_path)
    flip(root, 16)
    store = reopened(root)
    await scrub(store)
    flip(root, 16)
    file = store.log.segments.files[0]
    os.truncate(file.path, 0)
    with pytest.raises(StoreCorrupt):
        await store.reads.bytes_at(0, 10)
    store.close()


async def test_a_dropped_file_ends_what_is_loaded(tmp_path: Path) -> None:
    store = sealed_store(tmp_path, access_message_in_memory_max_ratio=0)
    second = store.log.segments.files[1].base
    result = store.read("t", 0, 0, 32)
    offset = next(
        each.queue_offset
        for each in log_of(store)
        if each.queue_id == 0 and each.physical_offset > second - 1_000
    )
    across = store.read("t", 0, offset, 8)
    assert across.ranges[0][0] < second < across.ranges[-1][0]
    store.log.segments.drop_first()
    await store.load(result)
    assert (result.status, result.count, result.chunks) == (
        ReadStatus.MESSAGE_WAS_REMOVING, 0, [],
    )  # fmt: skip
    assert await store.reads.load([(0, 10), (second, 10)]) == []
    store.close()


def test_another_broker_s_run_puts_all_seals_in_doubt(tmp_path: Path) -> None:
    root, _ = made(tmp_path)
    times = (root / "checkpoint").read_bytes()
    (root / "checkpoint").write_bytes(bytes([times[0] ^ 1]) + times[1:])
    store = reopened(root)
    assert all(file.seals is None for file in store.log.segments.files)
    assert len(store.seals.doubted) >= 2
    store.close()


def test_a_log_that_ends_earlier_takes_its_seals_along(tmp_path: Path) -> None:
    root, records = made(tmp_path)
    middle = next(each for each in records if each.physical_offset > FILE_BYTES + BLOCK_BYTES)
    # Something cut the log in the middle of the second file, which was full.
    for path in sorted((root / "commitlog").iterdir())[2:]:
        path.unlink()
    path = root / "commitlog" / f"{FILE_BYTES:020d}"
    keep = middle.physical_offset - FILE_BYTES
    path.write_bytes(path.read_bytes()[:keep].ljust(FILE_BYTES, b"\0"))
    (root / "cometmq-positions.json").unlink()
    (root / "abort").touch()
    store = reopened(root)
    assert store.written_offset == middle.physical_offset
    assert store.seals.bases | store.seals.doubted == {0}
    fill(store, 900, queues=3, first=10_000)
    store.close()


@pytest.mark.core
@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("at_hand", [False, True])
async def test_a_replay_over_the_edges_of_windows_and_files(
    tmp_path: Path, tagged: bool, at_hand: bool, core: object
) -> None:
    chance = random.Random(7)
    files = ForgetfulFiles()
    size = 2 * WINDOW_BYTES + 70_000
    store = opened(tmp_path, files=files, mapped_file_size_commit_log=size)
    for number in range(3_000):
        body = chance.randbytes(chance.choice((10, 1_000, 5_000)))
        put(store, "t", chance.randrange(4), body, tag=f"g{number % 3}")
        store.commit()
    store.close()
    files.cold = False
    store = opened(
        tmp_path,
        files=files,
        mapped_file_size_commit_log=size,
        access_message_in_memory_max_ratio=0,
    )
    assert len(store.log.segments.files) >= 3
    codes = frozenset([tag_code("g1")]) if tagged else None
    wanted = [each for each in log_of(store) if not tagged or b"g1" in each.properties]
    counts: list[int] = []
    for queue_id in range(4):
        got: list[Record] = []
        offset = 0
        while offset < store.queue("t", queue_id).max_offset:
            files.cold = not at_hand
            result = store.read("t", queue_id, offset, 32, codes=codes)
            files.cold = False
            if result.cold:
                await store.load(result)
            found = [record for chunk in result.chunks for record in iter_decode(chunk)]
            assert len(found) == result.count
            assert sum(map(len, result.chunks)) == result.size_bytes <= 262_144
            assert result.far or not found
            got += found
            counts.append(len(found))
            offset = result.next_offset
        assert got == [each for each in wanted if each.queue_id == queue_id]
    # What windows have comes by the limits for what is in memory.
    assert max(counts) > 8
    store.close()


# --- turns --------------------------------------------------------------------------------------

MS = 1_000_000


def test_while_the_log_grows_a_pull_is_followed_by_a_rest() -> None:
    share = Share()
    assert not share.rests(1_000 * MS, 0)
    share.spent(1_001 * MS, 2 * MS)
    # What was left of the share a millisecond ago counts.
    assert share.rests((1_000 + 2 * PARTS - 1) * MS, 1)
    assert not share.rests((1_000 + 2 * PARTS) * MS, 2)


def test_without_sends_there_is_no_rest() -> None:
    share = Share()
    share.rests(1_000 * MS, 7)
    share.spent(1_001 * MS, 500 * MS)
    assert share.rests(1_019 * MS, 7)
    assert not share.rests(1_020 * MS, 7)


def test_a_share_is_what_it_says() -> None:
    share = Share()
    now, used = 0, 0
    for turn in range(10_000):
        if share.rests(now, turn):
            now += MS
        else:
            used += MS // 4
            now += MS // 4
            share.spent(now, MS // 4)
    assert 0.9 / PARTS < used / now < 1.1 / PARTS


class Far:
    """Far pulls of one broker, with what was read. Each takes 2 ms, and somebody sends meanwhile
    as long as ``sends`` says so."""

    def __init__(self, tasks: Tasks) -> None:
        self.clock = VirtualClock()
        self.written = 0
        self.sends = True
        self.read: list[str] = []
        self.far = FarTurns(self.clock, tasks, lambda: self.written)

    def pull(self, name: str) -> None:
        """A pull comes."""
        begun_ns = self.clock.monotonic_ns()
        if self.far.must_wait(begun_ns):
            self.far.wait(lambda: self.pull(name))
            return
        self.pass_time(2)
        self.read.append(name)
        self.far.spent(begun_ns)

    def pass_time(self, duration_ms: int) -> None:
        self.written += self.sends
        self.clock.advance(duration_ms)

    async def until_read(self) -> int:
        """How long it takes until nobody waits."""
        begun_ms = self.clock.monotonic_ms()
        while self.far.waiting:
            await self.clock.sleep_ms(0)
            self.pass_time(1)
        return self.clock.monotonic_ms() - begun_ms


@asynccontextmanager
async def far_reads() -> AsyncIterator[Far]:
    tasks = Tasks()
    yield Far(tasks)
    await tasks.close()


async def test_pulls_wait_for_their_turn_while_others_send() -> None:
    async with far_reads() as far:
        for name in "abcd":
            far.pull(name)
        assert far.read == ["a"]
        took_ms = await far.until_read()
        assert far.read == ["a", "b", "c", "d"]
        # Three more turns of 2 ms, each after its rest.
        assert 5 * PARTS <= took_ms <= 7.5 * PARTS


async def test_when_nobody_sends_nobody_waits() -> None:
    async with far_reads() as far:
        far.pull("a")
        far.pull("b")
        assert far.read == ["a"]
        far.sends = False
        far.pass_time(20)
        for name in "cd":
            far.pull(name)
        assert far.read == ["a", "c", "d"]
        assert await far.until_read() <= 4
        assert far.read == ["a", "c", "d", "b"]
