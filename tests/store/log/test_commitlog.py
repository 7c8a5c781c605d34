"""The log: rolls, full and failing disks, files made ahead."""

import errno
from pathlib import Path

import pytest

from cometmq.core.errors import StoreFull, StoreOffline
from cometmq.message import batch
from cometmq.message.record import BLANK, MAGIC_BLANK
from cometmq.store import messagestore as engine
from cometmq.store.files import Buffer, PosixFiles
from cometmq.store.log import commitlog
from tests.store.faults import FailingFiles
from tests.store.stores import (
    assert_consistent,
    bodies,
    copied,
    fill,
    log_of,
    opened,
    put,
    shared,
)

FILE = 16_384
OVERHEAD = 91 + 1  # of a record of topic "t" without properties


def test_a_record_and_a_blank_must_fit(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, body=bytes(FILE - OVERHEAD - 8))
    put(store, body=b"next file")
    put(store, body=bytes(FILE - OVERHEAD - 8 - 100 - 92))
    put(store, body=b"does not fit any more")
    store.commit()
    assert [record.physical_offset for record in log_of(store)] == [0, FILE, FILE + 101, 2 * FILE]
    first, second = ((tmp_path / "commitlog" / f"{base:020d}").read_bytes() for base in (0, FILE))
    assert first[-8:] == BLANK.pack(8, MAGIC_BLANK)
    room = 99
    assert second[-room : -room + 8] == BLANK.pack(room, MAGIC_BLANK)
    assert_consistent(store)
    store.close()
    again = opened(tmp_path)
    assert len(assert_consistent(again)) == 4
    again.close()


def test_one_turn_over_several_files(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(12):
        put(store, body=b"%02d" % number + bytes(6_000))
    store.commit()
    assert len(store.log.segments.files) == 6
    assert len(assert_consistent(store)) == 12
    put(store, body=b"after")
    store.commit()
    assert bodies(store, "t", 0)[-1] == b"after"
    store.close()


@pytest.mark.parametrize("operation", ["pwrite", "allocate"])
def test_a_full_disk_stores_nothing_of_the_turn(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    store = opened(tmp_path / "s", files=files)
    fill(store, 20)
    before = store.written_offset, store.queue("t", 0).next_offset
    files.failing[operation] = errno.ENOSPC
    put(store, body=b"first" + bytes(9_000))
    put(store, body=b"second" + bytes(9_000))
    put(store, "new", 1)
    with pytest.raises(StoreFull, match="free space there") as caught:
        store.commit()
    assert caught.value.code == 14
    assert (store.written_offset, store.queue("t", 0).next_offset) == before
    assert store.queue("new", 1).next_offset == 0
    assert store.state.put_failures == 3
    with pytest.raises(StoreFull):
        put(store)
    killed = opened(copied(tmp_path / "s", "killed"))
    assert len(assert_consistent(killed)) == 20
    killed.close()
    files.failing.clear()
    store.state.update()
    put(store, body=b"short")
    store.commit()
    fill(store, 30, first=100)
    assert len(assert_consistent(store)) == 51
    store.close()


def test_a_failing_device_takes_the_log_offline(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path / "s", files=files)
    fill(store, 20)
    files.failing["pwrite"] = errno.EIO
    put(store)
    with pytest.raises(StoreOffline, match="until a restart") as caught:
        store.commit()
    assert "Input/output error" in str(caught.value)
    files.failing.clear()
    with pytest.raises(StoreOffline):
        put(store)
    store.state.update()
    with pytest.raises(StoreOffline):
        put(store)
    assert len(bodies(store, "t", 0)) == 7
    store.close()
    assert (tmp_path / "s" / "abort").exists()
    again = opened(tmp_path / "s")
    assert len(assert_consistent(again)) == 20
    again.close()


def test_when_the_rest_of_a_failed_write_cannot_be_cleared(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    files.failing.update(pwrite=errno.ENOSPC, erase=errno.EIO)
    put(store)
    with pytest.raises(StoreOffline, match="clearing the rest failed"):
        store.commit()
    with pytest.raises(StoreOffline):
        store.log.commit() if store.log.position > store.log.written else put(store)
    files.failing.clear()
    store.close()


def test_files_made_ahead_are_used(tmp_path: Path) -> None:
    store = opened(tmp_path)
    log = store.log
    assert log.wants_next_file()
    ahead = log.make_next_file(store.executor)
    assert not log.wants_next_file()
    fill(store, 100)
    assert ahead.result() in log.segments.files
    log.make_next_file(store.executor)
    store.close()
    again = opened(tmp_path)
    assert not again.log.wants_next_file()
    fill(again, 200, first=100)
    assert len(assert_consistent(again)) == 300
    again.close()


def test_a_file_ahead_that_failed_is_the_roll_s_failure(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    files.failing["allocate"] = errno.ENOSPC
    store.log.make_next_file(store.executor)
    put(store, body=bytes(10_000))
    put(store, body=bytes(10_000))
    with pytest.raises(StoreFull):
        store.commit()
    files.failing.clear()
    store.state.update()
    fill(store, 100)
    assert len(assert_consistent(store)) == 100
    store.log.make_next_file(store.executor)
    store.log.forget_next_file()
    store.close()


def test_views_stay_inside_one_file(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 400)
    assert store.log.view(0, 10) is not None
    assert store.log.view(FILE - 5, 10) is None
    assert store.log.view(1 << 40, 1) is None
    assert len(store.log.segments.files) > 3
    assert [file.base for file in store.log.unsynced_files()] == [
        file.base for file in store.log.segments.files if file.base < store.written_offset
    ]
    store.flusher.sync_now()
    assert store.log.unsynced_files() == []
    store.close()


def test_long_records_keep_their_place_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commitlog, "_LONG_BYTES", 500)
    store = opened(tmp_path)
    many = batch.pack((0, b"%d" % number, b"") for number in range(9))
    queue = store.queue("t", 0)
    for body in (b"first", b"second"):
        put(store, body=body)
        store.append_batch(queue, many, shared(store))
    put(store, body=b"last")
    store.commit()
    numbers = [b"%d" % number for number in range(9)]
    found = [record.body for record in assert_consistent(store)]
    assert found == [b"first", *numbers, b"second", *numbers, b"last"]
    store.close()


@pytest.mark.parametrize("problem", [0, errno.ENOSPC, errno.EIO])
async def test_what_is_written_early_is_of_the_log_only_at_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    monkeypatch.setattr(commitlog, "_LONG_BYTES", 500)
    monkeypatch.setattr(engine, "PART_ROWS", 10)
    monkeypatch.setattr(engine, "EARLY_BYTES", 2_000)
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    fill(store, 3)
    begin, queue = store.written_offset, store.queue("t", 0)
    first = queue.next_offset
    put(store, body=b"before")
    many = batch.pack((0, b"%d" % number, b"") for number in range(40))
    parts = await store.pack_batch(queue, many, shared(store))
    assert store.append_parts(queue, parts, shared(store))[0] == first + 1
    put(store, body=b"behind")
    assert store.write_early()
    file = tmp_path / "commitlog" / f"{0:020d}"
    assert any(file.read_bytes()[begin : begin + 2_000])
    assert (store.written_offset, queue.max_offset) == (begin, first)
    if problem:
        files.failing["pwrite"] = problem
        assert not store.write_early()
        with pytest.raises(StoreFull if problem == errno.ENOSPC else StoreOffline):
            store.commit()
        files.failing.clear()
        assert queue.next_offset == first
        assert len(assert_consistent(store)) == 3
        if problem == errno.ENOSPC:
            assert not any(file.read_bytes()[begin:])
            store.state.update()
            fill(store, 2)
            assert len(assert_consistent(store)) == 5
    else:
        while store.write_early():
            pass
        store.commit()
        found = [record.body for record in assert_consistent(store)][3:]
        assert found == [b"before", *(b"%d" % number for number in range(40)), b"behind"]
        assert_consistent(store)
    store.close()


def test_zeros_ahead_never_touch_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "ZEROS", bytes(1_000))
    monkeypatch.setattr(commitlog, "_AHEAD_BYTES", 300)
    files = CountedZeros()
    store = opened(tmp_path, files=files)
    sent = []
    for number in range(300):
        sent.append(b"%03d" % number)
        put(store, body=sent[-1])
        if number % 3 == 0:
            store.log.write_zeros()  # what is not written yet stays free
        store.commit()
        store.log.write_zeros()
        store.log.write_zeros()
    # About one write of zeros for each 1 000 bytes of records, all within the files.
    assert 0.9 < files.zeros / (store.written_offset / 1_000) < 2.5
    assert files.last < FILE
    assert bodies(store, "t", 0) == sent
    assert len(assert_consistent(store)) == 300
    store.close()
    again = opened(tmp_path)
    assert bodies(again, "t", 0) == sent
    again.log.write_zeros()
    put(again, body=b"after")
    again.commit()
    assert bodies(again, "t", 0) == [*sent, b"after"]
    again.close()


def test_zeros_that_cannot_be_written_harm_nothing(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    put(store, body=b"first")
    store.commit()
    files.failing["erase"] = errno.EIO
    store.log.write_zeros()
    put(store, body=b"second")
    store.commit()
    files.failing["pwrite"] = errno.EIO
    put(store, body=b"third")
    with pytest.raises(StoreOffline):
        store.commit()
    store.log.write_zeros()  # a log that failed is left as it is
    assert bodies(store, "t", 0) == [b"first", b"second"]
    store.close()


class CountedZeros(PosixFiles):
    """Counts writes of zeros, and knows the last byte that they reached."""

    __slots__ = ("last", "zeros")

    def __init__(self) -> None:
        self.zeros = self.last = 0

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if len(data) > 100 and not any(data):
            self.zeros += 1
            self.last = offset + len(data) - 1
        super().pwrite(handle, data, offset)


@pytest.mark.parametrize("problem", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_for_the_next_file_writes_wait(tmp_path: Path, problem: int) -> None:
    """Other programs may take the last one. The device is well, and needs no restart."""
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    files.failing["allocate"] = problem
    with pytest.raises(StoreFull, match="open files"):
        fill(store, 200)
    stored = len(assert_consistent(store))
    assert 0 < stored < 200
    with pytest.raises(StoreFull):
        put(store)
    files.failing.clear()
    store.state.update()
    fill(store, 20)
    assert len(assert_consistent(store)) == stored + 20
    store.close()
    again = opened(tmp_path)
    assert len(assert_consistent(again)) == stored + 20
    again.close()
