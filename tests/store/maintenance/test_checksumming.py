"""Seals made while the broker runs, and seals in doubt."""

import asyncio
import errno
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.store.config import StoreConfig
from cometmq.store.files import PosixFiles
from cometmq.store.log.checksums import BLOCK_BYTES, FileSums, Seal, sums_of
from cometmq.store.log.segments import LogFile
from cometmq.store.maintenance.checksumming import (
    Sealer,
    SumsFailed,
    _start,
    is_stale,
    lower_priority,
    sums_by_child,
)
from cometmq.store.messagestore import MessageStore
from cometmq.store.tools.sums import read_sums
from tests.store.sealed import FILE_BYTES, NOTHING, flip, reopened, sealed_store
from tests.store.stores import fill, log_of, opened

LEVELS = StoreConfig().message_delay_level


@dataclass
class InProcess:
    """Reads as the child does, without one; remembers what it was asked."""

    asked: list[tuple[int, int]] = field(default_factory=list)
    meanwhile: list[Callable[[], object]] = field(default_factory=list)
    failing: Exception | None = None

    async def __call__(
        self, path: str, base: int, size_bytes: int, moment_ms: int, delay_levels: str
    ) -> FileSums:
        self.asked.append((base, moment_ms))
        found = read_sums(PosixFiles(), path, base, size_bytes, moment_ms, delay_levels)
        if self.meanwhile:
            self.meanwhile.pop()()
        if self.failing is not None:
            raise self.failing
        return found


def filled(root: Path, clock: VirtualClock | None = None) -> MessageStore:
    """A store with several full files, none of them sealed."""
    store = opened(root, clock, mapped_file_size_commit_log=FILE_BYTES)
    fill(store, 2_500, queues=3)
    store.flusher.sync_now()
    return store


def sealed_bases(store: MessageStore) -> list[int]:
    return [file.base for file in store.log.segments.files if file.seals is not None]


def sums_in(file: LogFile) -> bytes:
    """The sums of a file as the disk has it now."""
    return sums_of(Path(file.path).read_bytes())


async def test_full_and_durable_files_are_sealed_oldest_first(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=FILE_BYTES)
    reader = InProcess()
    sealer = Sealer(store.parts, reader)
    fill(store, 2_500, queues=3)
    await sealer.seal_full_files()
    assert reader.asked == []
    store.flusher.sync_now()
    await sealer.seal_full_files()
    full = [file for file in store.log.segments.files if file.end <= store.durable_offset]
    assert sealed_bases(store) == [file.base for file in full] == [0, FILE_BYTES]
    assert [base for base, _ in reader.asked] == [0, FILE_BYTES]
    for file in full:
        seal = store.seals.read(file.base)
        assert seal is not None
        assert seal.sums == sums_in(file)
        records = [each for each in log_of(store) if file.base <= each.physical_offset < file.end]
        assert seal.summary.records == seal.summary.entries == len(records)
        assert seal.summary.keys == 2 * len(records)
        assert seal.summary.last_ms == records[-1].store_ms
    await sealer.seal_full_files()
    assert len(reader.asked) == 2
    store.close()


async def test_without_numpy_one_line_says_that_files_stay_unsealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    store = filled(tmp_path, clock)
    reader = InProcess()
    sealer = Sealer(store.parts, reader)
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda name: None)
        await sealer.seal_full_files()
        clock.advance(700_000)
        await sealer.seal_full_files()
    assert [each.levelname for each in caplog.records if "not_sealed" in each.message] == [
        "WARNING"
    ]
    assert "cometmq[tools]" in caplog.text
    assert sealed_bases(store) == []
    assert reader.asked == []
    clock.advance(700_000)
    await sealer.seal_full_files()
    assert sealed_bases(store) == [0, FILE_BYTES]
    store.close()


async def test_a_child_process_reads(tmp_path: Path) -> None:
    store = filled(tmp_path)
    file = store.log.segments.files[0]
    found = await sums_by_child(file.path, 0, FILE_BYTES, 0, LEVELS)
    assert found == read_sums(PosixFiles(), file.path, 0, FILE_BYTES, 0, LEVELS)
    assert (found.problem, found.late_from) == ("", 0)
    with pytest.raises(SumsFailed, match=r"exit code 1.*No such file"):
        await sums_by_child(file.path + "x", 0, FILE_BYTES, 0, LEVELS)
    store.close()


async def test_the_child_ends_with_its_caller(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Opening the pipe waits for somebody to write: a child that never comes to an end.
    reading = asyncio.create_task(sums_by_child(str(fifo), 0, FILE_BYTES, 0, LEVELS))
    async with asyncio.timeout(60):
        while not children_with(str(fifo)):
            await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not children_with(str(fifo))


async def test_a_child_that_is_started_for_nobody_ends(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = asyncio.create_task(sums_by_child(str(fifo), 0, FILE_BYTES, 0, LEVELS))
    await asyncio.sleep(0)  # a thread starts it now
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.get_running_loop().shutdown_default_executor()
    async with asyncio.timeout(60):
        while children_with(str(fifo)):
            await asyncio.sleep(0.01)


def children_with(word: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    "failure", [SumsFailed("killed"), OSError(errno.ENOMEM, "no memory for a child")]
)
async def test_a_child_that_fails_is_tried_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    clock = VirtualClock()
    store = filled(tmp_path, clock)
    reader = InProcess(failing=failure)
    sealer = Sealer(store.parts, reader)
    for _ in range(3):
        await sealer.seal_full_files()
    assert len(reader.asked) == 1
    assert caplog.text.count("log_file_not_sealed") == 1
    reader.failing = None
    clock.advance(600_000)
    await sealer.seal_full_files()
    assert sealed_bases(store) == [0, FILE_BYTES]
    store.close()


async def test_damage_is_not_sealed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = filled(tmp_path)
    record = log_of(store)[7]
    flip(tmp_path, record.physical_offset + 90)
    sealer = Sealer(store.parts, InProcess())
    await sealer.seal_full_files()
    await sealer.seal_full_files()
    assert sealed_bases(store) == [FILE_BYTES]
    assert caplog.text.count("log_file_damaged") == 1
    assert f"offset {record.physical_offset} " in caplog.text
    store.close()


async def test_a_file_that_goes_meanwhile_leaves_no_seal(tmp_path: Path) -> None:
    store = filled(tmp_path)
    await Sealer(
        store.parts, InProcess(meanwhile=[store.log.segments.drop_first])
    ).seal_full_files()
    assert sealed_bases(store) == [FILE_BYTES]
    assert store.seals.bases == {FILE_BYTES}
    assert not store.files.exists(store.seals.path(0))
    # A child that does not find the file any more is no reason to rest.
    store.log.segments.files[0].unseal()
    reader = InProcess(meanwhile=[store.log.segments.drop_first], failing=SumsFailed("told to"))
    sealer = Sealer(store.parts, reader)
    await sealer.seal_full_files()
    fill(store, 2_000, queues=3, first=5_000)
    store.flusher.sync_now()
    reader.failing = None
    await sealer.seal_full_files()
    assert sealed_bases(store) == [2 * FILE_BYTES]
    store.close()


def doubted(tmp_path: Path, change: Callable[[Path], None]) -> MessageStore:
    """A sealed store that another broker ran on; ``change`` is what it did."""
    store = sealed_store(tmp_path)
    store.close()
    checkpoint = tmp_path / "checkpoint"
    raw = bytearray(checkpoint.read_bytes())
    raw[7] ^= 1
    checkpoint.write_bytes(raw)
    change(tmp_path)
    found = reopened(tmp_path)
    assert found.seals.bases == set()
    assert found.seals.doubted == {0, FILE_BYTES}
    return found


async def test_seals_that_hold_count_again(tmp_path: Path) -> None:
    store = doubted(tmp_path, lambda _: None)
    await Sealer(store.parts, InProcess()).seal_full_files()
    assert store.seals.bases == {0, FILE_BYTES}
    assert store.seals.doubted == set()
    assert not any(file.damaged for file in store.log.segments.files)
    store.close()


async def test_a_flip_in_a_doubted_file_is_still_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = doubted(tmp_path, lambda root: flip(root, 16))
    await Sealer(store.parts, InProcess()).seal_full_files()
    assert store.seals.bases == {0, FILE_BYTES}
    assert "log_block_damaged" in caplog.text
    first = store.log.segments.files[0]
    assert first.damaged == {0}
    assert store.read("t", 0, 0, 1).cold
    store.close()


def rewrite(root: Path, later_ms: int) -> None:
    """What a broker leaves that cut the second file in the middle and wrote on."""
    store = reopened(root)
    records = log_of(store)
    store.close()
    path = root / "commitlog" / f"{FILE_BYTES:020d}"
    raw = bytearray(path.read_bytes())
    middle = [each for each in records if FILE_BYTES * 1.5 < each.physical_offset < FILE_BYTES * 2]
    for record in middle:
        at = record.physical_offset - FILE_BYTES + 56
        raw[at : at + 8] = (record.store_ms + later_ms).to_bytes(8, "big")
    path.write_bytes(raw)
    # It tells of the times before.
    shutil.rmtree(root / "index")
    checkpoint = root / "checkpoint"
    again = bytearray(checkpoint.read_bytes())
    again[7] ^= 1
    checkpoint.write_bytes(again)


async def test_a_file_that_was_cut_and_written_on_is_sealed_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = doubted(tmp_path, lambda root: rewrite(root, 1 << 30))
    await Sealer(store.parts, InProcess()).seal_full_files()
    assert store.seals.bases == {0, FILE_BYTES}
    assert store.seals.doubted == set()
    assert "damaged" not in caplog.text
    seal = store.seals.read(FILE_BYTES)
    assert seal is not None
    assert seal.sums == sums_in(store.log.segments.files[1])
    store.close()


async def test_one_that_was_written_on_and_is_damaged_gets_no_seal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(root: Path) -> None:
        rewrite(root, 1 << 30)
        store = reopened(root)
        last = [each for each in log_of(store) if each.physical_offset < FILE_BYTES * 2][-1]
        store.close()
        flip(root, last.physical_offset + 90)

    store = doubted_again(tmp_path, change)
    await Sealer(store.parts, InProcess()).seal_full_files()
    assert store.seals.bases == {0}
    assert store.seals.doubted == set()
    assert "log_file_damaged" in caplog.text
    store.close()


def doubted_again(tmp_path: Path, change: Callable[[Path], None]) -> MessageStore:
    def both(root: Path) -> None:
        change(root)
        checkpoint = root / "checkpoint"
        raw = bytearray(checkpoint.read_bytes())
        raw[7] ^= 3
        checkpoint.write_bytes(raw)

    return doubted(tmp_path, both)


async def test_an_unreadable_seal_in_doubt_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(root: Path) -> None:
        seal = root / "cometmq-seals" / f"{0:020d}"
        seal.write_bytes(seal.read_bytes()[:-1])

    store = doubted(tmp_path, spoil)
    await Sealer(store.parts, InProcess()).seal_full_files()
    assert store.seals.bases == {0, FILE_BYTES}
    assert store.seals.doubted == set()
    assert "seal_unreadable" in caplog.text
    store.close()


@pytest.mark.parametrize(
    ("differing", "late_from", "stale"),
    [
        ([3], -1, False),
        ([3], 100 + 3 * BLOCK_BYTES, True),
        ([3], 100 + 4 * BLOCK_BYTES, False),
        ([3, 4, 9], 100 + 3 * BLOCK_BYTES + 50, True),
        ([2, 3, 4], 100 + 3 * BLOCK_BYTES + 50, False),
    ],
)
def test_what_explains_a_difference(differing: list[int], late_from: int, stale: bool) -> None:
    seal = Seal(100, 10 * BLOCK_BYTES, 5, NOTHING, bytes(40))
    assert is_stale(seal, differing, late_from) is stale


async def test_an_answer_that_is_none_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/echo")
    with pytest.raises(SumsFailed, match="JSON"):
        await sums_by_child("path", 0, FILE_BYTES, 0, LEVELS)


def test_a_child_has_the_lowest_priority_from_its_start() -> None:
    child = _start([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == 19
        assert os.sched_getscheduler(child.pid) == os.SCHED_IDLE
    finally:
        child.kill()
        child.communicate()
    lower_priority(child.pid)
