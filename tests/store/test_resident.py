"""What is given without a wait for the device, and what is left to a thread."""

from pathlib import Path

import pytest

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import iter_decode
from cometmq.store import resident
from cometmq.store.engine import MessageStore
from cometmq.store.reader import ReadStatus
from cometmq.store.resident import is_recent
from tests.store.faults import ForgetfulFiles
from tests.store.stores import fill, opened


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


def reopened(root: Path, files: Watched, hot_percent: int = 40) -> MessageStore:
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
    store = reopened(tmp_path, files)
    start = store.written_offset
    first = store.queue("t", 0).max_offset
    fill(store, 60, first=201)
    assert is_recent(store.log, start)
    assert not is_recent(store.log, start - 1)
    result = store.read("t", 0, first, 32)
    assert (result.cold, result.count, files.reads) == (False, 20, 0)
    assert files.maps > 0
    store.close()


async def test_after_a_start_the_system_is_asked_what_it_has(tmp_path: Path) -> None:
    files = Watched()
    store = reopened(tmp_path, files)
    files.cold = False
    assert await replay(store, 1) == (list(range(67)), 0)
    assert files.reads == 0
    store.close()


async def test_what_the_system_lacks_is_read_in_a_thread(tmp_path: Path) -> None:
    files = Watched()
    store = reopened(tmp_path, files)
    got, cold = await replay(store, 1)
    assert got == list(range(67))
    assert cold >= 3
    assert files.reads >= cold
    store.close()


async def test_entries_that_are_not_in_memory(tmp_path: Path) -> None:
    files = Watched()
    store = reopened(tmp_path, files)
    result = store.read("t", 0, 5, 4, codes=frozenset({1, 2}))
    assert result.query is not None
    assert (result.cold, result.count) == (True, 0)
    await store.load(result)
    assert (result.status, result.count) == (ReadStatus.NO_MATCHED_MESSAGE, 0)
    assert result.next_offset > 5
    store.close()


async def test_entries_of_files_that_are_gone(tmp_path: Path) -> None:
    files = Watched()
    store = reopened(tmp_path, files)
    lost, expired = store.read("t", 0, 5, 4), store.read("t", 0, 5, 4)
    store.pool.drop(str(tmp_path / "consumequeue" / "t" / "0"), 0)
    with pytest.raises(StoreCorrupt, match="this queue file cannot be read"):
        await store.load(lost)
    store.queue("t", 0).min_offset = 40
    await store.load(expired)
    assert (expired.status, expired.count) == (ReadStatus.OFFSET_FOUND_NULL, 0)
    files.cold = False
    assert store.read("t", 0, 5, 4).status is ReadStatus.OFFSET_TOO_SMALL
    store.close()


async def test_far_behind_the_end_a_window_serves_what_follows(tmp_path: Path) -> None:
    files = Watched()
    store = reopened(tmp_path, files, hot_percent=0)
    files.cold = False
    got, cold = await replay(store, 1)
    assert got == list(range(67))
    # One window a log file, however many reads; the system has its bytes.
    assert cold <= len(store.log.segments.files)
    assert files.reads == 0
    store.log.windows.forget()
    assert store.read("t", 1, 0, 4).cold
    store.close()


async def test_ranges_far_apart_are_read_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Watched()
    store = reopened(tmp_path, files)
    files.cold = False
    monkeypatch.setattr(resident, "_GAP_BYTES", 0)
    assert await replay(store, 2) == (list(range(66)), 0)
    store.close()
