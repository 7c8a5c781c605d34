"""A store that copies another one's log, in pieces of any size."""

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from cometmq.core.errors import StoreFull
from cometmq.store.config import FlushDiskType
from cometmq.store.engine import MessageStore
from cometmq.store.replica import FLOOD_BYTES, BadCopy, Replica
from cometmq.store.scan import Scan
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


def flood(slave: MessageStore, master: MessageStore, end: int | None = None) -> Replica:
    """A copy that got much of its master's log at once, and did not look at it yet."""
    replica = Replica(slave)
    data = log_bytes(master, 0, end or master.written_offset)
    for at in range(0, len(data), FLOOD_BYTES):
        replica.take(data[at : at + FLOOD_BYTES], floods=True)
    assert replica.received == len(data) == replica.unchecked_bytes
    return replica


def follow(replica: Replica) -> int:
    """Have it do all that it can, in how many turns."""
    turns = 0
    while replica.lags:
        replica.follow_up()
        turns += 1
    return turns


@pytest.mark.parametrize("policy", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_floods_in_is_written_at_once_then_checked_then_dispatched(
    tmp_path: Path, policy: str
) -> None:
    master = opened(tmp_path / "master")
    slave = opened(tmp_path / "slave", flush_disk_type=FlushDiskType(policy))
    fill(master, 1_200)
    end = master.written_offset
    first = FLOOD_BYTES + 1_000
    assert end > 2 * FLOOD_BYTES
    replica = Replica(slave)
    replica.take(log_bytes(master, 0, 100))
    replica.take(log_bytes(master, 100, first), floods=True)
    assert replica.floods
    assert replica.received == first
    assert slave.written_offset == slave.dispatched_offset == 0
    replica.follow_up()
    assert 0 < slave.written_offset <= first
    assert slave.dispatched_offset == 0
    # What comes meanwhile, in small pieces too, waits behind it.
    for start in range(first, end, 5_000):
        replica.take(log_bytes(master, start, min(start + 5_000, end)))
    assert replica.received == end
    assert slave.written_offset < end
    assert follow(replica) > 2
    assert slave.written_offset == end
    slave.flusher.sync_now()
    assert slave.dispatched_offset == end
    replica.floods = False
    put(master, body=b"more")
    master.commit()
    replica.take(log_bytes(master, end, master.written_offset))
    slave.flusher.sync_now()
    assert_same(master, slave)


def test_after_a_flood_a_record_that_is_whole_is_checked_in_its_turn(tmp_path: Path) -> None:
    size: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 20}
    master, slave = opened(tmp_path / "master", **size), opened(tmp_path / "slave", **size)
    fill(master, 400)
    last, _ = put(master, body=bytes(500_000))
    master.commit()
    end = master.written_offset
    replica = flood(slave, master, last + 300_000)
    follow(replica)
    assert slave.written_offset == last
    assert replica.unchecked_bytes == 300_000
    assert not replica.lags
    replica.floods = False
    for start in range(last + 300_000, end, 50_000):
        assert slave.written_offset == last
        replica.take(log_bytes(master, start, min(start + 50_000, end)))
    assert slave.written_offset == end
    follow(replica)
    assert_same(master, slave)


def test_a_stop_checks_all_that_came_and_leaves_the_dispatch_to_the_next_start(
    tmp_path: Path,
) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 1_000)
    last, size = slots(master)[-1]
    replica = flood(slave, master, last + size // 2)
    replica.follow_up()
    killed = copied(tmp_path / "slave", "killed")
    slave.close()
    for path in (tmp_path / "slave", killed):
        again = opened(path)
        assert again.report is not None
        assert again.report.crashed == (path == killed)
        assert again.report.torn == (path == killed)
        assert again.written_offset == again.dispatched_offset == last
        Replica(again).take(log_bytes(master, last, master.written_offset))
        assert_same(master, again)
        again.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_no_start_believes_what_was_not_checked(tmp_path: Path, is_killed: bool) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 1_000)
    at, end, replica = bad_flood(slave, master)
    replica.follow_up()
    path = copied(tmp_path / "slave", "killed")
    slave.close()
    again = opened(path if is_killed else tmp_path / "slave")
    assert again.written_offset == at
    assert behind(again) == b""
    Replica(again).take(log_bytes(master, at, end))
    assert_same(master, again)
    again.close()


def slots(store: MessageStore) -> list[tuple[int, int]]:
    """Where the records of a log are, and how long."""
    return [(record.physical_offset, record.size_bytes) for record in Scan(store.log.segments, 0)]


def bad_flood(slave: MessageStore, master: MessageStore) -> tuple[int, int, Replica]:
    """A flood in which a body was changed on its way: where its record begins, where the master's
    log ends."""
    end = master.written_offset
    replica = flood(slave, master)
    at = next(at for at, size in slots(master) if at > end // 2 and size > 200)
    file = slave.log.segments.find(at)
    assert file is not None
    file.write(at + 120, bytes([file.view[at + 120 - file.base] ^ 0x40]))
    return at, end, replica


def behind(store: MessageStore) -> bytes:
    """What stands in the files behind the end of a log, without zeros."""
    files = store.log.segments.files
    end = store.written_offset
    return b"".join(bytes(file.view[max(end - file.base, 0) :]) for file in files).strip(b"\0")


def test_a_bad_record_of_a_flood_ends_the_log_until_it_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 1_000)
    seen: list[int] = []
    at, end, replica = bad_flood(slave, master)
    slave.on_progress.append(lambda: seen.append(slave.written_offset))
    with pytest.raises(BadCopy, match="CRC") as refused:
        follow(replica)
    assert refused.value.offset == at
    with pytest.raises(BadCopy, match=f"this log ends at {end}"):
        replica.begin(slave.written_offset)
    with pytest.raises(BadCopy, match="CRC"):
        replica.check()
    assert slave.written_offset == at == max(seen)
    assert behind(slave)
    for _ in replica.clear("its CRC is wrong"):
        pass
    assert behind(slave) == b""
    assert f"offset={at} bytes={end - at} reason='its CRC is wrong'" in caplog.text
    replica.begin(at)
    replica.take(log_bytes(master, at, end))
    follow(replica)
    assert_same(master, slave)


def test_following_up_goes_on_where_the_log_begins_by_now(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 1_000)
    replica = flood(slave, master)
    while replica.check():
        pass
    slave.log.segments.drop_first()
    follow(replica)
    assert slave.dispatched_offset == slave.written_offset
    replica.follow_up()
    assert not replica.lags


def test_following_up_passes_over_what_was_dropped_as_a_whole(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    fill(master, 1_000)
    begin = master.log.segments.files[-1].base
    replica = flood(slave, master, begin)
    while replica.check():
        pass
    put(slave, body=b"x")
    while slave.log.segments.start < begin:
        slave.log.segments.drop_first()
    replica.follow_up()
    assert not replica.lags


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
    with pytest.raises(BadCopy, match=f"carries physical offset {first}"):
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


def test_a_full_disk_in_a_flood_loses_nothing(tmp_path: Path) -> None:
    files = FailingFiles()
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave", files=files)
    fill(master, 600)
    replica = flood(slave, master, FLOOD_BYTES)
    files.failing["allocate"] = errno.ENOSPC
    with pytest.raises(StoreFull):
        replica.take(log_bytes(master, FLOOD_BYTES, master.written_offset), floods=True)
    assert replica.received == FLOOD_BYTES
    follow(replica)
    for _ in replica.clear():
        pass
    before = slave.written_offset
    assert behind(slave) == b""
    assert FLOOD_BYTES - 2_000 < before <= FLOOD_BYTES
    files.failing.clear()
    replica.take(log_bytes(master, before, master.written_offset), floods=True)
    follow(replica)
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
