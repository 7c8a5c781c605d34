"""Records from all over the log, in one go."""

from pathlib import Path

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import decode_one
from cometmq.store.gathering import gather
from cometmq.store.seals import BLOCK_BYTES
from tests.store.sealed import flip, reopened, sealed_store
from tests.store.stores import fill, log_of, opened


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
    found = await gather(store.log, ranges)
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
    found = await gather(store.log, [*ranges, (1 << 40, 10)])
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
    found = await gather(store.log, [(each.physical_offset, each.size_bytes) for each in records])
    block = bad - bad % BLOCK_BYTES
    for record, view in zip(records, found, strict=True):
        stop = record.physical_offset + record.size_bytes
        if record.physical_offset < block + BLOCK_BYTES and stop > block:
            assert isinstance(view, StoreCorrupt)
        else:
            assert isinstance(view, memoryview)
    store.close()
