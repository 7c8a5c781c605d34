"""Queue files that contradict the log, and holes for records that are gone."""

import errno
import shutil
from pathlib import Path

import pytest

from cometmq.store.files import PosixFiles
from cometmq.store.layout import HOLE, QUEUE_ENTRY
from cometmq.store.messagestore import MessageStore
from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.queue.table import QueueTable
from cometmq.store.recovery.filechecks import (
    QueueCheck,
    QueueFault,
    filled_end,
    last_entry_end,
    punch,
)
from tests.store.stores import entries_of, fill, log_of, opened

#: What a queue file of these stores holds.
PER_FILE = 40


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    """Two files a queue, several index files; everything written."""
    made = opened(tmp_path / "s")
    fill(made, 200)
    made.dispatcher.write(made.clock.wall_ms())
    return made


def queue_path(store: MessageStore, queue_id: int = 0, number: int = 0) -> Path:
    name = f"{number * PER_FILE * 20:020d}"
    return Path(store.pool.directory) / "t" / str(queue_id) / name


def fault_of(
    store: MessageStore, *, exact: bool = True, torn: bool = False, below: int | None = None,
    files: PosixFiles | None = None,
) -> QueueFault | None:  # fmt: skip
    layer = files or store.files
    below = store.written_offset if below is None else below
    store.pool.close()
    pool = type(store.pool)(layer, store.pool.directory, store.pool.file_bytes)
    check = QueueCheck(layer, pool, store.log.segments, below, exact=exact, torn=torn)
    return check.fault(ConsumeQueue(pool, "t", 0))


def spoil(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def test_good_queues_have_no_fault(store: MessageStore) -> None:
    for exact in (True, False):
        assert fault_of(store, exact=exact) is None
    assert fault_of(store, exact=False, below=log_of(store)[100].physical_offset) is None
    shutil.rmtree(queue_path(store).parent)
    fault = fault_of(store)
    assert fault is not None
    assert (fault.is_begin, fault.problem) == (True, "its folder is empty")


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("size", [100, 20 * PER_FILE + 1])
def test_a_file_of_another_size(store: MessageStore, size: int, exact: bool) -> None:
    path = queue_path(store)
    path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    fault = fault_of(store, exact=exact)
    assert fault is not None
    assert (fault.base, fault.is_size) == (0, True)
    assert f"it is {size} bytes long" in fault.problem


def test_a_last_file_that_is_too_short(store: MessageStore) -> None:
    """After a crash its length may not have been on the device; after a clean stop it was."""
    path = queue_path(store, number=1)
    path.write_bytes(path.read_bytes()[: 27 * 20])
    fault = fault_of(store)
    assert fault is not None
    assert (fault.base, fault.end) == (PER_FILE * 20, PER_FILE)
    assert fault_of(store, exact=False) is None
    assert path.stat().st_size == PER_FILE * 20


def test_a_missing_file_in_the_middle(store: MessageStore) -> None:
    fill(store, 120, first=200)
    store.dispatcher.write(store.clock.wall_ms())
    queue_path(store, number=1).unlink()
    fault = fault_of(store)
    assert fault is not None
    assert (fault.base, fault.problem) == (2 * PER_FILE * 20, "the previous file is missing")


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("at", "data"), [(0, b"\x40"), (7, b"\x01"), (8, b"\x80"), (11, b"\x01"), (6, b"\0\0")]
)
def test_a_last_entry_that_is_not_the_record_s(
    store: MessageStore, at: int, data: bytes, exact: bool
) -> None:
    last = store.queue("t", 0).max_offset - 1
    spoil(queue_path(store, number=1), (last - PER_FILE) * 20 + at, data)
    fault = fault_of(store, exact=exact)
    if not exact and at == 0:
        # It says that it is for a record beyond what is believed: dispatched again.
        assert fault is None
    else:
        assert fault is not None
        assert "contradicts the log" in fault.problem
        assert fault.base == PER_FILE * 20


def test_entries_behind_the_end_are_a_fault_after_a_clean_stop_only(store: MessageStore) -> None:
    below = log_of(store)[190].physical_offset
    assert fault_of(store, exact=False, below=below) is None
    fault = fault_of(store, exact=True, below=below)
    assert fault is not None
    assert (fault.base, fault.end) == (PER_FILE * 20, 67)


def test_after_a_crash_of_the_machine_a_torn_entry_is_none(store: MessageStore) -> None:
    """Sectors behind the synced ones may be there or not, also in the middle of an entry."""
    last = store.queue("t", 0).max_offset - 1
    spoil(queue_path(store, number=1), (last - PER_FILE) * 20 + 6, b"\0\0")
    assert fault_of(store, exact=False) is not None
    assert fault_of(store, exact=False, torn=True) is None


def test_records_that_the_log_no_longer_has_are_not_asked_for(store: MessageStore) -> None:
    while store.log.segments.files[1:]:
        store.log.segments.drop_first()
    store.log.segments.drop_first()
    assert fault_of(store) is None


class Unreadable(PosixFiles):
    """A device that gives nothing of queue files."""

    def pread(self, handle: int, size_bytes: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


def test_a_queue_that_cannot_be_read(store: MessageStore) -> None:
    fault = fault_of(store, files=Unreadable())
    assert fault is not None
    assert (fault.base, fault.end) == (0, PER_FILE)
    assert "Input/output error" in fault.problem


def test_a_file_where_a_directory_should_be(store: MessageStore) -> None:
    shutil.rmtree(queue_path(store).parent)
    queue_path(store).parent.write_text("?")
    fault = fault_of(store)
    assert fault is not None
    assert "Not a directory" in fault.problem


def test_holes_take_the_place_of_lost_records(store: MessageStore) -> None:
    records = log_of(store)
    start, stop = records[60].physical_offset, records[160].physical_offset
    found = punch(store.pool, str(queue_path(store).parent), start, stop, HOLE)
    assert found == (20, 54)
    queue = store.queue("t", 0)
    known = store.queues.known
    store.queues = QueueTable(store.pool, store.log.segments, ())
    store.queues.known = known
    store.queues.load_below = store.written_offset
    entries = entries_of(store.queue("t", 0))
    assert [
        number for number, entry in enumerate(entries) if entry == QUEUE_ENTRY.unpack(HOLE)
    ] == (list(range(20, 54)))
    assert store.queue("t", 0).max_offset == queue.max_offset
    # Nothing is left to do, also among holes.
    assert punch(store.pool, queue.directory, start, stop, HOLE)[0] in range(20, 55)
    assert entries_of(store.queue("t", 0)) == entries
    assert punch(store.pool, queue.directory, 1 << 40, 1 << 41, HOLE) == (67, 67)
    assert punch(store.pool, str(queue_path(store).parent) + "?", 0, 1, HOLE) == (0, 0)


def test_how_far_files_reach(store: MessageStore) -> None:
    directory = str(queue_path(store).parent)
    last = [record for record in log_of(store) if record.queue_id == 0][-1]
    assert filled_end(store.pool, directory, [0, PER_FILE * 20]) == 67
    assert last_entry_end(store.pool, directory) == last.physical_offset + last.size_bytes
    assert last_entry_end(store.pool, directory + "?") == 0
    queue_path(store).parent.joinpath("x").write_text("")
    assert last_entry_end(store.pool, str(queue_path(store))) == 0


def test_the_total_of_all_ends(store: MessageStore) -> None:
    assert store.queues.entry_total() == 200
    store.queues.known["u"] = {0}
    assert store.queues.entry_total() == -1
