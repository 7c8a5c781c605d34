"""Faults that the random lives of stores (tests/simulation/store) found, each in a few steps."""

import asyncio
import errno
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.message import properties as props
from cometmq.store.files import read_file, write_file_atomically
from cometmq.store.messagestore import MessageStore
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles, Moment, ProcessEnded
from tests.simulation.faults.threads import SteppedThreads
from tests.simulation.store import seeded
from tests.store.stores import assert_consistent, entries_of, fill, log_of, opened, put

ROOT = Path("/s")
SEEDS = range(20)


class Machine:
    """A disk, a clock, and one process after the other."""

    def __init__(self, seed: int) -> None:
        self.disk = Disk()
        self.clock = VirtualClock()
        self.chance = Random(seed)
        self._files: MemoryFiles | None = None
        self._threads = SteppedThreads(self.chance, split=0)

    def start(self, **settings: object) -> MessageStore:
        """A new process with its store open."""
        return opened(ROOT, self.clock, self.start_files(), **settings)

    def start_until(self, step: int) -> None:
        """A process that ends at a file operation of its start, if it comes so far."""
        self.start_files().end_at(step, Moment.AFTER)
        with suppress(ProcessEnded):
            opened(ROOT, self.clock, self._files)
        self.kill()

    def start_files(self) -> MemoryFiles:
        """What a new process sees of the disk."""
        self._threads = SteppedThreads(self.chance, split=0)
        self._files = MemoryFiles(self.disk, self.clock, self.chance, threads=self._threads)
        return self._files

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do background work of the store, with its threads."""

        async def main() -> None:
            task = asyncio.ensure_future(work)
            while not task.done():
                self._threads.step()
                await asyncio.sleep(0)
            await task

        asyncio.run(main())

    def thorough_round(self, store: MessageStore) -> None:
        """Everything that was dispatched is synced, and noted."""
        store.flusher.sync_now()
        self.clock.advance(store.config.flush_consume_queue_thorough_interval)
        self.run(store.maintenance.flush_entries())

    def fail(self, operation: str, where: str) -> None:
        """The next operation of a kind fails."""
        assert self._files is not None
        self._files.faults.append(Fault(operation, errno.EIO, 1, where))

    def end_in(self, count: int) -> None:
        """End the process at a changing file operation that many ahead."""
        assert self._files is not None
        self._files.end_at(self._files.steps + count, Moment.BEFORE)

    def kill(self) -> None:
        """End the process."""
        assert self._files is not None
        self._files.end()
        self.disk.kill(self.chance)

    def cut_power(self) -> None:
        """End the process and what was not synced."""
        self.kill()
        self.disk.lose_power(self.chance)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_that_a_killed_process_left_is_synced_by_the_next(seed: int) -> None:
    machine = Machine(seed)
    store = machine.start()
    fill(store, 400)
    machine.run(store.maintenance.flush_entries())
    assert store.durable_offset == 0
    machine.kill()
    again = machine.start()
    assert again.durable_offset == again.written_offset > 2 * 16_384
    machine.cut_power()
    assert len(assert_consistent(machine.start())) == 400


@pytest.mark.parametrize("seed", SEEDS)
def test_entries_that_a_killed_process_left_are_synced_by_the_next(seed: int) -> None:
    machine = Machine(seed)
    store = machine.start()
    fill(store, 200)
    store.flusher.sync_now()
    machine.run(store.maintenance.flush_entries())
    machine.kill()
    again = machine.start()
    fill(again, 10, first=200)
    machine.thorough_round(again)
    machine.cut_power()
    assert len(assert_consistent(machine.start())) == 210


@pytest.mark.parametrize("end", ["kill", "cut_power", "stop"])
def test_store_times_never_go_back(end: str) -> None:
    machine = Machine(0)
    store = machine.start()
    fill(store, 40)
    machine.thorough_round(store)
    fill(store, 1, first=40)
    machine.run(store.maintenance.flush_entries())
    if end == "stop":
        store.close()
    else:
        getattr(machine, end)()
    machine.clock.jump_wall(-3_600_000)
    again = machine.start()
    fill(again, 1, first=41)
    times = [record.store_ms for record in log_of(again)]
    assert times == sorted(times)


def test_a_queue_begins_where_the_log_begins() -> None:
    """The entries of records that are gone were never written: no hole stands for them."""
    machine = Machine(0)
    store = machine.start()
    fill(store, 100)
    machine.thorough_round(store)
    fill(store, 300, first=100)
    machine.kill()
    for name in sorted(machine.disk.folder("/s/commitlog").names)[:2]:  # type: ignore[union-attr]
        MemoryFiles(machine.disk, machine.clock, machine.chance).unlink(f"/s/commitlog/{name}")
    again = machine.start()
    first: dict[int, int] = {}
    for record in log_of(again):
        first.setdefault(record.queue_id, record.queue_offset)
    assert first
    for queue_id, offset in first.items():
        queue = again.queue("t", queue_id)
        assert queue.min_offset == offset
        assert entries_of(queue)


@pytest.mark.parametrize("seed", SEEDS)
def test_old_queue_files_whose_removal_was_lost(seed: int) -> None:
    """The device kept some of them, and not those behind: that is no damage."""
    machine = Machine(seed)
    store = machine.start(delete_when="", disk_max_used_space_ratio=5)
    fill(store, 800, queues=1)
    machine.thorough_round(store)
    machine.clock.jump_wall(100 * 3_600_000)
    machine.run(store.maintenance.expiry.make_room())
    low = store.queue("t", 0).min_offset
    assert low > 160
    machine.cut_power()
    again = machine.start()
    assert_consistent(again)
    assert again.queue("t", 0).max_offset == 800


@pytest.mark.parametrize("seed", SEEDS)
def test_new_queue_files_of_which_some_names_were_lost(seed: int) -> None:
    """Nothing in them is believed, so they are no damage either."""
    machine = Machine(seed)
    store = machine.start()
    fill(store, 20, queues=1)
    machine.thorough_round(store)
    fill(store, 300, queues=1, first=20)
    store.flusher.sync_now()
    machine.run(store.maintenance.flush_entries())
    machine.cut_power()
    again = machine.start()
    assert len(assert_consistent(again)) == 320
    assert again.report is not None
    assert (again.report.kept, again.report.remade) == ((), ())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_record_whose_end_was_lost_is_none(seed: int) -> None:
    """The CRC is of the body: the end of the properties may be in a sector that was not written."""
    machine = Machine(seed)
    store = machine.start()
    sent: dict[bytes, bytes] = {}
    for number in range(30):
        body = b"%03d" % number
        put(store, "t", 0, body, keys=(f"key{number}", "x" * 60))
        sent[body] = props.encode({"UNIQ_KEY": f"key{number}", "KEYS": "x" * 60})
    store.commit()
    machine.cut_power()
    again = machine.start()
    for record in assert_consistent(again):
        assert record.properties == sent[record.body]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_start_that_was_killed_made_has_a_name(seed: int) -> None:
    """It ended between making the first file and syncing its folder."""
    machine = Machine(seed)
    for step in range(12):
        machine.start_until(step)
    store = machine.start()
    fill(store, 10)
    store.flusher.sync_now()
    machine.cut_power()
    assert len(assert_consistent(machine.start())) == 10


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_takes_no_older_note(seed: int) -> None:
    """What is noted every second is never synced, so it may be a part of itself."""
    machine = Machine(seed)
    store = machine.start()
    fill(store, 100)
    machine.thorough_round(store)
    proven = store.durable_offset
    fill(store, 40, first=100)
    machine.run(store.maintenance.flush_entries())
    machine.cut_power()
    again = machine.start()
    assert again.report is not None
    assert again.report.reason == "crash of the machine"
    assert again.report.start >= proven


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_failed_sync_gave_up_is_not_believed_by_the_next_process(seed: int) -> None:
    """Noted as written, its pages were forgotten: the log ends there, and so do the queues."""
    machine = Machine(seed)
    store = machine.start()
    fill(store, 40)
    store.flusher.sync_now()
    fill(store, 60, first=40)
    machine.run(store.maintenance.flush_entries())
    machine.fail("datasync", "commitlog")
    store.flusher.sync_now()
    assert store.log.failure is not None
    machine.kill()
    again = machine.start()
    assert 40 <= len(assert_consistent(again)) <= 100
    fill(again, 20, first=200)
    assert_consistent(again)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failed_sync_of_the_index_is_known_though_the_older_note_stays(seed: int) -> None:
    """The note that is to be taken back cannot be removed: a newer one has to say so."""
    machine = Machine(seed)
    store = machine.start()
    fill(store, 40)
    store.flusher.sync_now()
    machine.run(store.maintenance.flush_entries())
    machine.fail("datasync", "index")
    machine.fail("unlink", "")
    with pytest.raises(OSError, match="Input/output"):
        machine.thorough_round(store)
    machine.kill()
    assert len(assert_consistent(machine.start())) == 40


@pytest.mark.parametrize("where", ["index", "consumequeue"])
@pytest.mark.parametrize("seed", range(8))
def test_a_sync_of_whose_end_nothing_is_known_is_not_believed(seed: int, where: str) -> None:
    """It failed, and the process ended before it could note that."""
    for more in range(14):
        machine = Machine(seed)
        store = machine.start()
        fill(store, 40)
        store.flusher.sync_now()
        machine.run(store.maintenance.flush_entries())
        machine.fail("datasync", where)
        machine.end_in(more)
        with pytest.raises((OSError, ProcessEnded)):
            machine.thorough_round(store)
        machine.kill()
        again = machine.start()
        fill(again, 5, first=40)
        machine.thorough_round(again)
        machine.cut_power()
        assert len(assert_consistent(machine.start())) == 45


def test_what_an_older_process_left_half_written_never_gets_a_name() -> None:
    """Its draft, whole and long out of date, is not what a later rename shows."""
    for seed in range(40):
        machine = Machine(seed)
        files = machine.start_files()
        files.make_directory(str(ROOT))
        path = str(ROOT / "note")
        handle = files.open(f"{path}.tmp", create=True)
        files.pwrite(handle, b"older", 0)
        files.datasync(handle)
        files.sync_directory(str(ROOT))
        write_file_atomically(files, path, b"newer", durable=False)
        machine.cut_power()
        assert read_file(machine.start_files(), path) != b"older"


def test_seed_10093() -> None:
    """A failed sync of the index, and an end before it was noted."""
    seeded.run(10093)


def test_seed_2995() -> None:
    """A write that failed left a record of a topic that was deleted before the restart."""
    seeded.run(2995)


def test_a_note_that_was_not_believed_is_not_believed_later() -> None:
    """An old note fits again once a power cut takes the checkpoint file back to its times."""
    machine = Machine(0)
    store = machine.start()
    fill(store, 40)
    machine.thorough_round(store)
    machine.kill()
    files = machine.start_files()
    handle = files.open(str(ROOT / "checkpoint"))
    files.pwrite(handle, b"\1" * 24, 0)
    files.close(handle)
    machine.start()
    machine.kill()
    files = machine.start_files()
    assert not files.exists(str(ROOT / "cometmq-positions.json"))


@pytest.mark.parametrize("seed", [38549, 43843, 90158])
def test_seeds_of_notes_cuts_and_short_files(seed: int) -> None:
    seeded.run(seed)
