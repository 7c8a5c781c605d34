"""What handlers ask the store."""

import asyncio
from pathlib import Path

from cometmq.broker.lookup import Slices, bounds, find_entry, find_record, is_young
from cometmq.core.clock import SystemClock
from tests.broker.world import open_parts


async def test_entries_and_records_are_found(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        first = await parts.put("t", b"a")
        second = await parts.put("t", b"b")
        assert bounds(parts.store, "t", 0) == (0, 2)
        assert bounds(parts.store, "t", 1) == (0, 0)
        entry = find_entry(parts.store, "t", 0, 1)
        assert entry is not None
        assert entry[0] == second.physical_offset
        for topic, offset in (("t", 2), ("t", -1), ("none", 0)):
            assert find_entry(parts.store, topic, 0, offset) is None
        record = await find_record(parts.store, first.physical_offset)
        assert record is not None
        assert record.body == b"a"
        assert await find_record(parts.store, first.physical_offset + 1) is None


async def test_a_record_with_another_body_is_not_given(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        put = await parts.put("t", b"precious")
        (path,) = (tmp_path / "commitlog").iterdir()
        with path.open("r+b") as file:
            at = path.read_bytes().index(b"precious")
            file.seek(at)
            file.write(b"spoiled!")
        assert await find_record(parts.store, put.physical_offset) is None


async def test_young_queues_still_have_their_first_message_at_hand(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        assert is_young(parts.store, "t", 0)
        await parts.put("t", b"a")
        assert is_young(parts.store, "t", 0)
        parts.store.queue("t", 0).min_offset = 1
        assert not is_young(parts.store, "t", 0)


async def test_long_work_gives_the_loop_back() -> None:
    clock = SystemClock()
    slices = Slices(clock)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for _ in range(100):
        await slices.pause()
    assert turns == 0  # nothing took long
    for _ in range(3):
        until_ns = clock.monotonic_ns() + 3_000_000
        while clock.monotonic_ns() < until_ns:
            pass
        await slices.pause()
    assert turns >= 3
    counting.cancel()
