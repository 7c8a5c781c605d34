"""Starts: after clean stops, kills and power cuts, at any byte; and random lives of a store."""

import errno
import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt, StoreFull, StoreLocked
from cometmq.message import batch
from cometmq.store import checkpoint
from cometmq.store.files import PosixFiles
from tests.store.stores import (
    OtherBoot,
    assert_consistent,
    bodies,
    copied,
    fill,
    log_of,
    opened,
    put,
    run_round,
    shared,
)


class FullDisk(PosixFiles):
    """There is no room for anything."""

    def allocate(self, handle: int, size_bytes: int) -> None:
        os.ftruncate(handle, 100)
        raise OSError(errno.ENOSPC, "No space left on device")


def last_log_file(root: Path, end: int) -> tuple[Path, int]:
    path = root / "commitlog" / f"{end // 16_384 * 16_384:020d}"
    return path, end % 16_384


def test_a_new_store_says_so(tmp_path: Path) -> None:
    store = opened(tmp_path)
    report = store.report
    assert report is not None
    assert (report.reason, report.records) == ("new store", 0)
    store.close()


def test_clean_stop_reads_nothing_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 200)
    end = store.written_offset
    store.close()
    assert not (tmp_path / "s" / "abort").exists()
    store = opened(tmp_path / "s")
    assert store.report is not None
    assert (store.report.start, store.report.end, store.report.records) == (end, end, 0)
    assert len(assert_consistent(store)) == 200
    fill(store, 50, first=200)
    assert len(assert_consistent(store)) == 250
    store.close()


def test_kill_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 100)
    store.flusher.sync_now()
    run_round(store)
    noted = store.dispatched_offset
    fill(store, 30, first=100)
    put(store, body=b"never committed")
    again = opened(copied(tmp_path / "s", "killed"))
    assert again.report is not None
    assert (again.report.crashed, again.report.start) == (True, noted)
    assert len(assert_consistent(again)) == 130
    fill(again, 20, first=130)
    assert len(assert_consistent(again)) == 150
    again.close()
    store.commit()
    store.close()


@pytest.mark.parametrize("seed", range(25))
def test_power_cut_at_any_byte(tmp_path: Path, seed: int) -> None:
    """What was not synced may be there in part, or be something else: a whole prefix remains."""
    chance = random.Random(seed)
    store = opened(tmp_path / "s")
    fill(store, chance.randrange(1, 150))
    run_round(store, thorough=True)
    durable = store.durable_offset
    assert len(log_of(store)) > 0
    fill(store, chance.randrange(1, 100), first=500)
    store.dispatcher.write(0)
    end = store.written_offset
    before = [record.physical_offset for record in log_of(store)]
    root = copied(tmp_path / "s", "cut")
    store.close()

    cut = chance.randrange(durable, end + 1)
    for base in range(cut // 16_384 * 16_384, end + 1, 16_384):
        path = root / "commitlog" / f"{base:020d}"
        raw = bytearray(path.read_bytes())
        at = max(cut - base, 0)
        raw[at:] = (
            bytes(len(raw) - at) if chance.random() < 0.6 else chance.randbytes(len(raw) - at)
        )
        path.write_bytes(raw)
    for path in root.glob("consumequeue/*/*/*"):
        raw = bytearray(path.read_bytes())
        if chance.random() < 0.5:
            sector = chance.randrange(len(raw) // 20) * 20
            # Only entries beyond the synced ones may be lost.
            if int.from_bytes(raw[sector : sector + 8], "big") >= durable:
                raw[sector:] = bytes(len(raw) - sector)
                path.write_bytes(raw)

    again = opened(root, files=OtherBoot())
    left = [record.physical_offset for record in assert_consistent(again)]
    assert left == before[: len(left)]
    assert set(before) - set(left) <= {place for place in before if place >= durable}
    whole = [place for place in before if place < cut]
    assert len(left) >= len(whole) - 1
    fill(again, 60, first=900)
    assert len(assert_consistent(again)) == len(left) + 60
    again.close()
    final = opened(root)
    assert len(assert_consistent(final)) == len(left) + 60
    final.close()


def test_records_behind_a_cut_do_not_come_back(tmp_path: Path) -> None:
    """A hole in the middle ends the log; the whole records behind it must not be met again."""
    store = opened(tmp_path / "s")
    for number in range(40):
        put(store, body=b"old%03d" % number)
    store.commit()
    places = [record.physical_offset for record in log_of(store)]
    root = copied(tmp_path / "s", "cut")
    store.close()
    path, at = last_log_file(root, places[10])
    raw = bytearray(path.read_bytes())
    raw[at : at + 8] = bytes(8)
    path.write_bytes(raw)
    (root / "cometmq-positions.json").unlink(missing_ok=True)
    again = opened(root)
    assert len(log_of(again)) == 10
    put(again, body=b"new000")
    again.commit()
    assert [record.body for record in log_of(again)][9:] == [b"old009", b"new000"]
    killed = opened(copied(root, "killed"))
    assert len(assert_consistent(killed)) == 11
    killed.close()
    again.close()


@pytest.mark.parametrize("crashed", [False, True])
def test_a_store_without_our_positions(tmp_path: Path, crashed: bool) -> None:
    """As a Java broker leaves it: the checkpoint or the queues say where to begin."""
    store = opened(tmp_path / "s")
    fill(store, 300)
    run_round(store, thorough=True)
    fill(store, 20, first=300)
    if not crashed:
        store.close()
    root = copied(tmp_path / "s", "java")
    (root / "cometmq-positions.json").unlink()
    again = opened(root)
    assert again.report is not None
    assert again.report.crashed is crashed
    assert (again.report.records == 0) is not crashed
    assert len(assert_consistent(again)) == 320
    again.close()
    store.close()


def test_checkpoint_spares_old_files(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = opened(tmp_path / "s", clock)
    for number in range(10):
        fill(store, 60, first=number * 60)
        clock.advance(1_000_000)
    run_round(store, thorough=True)
    root = copied(tmp_path / "s", "java")
    for name in ("cometmq-positions.json", "cometmq-progress.json"):
        (root / name).unlink()
    again = opened(root)
    assert again.report is not None
    assert 0 < again.report.start < again.report.end
    assert again.report.reason == "checkpoint"
    assert len(assert_consistent(again)) == 600
    again.close()
    store.close()


def test_positions_are_void_once_another_broker_wrote(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 10)
    store.close()
    files = PosixFiles()
    assert checkpoint.read_positions(files, str(tmp_path)) is not None
    checkpoint.write_checkpoint(files, str(tmp_path), checkpoint.Checkpoint(1, 2, 3), durable=False)
    assert checkpoint.read_positions(files, str(tmp_path)) is None
    again = opened(tmp_path)
    assert again.report is not None
    assert again.report.reason == "clean stop by another broker"
    assert len(assert_consistent(again)) == 10
    again.close()


@pytest.mark.parametrize("lost", ["consumequeue", "index", "cometmq-positions.json", "checkpoint"])
def test_what_is_lost_is_made_again_from_the_log(tmp_path: Path, lost: str) -> None:
    store = opened(tmp_path / "s")
    fill(store, 120)
    run_round(store)
    root = copied(tmp_path / "s", "lost")
    store.close()
    for name in (lost, "cometmq-positions.json"):
        if (root / name).is_dir():
            shutil.rmtree(root / name)
        else:
            (root / name).unlink(missing_ok=True)
    again = opened(root)
    assert len(assert_consistent(again)) == 120
    again.close()


def test_queue_files_removed_after_a_clean_stop(tmp_path: Path) -> None:
    """Without this a queue would begin again at offset 0, under the offsets of its consumers."""
    store = opened(tmp_path)
    fill(store, 120)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue" / "t" / "1")
    again = opened(tmp_path)
    assert again.report is not None
    assert again.report.reason == "clean stop, queue files are missing"
    assert len(assert_consistent(again)) == 120
    again.close()


def test_another_file_size_is_refused_with_the_way_out(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 10)
    store.close()
    with pytest.raises(StoreCorrupt, match="the store was written with 16384: start with that"):
        opened(tmp_path, mapped_file_size_commit_log=32_768)
    opened(tmp_path).close()


def test_no_room_for_the_first_file(tmp_path: Path) -> None:
    with pytest.raises(StoreFull, match="set a smaller mappedFileSizeCommitLog"):
        opened(tmp_path, files=FullDisk())
    assert list((tmp_path / "commitlog").iterdir()) == []


def test_a_failed_open_gives_the_lock_back(tmp_path: Path) -> None:
    with pytest.raises(StoreFull):
        opened(tmp_path, files=FullDisk())
    store = opened(tmp_path)
    with pytest.raises(StoreLocked):
        opened(tmp_path)
    store.close()


def test_first_offset_of_a_queue_need_not_be_zero(tmp_path: Path) -> None:
    """The log's first files are gone, and the queue files with them: offsets go on."""
    store = opened(tmp_path / "s")
    fill(store, 300, queues=1)
    store.close()
    root = copied(tmp_path / "s", "short")
    shutil.rmtree(root / "consumequeue")
    first, *_ = sorted((root / "commitlog").iterdir())
    first.unlink()
    again = opened(root)
    records = assert_consistent(again)
    queue = again.queue("t", 0)
    assert queue.min_offset == records[0].queue_offset > 0
    assert queue.max_offset == 300
    again.close()
    final = opened(root)
    assert final.queue("t", 0).min_offset == records[0].queue_offset
    assert_consistent(final)
    final.close()


class Life:
    """A store, what was put into it, and what consumers must find."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = opened(root)
        self.model: dict[int, list[bytes]] = {number: [] for number in range(4)}
        self.pending: list[tuple[int, bytes]] = []
        self.step = 0

    def put(self, queue_id: int, size: int) -> None:
        body = b"%d:" % self.step + bytes(size)
        put(self.store, "t", queue_id, body, tag="x", keys=(f"u{self.step}",))
        self.pending.append((queue_id, body))

    def batch(self, queue_id: int, size: int) -> None:
        many = [b"%d.%d" % (self.step, number) for number in range(size)]
        texts = [b"UNIQ_KEY\x01b%d.%d" % (self.step, number) for number in range(size)]
        raw = batch.pack([(0, body, text) for body, text in zip(many, texts, strict=True)])
        queue = self.store.queue("t", queue_id)
        self.store.append_batch(queue, raw, shared(self.store))
        self.pending += [(queue_id, body) for body in many]

    def commit(self, *_: int) -> None:
        self.store.commit()
        for queue_id, body in self.pending:
            self.model[queue_id].append(body)
        self.pending = []

    def write(self, *_: int) -> None:
        self.store.dispatcher.write(self.store.clock.wall_ms())

    def note(self, *_: int) -> None:
        run_round(self.store)

    def sync(self, *_: int) -> None:
        run_round(self.store, thorough=True)

    def reopen(self, *_: int) -> None:
        self.commit()
        self.store.close()
        self.store = opened(self.root)

    def kill(self, *_: int) -> None:
        target = copied(self.root, f"killed{self.step}")
        self.pending = []
        self.store.close()
        self.root, self.store = target, opened(target)
        assert self.store.report is not None
        assert self.store.report.crashed

    def check(self) -> None:
        self.commit()
        assert_consistent(self.store)
        for queue_id, expected in self.model.items():
            assert bodies(self.store, "t", queue_id) == expected
        self.store.close()


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 3), st.integers(0, 3_000)),
            st.tuples(st.just("batch"), st.integers(0, 3), st.integers(1, 20)),
            st.tuples(
                st.sampled_from(["commit", "write", "note", "sync", "reopen", "kill"]),
                st.just(0),
                st.just(0),
            ),
        ),
        min_size=5,
        max_size=40,
    )
)
def test_random_lives(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """Random appends, stops and kills: what was committed is there, in order, nothing else."""
    life = Life(tmp_path_factory.mktemp("life") / "store")
    for life.step, (kind, queue_id, size) in enumerate(steps):
        getattr(life, kind)(queue_id, size)
    life.check()


def test_positions_file_is_what_the_docs_say(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 3)
    end = store.written_offset
    store.close()
    found = msgspec.json.decode((tmp_path / "cometmq-positions.json").read_bytes())
    assert found["clean"] is True
    assert found["written"] == found["synced"] == end
    assert len(found["checkpoint"]) == 3


def test_a_first_file_that_was_never_filled_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").touch()
    store = opened(tmp_path)
    fill(store, 3)
    assert len(assert_consistent(store)) == 3
    store.close()


def test_a_topic_made_anew_does_not_get_its_former_messages_back(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    for number in range(5):
        put(store, body=f"former {number}".encode())
    store.commit()
    store.deletions.delete("t")
    for number in range(3):
        put(store, body=f"new {number}".encode())
    store.commit()
    store.flusher.sync_now()
    killed = copied(tmp_path / "s", "killed")
    again = opened(killed, files=OtherBoot())
    assert bodies(again, "t", 0) == [b"new 0", b"new 1", b"new 2"]
    assert put(again)[1] == 3
    again.commit()
    again.close()
    store.close()
