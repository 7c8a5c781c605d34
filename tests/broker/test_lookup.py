"""What handlers ask the store."""

from pathlib import Path

from cometmq.broker.lookup import bounds, find_entry, find_record, is_young
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
