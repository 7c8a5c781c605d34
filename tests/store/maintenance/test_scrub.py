"""Sealed files are compared with their seals while the broker runs."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.net.tasks import Tasks
from cometmq.store.log.checksums import sums_of
from cometmq.store.maintenance.checksumming import SCRUB_FILE, SumsFailed, block_sums_by_child
from cometmq.store.messagestore import MessageStore
from tests.store.sealed import FILE_BYTES, block_sums, flip, reopened, sealed_store

HOURS_MS = 24 * 3_600_000


@dataclass
class Reader:
    """Reads as the child does, without one; remembers which files. ``failing`` are the errors of
    the next reads, ``meanwhile`` what happens during them."""

    asked: list[str] = field(default_factory=list)
    failing: list[Exception] = field(default_factory=list)
    meanwhile: list[Callable[[], object]] = field(default_factory=list)

    async def __call__(self, path: str, size_bytes: int, bytes_per_s: int) -> bytes:
        self.asked.append(os.path.basename(path))
        assert (size_bytes, bytes_per_s) == (FILE_BYTES, 8 << 20)
        if self.failing:
            raise self.failing.pop()
        found = await block_sums(path, size_bytes, bytes_per_s)
        if self.meanwhile:
            self.meanwhile.pop()()
        return found


NAMES = [f"{base:020d}" for base in (0, FILE_BYTES)]


def with_reader(store: MessageStore) -> Reader:
    store.maintenance.scrub.read = reader = Reader()
    return reader


def clock_of(store: MessageStore) -> VirtualClock:
    assert isinstance(store.clock, VirtualClock)
    return store.clock


async def test_a_pass_over_the_sealed_files_begins_once_a_day(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    reader = with_reader(store)
    await store.maintenance.scrub.compare_files()
    assert reader.asked == NAMES
    clock_of(store).advance(HOURS_MS - 1)
    await store.maintenance.scrub.compare_files()
    assert reader.asked == NAMES
    clock_of(store).advance(1)
    await store.maintenance.scrub.compare_files()
    assert reader.asked == NAMES * 2
    # A wall clock that was set back does not put it off for ever.
    clock_of(store).jump_wall(-10 * HOURS_MS)
    await store.maintenance.scrub.compare_files()
    assert reader.asked == NAMES * 3
    store.close()


async def test_without_a_rate_or_a_seal_nothing_is_read(tmp_path: Path) -> None:
    sealed_store(tmp_path / "a").close()
    for store in (reopened(tmp_path / "a", scrub_bytes_per_second=0), reopened(tmp_path / "b")):
        reader = with_reader(store)
        await store.maintenance.scrub.compare_files()
        assert reader.asked == []
        store.close()
    assert not (tmp_path / "a" / SCRUB_FILE).exists()


async def test_a_restart_goes_on_where_a_pass_was(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    reader = with_reader(store)
    stop = asyncio.CancelledError
    reader.meanwhile.append(lambda: setattr(reader, "failing", [stop()]))
    with pytest.raises(stop):
        await store.maintenance.scrub.compare_files()
    assert reader.asked == NAMES
    store.close()
    store = reopened(tmp_path)
    reader = with_reader(store)
    await store.maintenance.scrub.compare_files()
    assert reader.asked == NAMES[1:]
    store.close()


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"position":"a"}', b"\xff"])
async def test_progress_that_cannot_be_read_is_no_reason_not_to_start(
    tmp_path: Path, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    sealed_store(tmp_path).close()
    (tmp_path / SCRUB_FILE).write_bytes(raw)
    store = reopened(tmp_path)
    assert "scrub_progress_unreadable" in caplog.text
    reader = with_reader(store)
    await store.maintenance.scrub.compare_files()
    assert reader.asked == NAMES
    store.close()


async def test_a_restart_knows_the_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = sealed_store(tmp_path)
    flip(tmp_path, 16)
    with_reader(store)
    await store.maintenance.scrub.compare_files()
    assert caplog.text.count("log_block_damaged") == 1
    store.close()
    store = reopened(tmp_path)
    reader = with_reader(store)
    assert store.runtime()["damaged_blocks"] == 1
    with pytest.raises(StoreCorrupt, match="changed"):
        await store.fetch_at(0)
    await store.maintenance.scrub.compare_files()
    assert store.runtime()["damaged_blocks"] == 1
    assert "log_blocks_damaged count=1" in caplog.text
    assert reader.asked == []
    store.close()


@pytest.mark.parametrize("asked", [True, False])
async def test_a_file_that_was_brought_back_from_a_copy(tmp_path: Path, asked: bool) -> None:
    store = sealed_store(tmp_path / "s")
    path = store.log.segments.files[0].path
    shutil.copy(path, tmp_path / "copy")
    flip(tmp_path / "s", 16)
    with_reader(store)
    await store.maintenance.scrub.compare_files()
    store.close()
    shutil.move(tmp_path / "copy", path)
    store = reopened(tmp_path / "s")
    reader = with_reader(store)
    if asked:
        assert await store.fetch_at(0) is not None
        assert store.runtime()["damaged_blocks"] == 0
    await store.maintenance.scrub.compare_files()
    assert reader.asked == []
    assert store.runtime()["damaged_blocks"] == 0
    store.close()
    assert b'"damaged":[]' in (tmp_path / "s" / SCRUB_FILE).read_bytes()


async def test_another_file_at_the_path_is_not_the_one_that_is_open(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    reader = with_reader(store)
    path = store.log.segments.files[0].path
    os.rename(path, path + ".aside")
    (tmp_path / "commitlog" / NAMES[0]).write_bytes(bytes(FILE_BYTES))
    await store.maintenance.scrub.compare_files()
    assert reader.asked == NAMES
    assert store.runtime()["damaged_blocks"] == 0
    assert await store.fetch_at(0) is not None
    os.rename(path + ".aside", path)
    store.close()


async def test_a_seal_that_cannot_be_read_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sealed_store(tmp_path).close()
    store = reopened(tmp_path)
    os.truncate(store.seals.path(0), 20)
    with_reader(store)
    await store.maintenance.scrub.compare_files()
    assert "seal_unreadable" in caplog.text
    first, second = store.log.segments.files[:2]
    assert first.seals is None
    assert second.seals is not None
    store.close()


async def test_files_that_change_or_go_meanwhile_are_not_judged(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    reader = with_reader(store)
    first, second = store.log.segments.files[:2]
    flip(tmp_path, 16)
    flip(tmp_path, FILE_BYTES + 16)
    reader.meanwhile = [store.log.segments.drop_first, lambda: first.write(0, b"x")]
    await store.maintenance.scrub.compare_files()
    assert len(reader.asked) == 2
    assert first.damaged == set()
    assert first.closed
    assert second.damaged == {FILE_BYTES}
    store.close()


async def test_a_file_that_cannot_be_read_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = sealed_store(tmp_path)
    reader = with_reader(store)
    reader.failing = [OSError(errno.ENOMEM, "no memory for a child"), SumsFailed("killed")]
    await store.maintenance.scrub.compare_files()
    assert reader.asked == NAMES
    assert caplog.text.count("log_file_not_compared") == 2
    store.close()


async def test_upkeep_runs_it_with_a_child_process(tmp_path: Path) -> None:
    store = sealed_store(tmp_path)
    flip(tmp_path, FILE_BYTES + 70_000)
    tasks = Tasks()
    await store.start(tasks)
    async with asyncio.timeout(60):
        while not store.runtime()["damaged_blocks"]:
            await asyncio.sleep(0.01)
    await tasks.close()
    store.close()


async def test_what_the_child_writes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytes(range(256)) * 1_000
    path.write_bytes(content)
    assert await block_sums_by_child(str(path), len(content), 1 << 30) == sums_of(content)
    with pytest.raises(SumsFailed, match=r"exit code 1.*No such file"):
        await block_sums_by_child(str(path) + "x", 5, 1)
