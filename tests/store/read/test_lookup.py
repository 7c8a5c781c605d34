"""Look-ups by time, key and place, hot and cold."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.clock import VirtualClock
from cometmq.message.ids import pack_host
from cometmq.message.record import iter_decode
from cometmq.store.files import PosixFiles
from cometmq.store.index import ENTRY_BYTES
from cometmq.store.messagestore import MessageStore
from cometmq.store.read import lookup as queries
from tests.store.faults import ForgetfulFiles
from tests.store.stores import fill, log_of, opened, put


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(-2, 20), st.booleans())
def test_offset_by_time(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], at: int, cold: bool
) -> None:
    clock = VirtualClock(wall_ms=1_000)
    ratio = 0 if cold else 40
    store = opened(tmp_path_factory.mktemp("s"), clock, access_message_in_memory_max_ratio=ratio)
    times: list[int] = []
    for step in steps:
        clock.advance(step)
        put(store)
        store.commit()
        times.append(clock.wall_ms())
    wanted = 1_000 + at

    async def ask() -> tuple[int, int]:
        return (
            await store.offset_by_time("t", 0, wanted),
            await store.offset_by_time("t", 0, wanted, upper=True),
        )

    lower, upper = asyncio.run(ask())
    assert lower == next((n for n, ms in enumerate(times) if ms >= wanted), len(times))
    assert upper == max((n for n, ms in enumerate(times) if ms <= wanted), default=0)
    store.close()


async def test_store_time_of_records_with_long_hosts(tmp_path: Path) -> None:
    store = opened(tmp_path, VirtualClock(wall_ms=777))
    store.append(
        store.queue("t", 0), b"", b"", flag=0, sys_flag=0, born_ms=1, born_host=pack_host("::1", 1)
    )
    store.commit()
    assert await store.store_time_at("t", 0, 0) == 777
    assert await store.store_time_at("t", 0, 1) == -1
    assert await store.store_time_at("t", 0, -1) == -1
    store.close()


async def test_holes_have_no_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = store.queue("t", 0)
    fill(store, 1, queues=1)
    queue.fill_to(3)
    assert await store.store_time_at("t", 0, 2) == -1
    store.close()


@pytest.mark.parametrize("in_memory", [True, False])
async def test_only_what_begins_a_record_is_fetched(tmp_path: Path, in_memory: bool) -> None:
    files = ForgetfulFiles()
    store = opened(tmp_path, files=files)
    fill(store, 20)
    store.close()
    files.cold = not in_memory
    store = opened(tmp_path, files=files)
    places = {record.physical_offset: record.size_bytes for record in log_of(store)}
    for place in range(-3, store.written_offset + 3):
        found = await store.fetch_at(place)
        assert (len(found) if found is not None else None) == places.get(place)
        assert store.message_at(place) == (found if in_memory else None)
    store.close()


async def test_a_forged_size_does_not_reach_beyond_the_log(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 3)
    last = log_of(store)[-1].physical_offset
    store.log.segments.files[0].write(last, (10_000).to_bytes(4, "big"))
    assert await store.fetch_at(last) is None
    store.close()


async def test_ranges_of_dropped_files(tmp_path: Path) -> None:
    store = opened(tmp_path, access_message_in_memory_max_ratio=0)
    fill(store, 200, queues=1)
    result = store.read("t", 0, 0, 4)
    store.log.segments.drop_first()
    await store.load(result)
    assert result.chunks == []
    assert await store.reads.bytes_at(0, 10) is None
    assert store.log.view(0, 10) is None
    assert queries.record_size(None, 0) == 0
    store.close()


async def test_a_cancelled_load_gives_its_files_back(tmp_path: Path) -> None:
    store = opened(tmp_path, files=ForgetfulFiles(), access_message_in_memory_max_ratio=0)
    fill(store, 20, queues=1)
    load = asyncio.create_task(store.load(store.read("t", 0, 0, 4)))
    await asyncio.sleep(0)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    file = store.log.segments.files[0]
    async with asyncio.timeout(60):
        while file._pins:
            await asyncio.sleep(0.001)
    store.close()


async def find(store: MessageStore, key: str, begin_ms: int, end_ms: int) -> list[bytes]:
    found = await store.query_index("t", key, 64, begin_ms, end_ms)
    return [next(iter_decode(raw)).body for raw in found.records]


async def test_keys_in_a_range_of_time(tmp_path: Path) -> None:
    clock = VirtualClock(wall_ms=100_000)
    store = opened(tmp_path, clock)
    for number in range(150):
        put(store, body=b"%d" % number, keys=(f"u{number}", "twice"))
        store.commit()
        clock.advance(1_000)
    assert await find(store, "u7", 0, 1 << 60) == [b"7"]
    assert await find(store, "twice", 102_000, 104_000) == [b"2", b"3", b"4"]
    assert len(await find(store, "twice", 0, 1 << 60)) == 64
    assert await find(store, "none", 0, 1 << 60) == []
    store.close()


class IndexReaders(PosixFiles):
    """Notes which threads read entries of index files."""

    def __init__(self) -> None:
        self.users: set[int] = set()

    def pread(self, handle: int, size_bytes: int, offset: int) -> bytes:
        if size_bytes == ENTRY_BYTES:
            self.users.add(threading.get_ident())
        return super().pread(handle, size_bytes, offset)


async def test_a_thread_follows_the_entries_of_a_key(tmp_path: Path) -> None:
    """A key of all messages has an entry for each of them: the loop does not read them."""
    files = IndexReaders()
    store = opened(tmp_path, files=files)
    fill(store, 250)
    store.dispatcher.write_index(store.clock.wall_ms())
    files.users.clear()
    assert len(await find(store, "all", 0, 1 << 60)) == 64
    assert files.users
    assert threading.get_ident() not in files.users
    store.close()


def test_entries_that_are_added_meanwhile_hide_no_earlier_ones(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 120)
    expected = store.index.query("t", "all", 1_000, 0, 1 << 60)
    assert len(expected) == 120
    found, rest = store.index.lookup("t", "all", 1_000, 0, 1 << 60)
    fill(store, 200, first=120)
    store.dispatcher.write_index(store.clock.wall_ms())
    for file in store.index.full_files():
        file.write_slots()
        file.release_slots()
    assert found + rest.run() == expected
    store.close()
