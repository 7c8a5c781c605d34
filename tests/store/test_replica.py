"""A store that copies another one's log, in pieces of any size."""

import errno
import random
from pathlib import Path

import pytest

from cometmq.core.errors import StoreFull
from cometmq.store.log.scan import Scan
from cometmq.store.messagestore import MessageStore
from cometmq.store.replica import BadCopy, Replica
from tests.replication.pairs import assert_same, log_bytes
from tests.store.faults import FailingFiles
from tests.store.stores import bodies, copied, fill, opened, put

pytestmark = pytest.mark.core


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_in_pieces_is_the_same_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 400)
    replica = Replica(slave)
    position = 0
    while position < master.written_offset:
        size = chance.choice((1, 7, 90, 300, 5_000, 40_000))
        piece = log_bytes(master, position, min(position + size, master.written_offset))
        replica.take(piece)
        position += len(piece)
        assert replica.received == position
        assert slave.written_offset <= position
    assert len(slave.log.segments.files) > 2
    assert_same(master, slave)
    assert bodies(slave, "t", 1) == bodies(master, "t", 1)
    slave.close()
    again = opened(tmp_path / "slave")
    assert_same(master, again)


def slots(store: MessageStore) -> list[tuple[int, int]]:
    """Where the records of a log are, and how long."""
    return [(record.physical_offset, record.size_bytes) for record in Scan(store.log.segments, 0)]


@pytest.mark.parametrize("at", [0, 120])
def test_what_stands_before_a_bad_record_is_taken_and_the_rest_comes_again(
    tmp_path: Path, at: int
) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 1_000)
    end = master.written_offset
    bad = next(place for place, size in slots(master) if place > end // 2 and size > 200)
    data = bytearray(log_bytes(master, 0, end))
    data[bad + at] ^= 0x40
    replica = Replica(slave)
    with pytest.raises(BadCopy) as refused:
        replica.take(bytes(data))
    assert refused.value.offset == bad
    assert slave.written_offset == slave.dispatched_offset == replica.received == bad
    with pytest.raises(BadCopy):
        replica.take(bytes(data[bad:]))
    assert replica.received == bad
    replica.take(log_bytes(master, bad, end))
    assert_same(master, slave)


def test_a_copy_that_was_killed_goes_on_where_its_last_record_ends(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 300)
    replica = Replica(slave)
    replica.take(log_bytes(master, 0, 40_011))
    assert slave.written_offset < 40_011
    with opened_again(slave, tmp_path) as again:
        assert again.written_offset == slave.written_offset
        Replica(again).take(log_bytes(master, again.written_offset, master.written_offset))
        assert_same(master, again)


class opened_again:
    """The store as a kill leaves it."""

    def __init__(self, store: MessageStore, root: Path) -> None:
        self._path = copied(Path(store.config.store_path_root_dir), "killed")

    def __enter__(self) -> MessageStore:
        self._store = opened(self._path)
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def test_a_copy_may_begin_in_the_middle_of_the_history(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 300)
    replica = Replica(slave)
    begin = master.log.segments.files[-2].base
    replica.begin(begin)
    assert replica.received == begin
    replica.take(log_bytes(master, begin, master.written_offset))
    assert_same(master, slave)
    assert slave.queue("t", 0).min_offset > 0
    path = copied(tmp_path / "slave", "killed")
    slave.close()
    for root in (tmp_path / "slave", path):
        again = opened(root)
        assert_same(master, again)
        assert bodies(again, "t", 0, again.queue("t", 0).min_offset)
        again.close()


def test_where_a_copy_may_not_begin(tmp_path: Path) -> None:
    slave = opened(tmp_path / "slave")
    replica = Replica(slave)
    replica.begin(0)
    with pytest.raises(BadCopy, match="mappedFileSizeCommitLog"):
        replica.begin(1_000)
    fill(slave, 3)
    with pytest.raises(BadCopy, match=f"this log ends at {slave.written_offset}"):
        replica.begin(16_384)
    replica.begin(slave.written_offset)


@pytest.mark.parametrize(
    ("at", "problem"),
    [(0, "record of"), (4, "magic"), (31, "physical offset"), (88, "CRC")],
)
def test_what_is_no_log_is_refused_and_nothing_of_it_taken(
    tmp_path: Path, at: int, problem: str
) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 20)
    replica = Replica(slave)
    good = log_bytes(master, 0, master.written_offset)
    bad = bytearray(good)
    bad[at] ^= 0x40
    with pytest.raises(BadCopy, match=problem):
        replica.take(bytes(bad))
    assert slave.written_offset == replica.received == 0
    replica.take(good)
    assert_same(master, slave)


def test_a_transfer_for_another_place_is_refused(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 20)
    first = put(master, body=b"more")[0]
    master.commit()
    with pytest.raises(BadCopy, match=f"physical offset field is {first}"):
        Replica(slave).take(log_bytes(master, first, master.written_offset))


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    files = FailingFiles()
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave", files=files)
    fill(master, 200)
    replica = Replica(slave)
    replica.take(log_bytes(master, 0, 9_999))
    files.failing["allocate"] = errno.ENOSPC
    before = slave.written_offset
    with pytest.raises(StoreFull):
        replica.take(log_bytes(master, replica.received, master.written_offset))
    replica.drop_rest()
    assert replica.received == slave.written_offset == before
    files.failing.clear()
    replica.take(log_bytes(master, before, master.written_offset))
    assert_same(master, slave)


def test_followers_hear_of_progress(tmp_path: Path) -> None:
    store = opened(tmp_path)
    heard: list[tuple[int, int]] = []
    store.on_progress.append(lambda: heard.append((store.written_offset, store.durable_offset)))
    fill(store, 1)
    end = store.written_offset
    assert heard == [(end, 0)]
    store.flusher.sync_now()
    assert heard[1:] == [(end, end)]
