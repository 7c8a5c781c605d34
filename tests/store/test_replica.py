"""A store that copies another one's log, in pieces of any size."""

import errno
import random
from pathlib import Path

import pytest

from cometmq.core.errors import StoreFull
from cometmq.store.config import FlushDiskType
from cometmq.store.engine import MessageStore
from cometmq.store.replica import FLOOD_BYTES, BadCopy, Replica
from tests.replication.pairs import assert_same, log_bytes
from tests.store.faults import FailingFiles
from tests.store.stores import bodies, copied, fill, opened, put


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


@pytest.mark.parametrize("policy", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_floods_in_is_written_at_once_and_dispatched_by_and_by(
    tmp_path: Path, policy: str
) -> None:
    master = opened(tmp_path / "master")
    slave = opened(tmp_path / "slave", flush_disk_type=FlushDiskType(policy))
    fill(master, 1_200)
    end = master.written_offset
    replica = Replica(slave)
    replica.may_lag = True
    first = FLOOD_BYTES + 1_000
    assert end > 2 * FLOOD_BYTES
    replica.take(log_bytes(master, 0, first))
    assert replica.floods
    assert slave.dispatched_offset == 0
    assert replica.lag_bytes == slave.written_offset > FLOOD_BYTES
    replica.follow_up()
    slave.flusher.sync_now()
    assert 0 < slave.dispatched_offset < slave.written_offset
    # What comes meanwhile, in small pieces too, waits behind it.
    for start in range(first, end, 5_000):
        replica.take(log_bytes(master, start, min(start + 5_000, end)))
    assert slave.written_offset == end
    turns = 0
    while replica.lag_bytes:
        replica.follow_up()
        turns += 1
    assert turns > 2
    replica.floods = False
    slave.flusher.sync_now()
    put(master, body=b"more")
    master.commit()
    replica.take(log_bytes(master, end, master.written_offset))
    slave.flusher.sync_now()
    assert_same(master, slave)


def test_a_stop_leaves_what_is_not_dispatched_to_the_next_start(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 1_000)
    replica = Replica(slave)
    replica.may_lag = True
    replica.take(log_bytes(master, 0, master.written_offset))
    replica.follow_up()
    killed = copied(tmp_path / "slave", "killed")
    slave.close()
    for path in (tmp_path / "slave", killed):
        again = opened(path)
        assert_same(master, again)
        again.close()


def test_following_up_goes_on_where_the_log_begins_by_now(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 1_000)
    replica = Replica(slave)
    replica.may_lag = True
    replica.take(log_bytes(master, 0, master.written_offset))
    slave.log.segments.drop_first()
    while replica.lag_bytes:
        replica.follow_up()
    assert slave.dispatched_offset == slave.written_offset
    replica.follow_up()
    assert replica.lag_bytes == 0


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
    with pytest.raises(BadCopy, match=f"of physical offset {first}"):
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
