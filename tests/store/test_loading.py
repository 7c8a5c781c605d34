"""Sealed files: what is served, and what is refused."""

import asyncio
from pathlib import Path

import pytest

from cometmq.core.errors import StoreCorrupt
from cometmq.filter.tags import tag_code
from cometmq.message.record import Record, iter_decode
from cometmq.store.engine import MessageStore
from cometmq.store.loading import load_ranges
from cometmq.store.reader import ReadStatus
from cometmq.store.seals import BLOCK_BYTES
from tests.store.sealed import FILE_BYTES, flip, reopened, sealed_store
from tests.store.stores import fill, log_of, opened, put


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
    assert all(file.unproven is None for file in sealed)
    store.close()


async def test_what_was_compared_once_is_read_through_the_map(tmp_path: Path) -> None:
    root, _ = made(tmp_path)
    store = reopened(root)
    first = store.read("t", 0, 0, 32)
    assert first.cold
    await store.load(first)
    again = store.read("t", 0, 0, 32)
    assert not again.cold
    assert b"".join(again.chunks) == b"".join(first.chunks)
    # With a filter, entry by entry.
    codes = frozenset(tag_code(f"g{number}") for number in range(4))
    assert not store.read("t", 0, 0, 4, codes=codes).cold
    store.close()


async def test_far_behind_the_end_each_read_is_compared(tmp_path: Path) -> None:
    root, _ = made(tmp_path)
    store = reopened(root, access_message_in_memory_max_ratio=0)
    result = store.read("t", 0, 0, 32)
    await store.load(result)
    flip(root, 50)
    again = store.read("t", 0, 0, 32)
    assert not again.cold
    assert b"".join(again.chunks).startswith(b"".join(result.chunks)), "what was read is kept"
    store.log.windows.forget()
    again = store.read("t", 0, 0, 32)
    assert again.cold
    with pytest.raises(StoreCorrupt):
        await store.load(again)
    store.close()


@pytest.mark.parametrize("ratio", [0, 40])
async def test_a_damaged_block_is_never_served_and_the_others_are(
    tmp_path: Path, ratio: int, caplog: pytest.LogCaptureFixture
) -> None:
    root, records = made(tmp_path)
    block = FILE_BYTES + BLOCK_BYTES
    flip(root, block + 1_000)
    store = reopened(root, access_message_in_memory_max_ratio=ratio)
    touching = {
        (each.queue_id, each.queue_offset)
        for each in records
        if each.physical_offset < block + BLOCK_BYTES
        and each.physical_offset + each.size_bytes > block
    }
    assert len(touching) > 50
    for queue_id in range(3):
        got, errors = await replayed(store, queue_id)
        assert {(each.queue_id, each.queue_offset) for each in records} - touching >= {
            (queue_id, offset) for offset in got
        }
        lost = {offset for number, offset in touching if number == queue_id}
        assert (
            set(got) == {each.queue_offset for each in records if each.queue_id == queue_id} - lost
        )
        assert errors == {block}
    assert caplog.text.count("log_block_damaged") == 1
    assert store.runtime()["damaged_blocks"] == 1
    store.close()


async def test_every_way_to_read_refuses_a_damaged_block(tmp_path: Path) -> None:
    root, records = made(tmp_path)
    # The flag of the first record: nothing in RocketMQ's files would show it.
    flip(root, 16)
    store = reopened(root)
    assert store.message_at(0) is None
    for question in (
        store.fetch_at(0),
        store.store_time_at("t", 0, 0),
        store.earliest_time("t", 0),
        store.offset_by_time("t", 0, 0),
        store.query_index("t", "k0", 5, 0, 1 << 62),
    ):
        with pytest.raises(StoreCorrupt, match="not what they were") as caught:
            await question
        assert caught.value.offset == 0
        assert caught.value.path.endswith("0" * 20)
    last = records[-1]
    assert await store.fetch_at(last.physical_offset) is not None
    store.close()


async def test_every_field_of_a_sealed_record(tmp_path: Path) -> None:
    root, records = made(tmp_path)
    record = records[40]
    fields = {0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84, 88}
    ends = {88 + len(record.body), record.size_bytes - len(record.properties) - 2}
    for at in sorted(fields | ends | {record.size_bytes - 1}):
        flip(root, record.physical_offset + at)
        store = reopened(root)
        result = store.read("t", record.queue_id, record.queue_offset, 1)
        assert result.cold
        with pytest.raises(StoreCorrupt):
            await store.load(result)
        store.close()
        flip(root, record.physical_offset + at)
    store = reopened(root)
    result = store.read("t", record.queue_id, record.queue_offset, 1)
    await store.load(result)
    assert list(iter_decode(result.chunks[0])) == [record]
    store.close()


async def test_an_unreadable_seal_is_no_reason_not_to_serve(tmp_path: Path) -> None:
    root, records = made(tmp_path)
    for seal in (root / "cometmq-seals").iterdir():
        raw = bytearray(seal.read_bytes())
        raw[101] ^= 1
        seal.write_bytes(raw)
    store = reopened(root)
    got, errors = await replayed(store, 0)
    assert got == [each.queue_offset for each in records if each.queue_id == 0]
    assert not errors
    assert store.log.segments.files[0].seals is None
    store.close()


async def test_a_file_may_be_sealed_while_it_is_read(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    file = store.log.segments.files[0]
    file.unseal()
    record = log_of(store)[5]
    wanted = [(record.physical_offset, record.size_bytes)]
    loading = asyncio.create_task(load_ranges(store.log, wanted))
    await asyncio.sleep(0)
    file.seal(store.seals, proven=True)
    (piece,) = await loading
    assert next(iter_decode(piece.sound())) == record
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
    assert await load_ranges(store.log, [(0, 10), (second, 10)]) == []
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


def test_few_bytes_more_than_a_block(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=BLOCK_BYTES + 4_096)
    file = store.log.segments.files[0]
    file.seal(store.seals, proven=False)
    assert not file.is_proven(0, 1)
    file.note_proven(0, BLOCK_BYTES, [])
    assert file.is_proven(0, BLOCK_BYTES)
    assert not file.is_proven(BLOCK_BYTES - 1, BLOCK_BYTES + 1)
    file.note_proven(BLOCK_BYTES, BLOCK_BYTES + 4_096, [BLOCK_BYTES])
    assert not file.is_proven(BLOCK_BYTES, BLOCK_BYTES + 1)
    file.note_proven(BLOCK_BYTES, BLOCK_BYTES + 4_096, [])
    assert file.unproven is None
    file.note_proven(0, BLOCK_BYTES, [0])
    assert file.is_proven(0, BLOCK_BYTES)
    file.unseal()
    put(store)
    store.close()
