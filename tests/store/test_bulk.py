"""Batches of thousands of messages: whole, in one file, in slices, with others behind them."""

import asyncio
import errno
from pathlib import Path

import pytest

from cometmq.core.clock import SystemClock
from cometmq.core.errors import MessageIllegal, StoreFull
from cometmq.message import batch
from cometmq.message.record import Record
from cometmq.store import bulk
from cometmq.store.bulk import Bulk
from cometmq.store.engine import MessageStore
from tests.store.faults import FailingFiles
from tests.store.stores import assert_consistent, config, copied, log_of, opened, put, shared

MANY = [(number, b"x%d" % number, b"UNIQ_KEY\x01u%d\x02TAGS\x01a" % number) for number in range(50)]


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece of a batch is a turn of its own."""
    monkeypatch.setattr(bulk, "_PIECE_MESSAGES", 4)
    monkeypatch.setattr("cometmq.core.slices.SLICE_NS", -1)


def opened_for_real(root: Path, files: FailingFiles | None = None) -> MessageStore:
    """A store with the real clock, which lets slices end."""
    store = MessageStore.open(config(root), SystemClock(), files)
    store.store_host = bytes(8)
    return store


async def until_held(store: MessageStore) -> None:
    """Returns in the middle of a write."""
    async with asyncio.timeout(10):
        while not store.turn.is_held:
            await asyncio.sleep(0)


def bulk_of(store: MessageStore) -> Bulk:
    return Bulk(store, "t", 0, shared(store, b"WAIT\x01true"))


async def test_others_are_appended_behind_it(tmp_path: Path) -> None:
    store = opened_for_real(tmp_path)
    put(store, body=b"before")
    store.commit()
    made = bulk_of(store)
    await made.prepare(batch.pack(MANY))
    putting = asyncio.create_task(made.put())
    await until_held(store)
    others = 0
    while store.turn.is_held:
        put(store, body=b"between")
        store.commit()
        others += 1
        assert store.written_offset == log_of(store)[0].size_bytes
        await asyncio.sleep(0)
    runs = await putting
    store.commit()
    assert others > 5
    records = assert_consistent(store)
    assert [record.body for record in records[1:51]] == [body for _, body, _ in MANY]
    assert [record.queue_offset for record in records] == list(range(51 + others))
    assert [place for run in runs for place in run.places] == places(records[1:51])
    assert {record.body for record in records[51:]} == {b"between"}
    times = [record.store_ms for record in records]
    assert times == sorted(times)
    store.close()


def places(records: list[Record]) -> list[int]:
    return [record.physical_offset for record in records]


async def test_it_lies_whole_in_the_next_file(tmp_path: Path) -> None:
    store = opened_for_real(tmp_path)
    put(store, body=bytes(12_000))
    store.commit()
    made = bulk_of(store)
    await made.prepare(batch.pack(MANY))
    await made.put()
    store.commit()
    assert places(assert_consistent(store))[1] == 16_384
    store.close()
    again = opened(tmp_path)
    assert len(assert_consistent(again)) == 51
    again.close()


async def test_a_cancelled_one_is_stored_all_the_same(tmp_path: Path) -> None:
    store = opened_for_real(tmp_path)
    made = bulk_of(store)
    await made.prepare(batch.pack(MANY))
    putting = asyncio.create_task(made.put())
    await until_held(store)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    put(store, body=b"behind")
    store.commit()
    assert len(assert_consistent(store)) == 51
    store.close()


async def test_what_cannot_be_stored_takes_nothing(tmp_path: Path) -> None:
    store = opened_for_real(tmp_path)
    raw = batch.pack(MANY)
    with pytest.raises(MessageIllegal, match="batch body"):
        await bulk_of(store).prepare(raw[:-1])
    with pytest.raises(MessageIllegal, match="no message"):
        await bulk_of(store).prepare(b"")
    large = bulk_of(store)
    await large.prepare(batch.pack([(0, bytes(500), b"")] * 50))
    with pytest.raises(MessageIllegal, match="a log file has 16384"):
        await large.put()
    assert store.turn.is_empty
    assert not store.turn.is_held
    assert put(store) == (0, 0)
    store.commit()
    store.close()


@pytest.mark.parametrize("late", [False, True])
async def test_a_failed_write_fails_the_turn_as_a_whole(tmp_path: Path, late: bool) -> None:
    files = FailingFiles()
    store = opened_for_real(tmp_path / "s", files)
    put(store)
    store.commit()
    made = bulk_of(store)
    await made.prepare(batch.pack(MANY))
    putting = asyncio.create_task(made.put())
    await until_held(store)
    put(store, "other", 0)
    if late:
        await putting
    files.failing["pwrite"] = errno.ENOSPC
    await putting
    with pytest.raises(StoreFull):
        store.commit()
    assert [store.queue(topic, 0).next_offset for topic in ("t", "other")] == [1, 0]
    assert store.put_failures == 51
    with pytest.raises(StoreFull):
        await made.put()
    killed = opened(copied(tmp_path / "s", "killed"))
    assert len(assert_consistent(killed)) == 1
    killed.close()
    files.failing.clear()
    store.update_refusal()
    again = bulk_of(store)
    await again.prepare(batch.pack(MANY))
    await again.put()
    store.commit()
    assert len(assert_consistent(store)) == 51
    store.close()
