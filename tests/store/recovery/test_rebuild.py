"""Queues and index are brought up to the log, whatever is left of their files."""

import logging
import shutil
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import Record
from cometmq.store.checkpoint import Checkpoint, read_positions, write_checkpoint
from cometmq.store.files import PosixFiles
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.opening import Rebuild, open_store
from cometmq.store.recovery.rebuild import LogReplay
from tests.store.stores import (
    OtherBoot,
    assert_consistent,
    bodies,
    config,
    copied,
    fill,
    log_of,
    opened,
    put,
    run_round,
)

pytestmark = pytest.mark.core

PER_FILE = 40


def closed(root: Path, count: int = 200) -> Path:
    """A store with ``count`` messages after a clean stop."""
    store = opened(root)
    fill(store, count)
    store.close()
    return root


def queue_file(root: Path, queue_id: int, number: int = 0) -> Path:
    return root / "consumequeue" / "t" / str(queue_id) / f"{number * PER_FILE * 20:020d}"


def spoil(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def names_aside(root: Path) -> list[str]:
    return [path.name.partition("-")[2] for path in sorted((root / "cometmq-set-aside").glob("*"))]


def remade(store: MessageStore) -> list[tuple[str, int]]:
    assert store.report is not None
    return list(store.report.remade)


def test_a_lost_last_file_of_a_queue(tmp_path: Path) -> None:
    """What upstream's thread #7355 tells of: its offsets began again under those of consumers."""
    root = closed(tmp_path)
    queue_file(root, 2, 1).unlink()
    store = opened(root)
    assert store.report is not None
    assert "26 queue entries are missing" in store.report.reason
    assert len(assert_consistent(store)) == 200
    store.close()


@pytest.mark.parametrize("lost", ["queue", "file"])
def test_a_queue_that_lacks_entries_after_a_kill(tmp_path: Path, lost: str) -> None:
    store = opened(tmp_path / "s")
    fill(store, 170)
    run_round(store)
    fill(store, 30, first=170)
    root = copied(tmp_path / "s", "killed")
    store.close()
    if lost == "file":
        queue_file(root, 2, 1).unlink()
    else:
        shutil.rmtree(root / "consumequeue" / "t" / "2")
        assert (root / "cometmq-progress.json").exists()
    again = opened(root)
    assert len(assert_consistent(again)) == 200
    # Both are found before the log is read, by the numbers of folders and of entries.
    assert remade(again) == []
    assert [entry for entry in names_aside(root)] == []
    again.close()


def test_a_quiet_queue_whose_last_entry_is_bad_after_a_kill(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 30)
    put(store, "quiet", 0, b"1")
    put(store, "quiet", 0, b"2")
    store.commit()
    run_round(store)
    root = copied(tmp_path / "s", "killed")
    store.close()
    spoil(root / "consumequeue" / "quiet" / "0" / f"{0:020d}", 20, b"\x40")
    again = opened(root)
    assert again.queue("quiet", 0).next_offset == 2
    assert len(assert_consistent(again)) == 32
    again.close()


def test_java_s_checkpoint_may_be_ahead_of_its_queues(tmp_path: Path) -> None:
    """Upstream's threads #405, #467, #678, #1434: entries that were never flushed are missing."""
    clock = VirtualClock()
    store = opened(tmp_path / "s", clock)
    fill(store, 100)
    clock.advance(60_000)
    fill(store, 100, first=100)
    store.dispatcher.write(clock.wall_ms())
    root = copied(tmp_path / "s", "java")
    store.close()
    (root / "cometmq-positions.json").unlink(missing_ok=True)
    now_ms = clock.wall_ms() + 3_000
    write_checkpoint(PosixFiles(), str(root), Checkpoint(now_ms, now_ms, 0), durable=False)
    for queue_id in range(3):
        path = queue_file(root, queue_id)
        path.write_bytes(path.read_bytes()[:100].ljust(20 * PER_FILE, b"\0"))
        queue_file(root, queue_id, 1).unlink()
    again = opened(root, files=OtherBoot())
    assert len(assert_consistent(again)) == 200
    again.close()


@pytest.mark.parametrize("lost", ["all", "newest", "garbage"])
def test_the_index_is_made_again_without_the_queues(tmp_path: Path, lost: str) -> None:
    root = closed(tmp_path)
    paths = sorted((root / "index").iterdir())
    if lost == "all":
        shutil.rmtree(root / "index")
    elif lost == "newest":
        paths[-1].unlink()
    else:
        paths[1].write_bytes(b"garbage")
    before = {path: path.stat().st_mtime_ns for path in (root / "consumequeue").rglob("*")}
    store = opened(root)
    assert len(assert_consistent(store)) == 200
    assert store.report is not None
    assert (store.report.start > 0) is (lost != "all")
    assert remade(store) == []
    store.close()
    assert before == {p: p.stat().st_mtime_ns for p in (root / "consumequeue").rglob("*")}
    again = opened(root)
    assert again.report is not None
    assert again.report.records == 0
    assert len(assert_consistent(again)) == 200
    again.close()


def test_only_records_that_may_be_at_fault_are_looked_at_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others are rows of a walk: else a start takes ten times as long."""
    root = tmp_path / "store"
    store = opened(root)
    fill(store, 100)
    put(store, "t", 0, more={"zero": "a\0b"})
    put(store, "t", 0, sys_flag=0x4, more={"a": "b"})
    fill(store, 100, first=100)
    store.close()
    shutil.rmtree(root / "consumequeue")
    looked: list[Record] = []

    def fault(self: LogReplay, record: Record) -> str:
        looked.append(record)
        return decide(self, record)

    decide = LogReplay._fault
    monkeypatch.setattr(LogReplay, "_fault", fault)
    again = opened(root)
    assert [record.properties for record in looked] == [b"zero\1a\0b"]
    assert again.report is not None
    assert again.report.records == 202
    assert_consistent(again)
    again.close()


def test_without_an_index_none_is_made(tmp_path: Path) -> None:
    root = closed(tmp_path)
    shutil.rmtree(root / "index")
    store = opened(root, message_index_enable=False)
    assert store.report is not None
    assert store.report.records == 0
    assert store.index.files == []
    store.close()


class Killed(PosixFiles):
    """The process ends at one of the renames."""

    def __init__(self, number: int) -> None:
        self.left = number

    def replace(self, source: str, target: str) -> None:
        self.rename(source, target)

    def rename(self, source: str, target: str) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        super().rename(source, target)


@pytest.mark.parametrize("other_boot", [False, True])
@pytest.mark.parametrize("renames", range(6))
def test_a_kill_while_a_queue_is_made_again(tmp_path: Path, renames: int, other_boot: bool) -> None:
    """The bad files are gone by then, and nothing else tells that there is something to do."""
    root = closed(tmp_path)
    queue_file(root, 1).write_bytes(b"garbage")
    paths = sorted((root / "index").iterdir())
    paths[2].write_bytes(b"garbage")
    try:
        opened(root, files=Killed(renames)).close()
    except KeyboardInterrupt:
        assert renames < 6
    store = opened(root, files=OtherBoot() if other_boot else None)
    assert len(assert_consistent(store)) == 200
    store.close()


@pytest.mark.parametrize("other_boot", [False, True])
def test_a_kill_while_a_missing_queue_is_made_again(tmp_path: Path, other_boot: bool) -> None:
    """Its folder is there again, with some of its entries."""
    root = closed(tmp_path / "s")
    whole = queue_file(root, 1).read_bytes()
    shutil.rmtree(queue_file(root, 1).parent)
    store = opened(root)
    killed = copied(root, "killed")
    store.close()
    queue_file(killed, 1).parent.mkdir()
    queue_file(killed, 1).write_bytes(whole[:200].ljust(len(whole), b"\0"))
    again = opened(killed, files=OtherBoot() if other_boot else None)
    assert len(assert_consistent(again)) == 200
    again.close()


def test_a_kill_after_a_queue_was_made_again(tmp_path: Path) -> None:
    root = closed(tmp_path / "s")
    queue_file(root, 1).write_bytes(b"garbage")
    store = opened(root)
    noted = read_positions(PosixFiles(), str(root))
    assert noted is not None
    assert (noted.rebuild, noted.clean) == (0, False)
    killed = opened(copied(root, "killed"))
    assert len(assert_consistent(killed)) == 200
    killed.close()
    run_round(store)
    noted = read_positions(PosixFiles(), str(root))
    assert noted is not None
    assert noted.rebuild == -1
    killed = opened(copied(root, "killed"))
    assert killed.report is not None
    assert killed.report.start == store.written_offset
    assert len(assert_consistent(killed)) == 200
    killed.close()
    store.close()


def test_a_wanted_rebuild(tmp_path: Path) -> None:
    root = closed(tmp_path)
    settings = config(root)
    rebuild = Rebuild(frozenset({("t", 0), ("t", 2)}), index=True)
    store = open_store(settings, VirtualClock(), PosixFiles(), rebuild)
    assert remade(store) == [("t", 0), ("t", 2)]
    assert len(assert_consistent(store)) == 200
    assert {name.split("-")[0] for name in names_aside(root)} == {"consumequeue", "index"}
    store.close()


def test_a_topic_made_anew_keeps_to_its_own_messages_when_all_is_dispatched_again(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    for number in range(9):
        put(store, "u", 0, b"former %d" % number)
    fill(store, 30)
    store.deletions.delete("u")
    for number in range(4):
        put(store, "u", 0, b"new %d" % number)
    store.commit()
    store.close()
    shutil.rmtree(tmp_path / "consumequeue" / "t" / "1")
    again = opened(tmp_path)
    assert again.report is not None
    assert again.report.records == 43
    assert bodies(again, "u", 0) == [b"new %d" % number for number in range(4)]
    assert again.queue("u", 0).next_offset == 4
    assert len(bodies(again, "t", 1)) == 10
    again.close()
    shutil.rmtree(tmp_path / "consumequeue")
    whole = opened(tmp_path)
    assert bodies(whole, "u", 0) == [b"new %d" % number for number in range(4)]
    whole.close()


def test_the_whole_log_may_be_read(tmp_path: Path) -> None:
    root = closed(tmp_path)
    spoil(root / "commitlog" / f"{0:020d}", 4, b"\0")
    opened(root).close()
    with pytest.raises(StoreCorrupt) as caught:
        open_store(config(root), VirtualClock(), PosixFiles(), Rebuild(log_from=0))
    assert caught.value.offset == 0


def test_progress_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line a second, with the part that is done of what was noted to be there."""

    class Slow(VirtualClock):
        def monotonic_ms(self) -> int:
            self.advance(1_100)
            return super().monotonic_ms()

    root = closed(tmp_path)
    shutil.rmtree(root / "consumequeue")
    with caplog.at_level(logging.INFO):
        store = opened(root, Slow())
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("store_recovery ")]
    assert len(lines) >= 3
    percents = [int(line.split("percent=")[1].split()[0]) for line in lines]
    assert percents == sorted(percents)
    assert 0 < percents[0] < percents[-1] <= 100
    assert f"end={store.written_offset}" in lines[0]
    store.close()


class Counting(PosixFiles):
    """How much of the log is read."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        self.read_bytes += len(buffer)
        return super().read_into(handle, buffer, offset)


@pytest.mark.parametrize("other_boot", [False, True])
def test_recovery_reads_what_was_not_synced(tmp_path: Path, other_boot: bool) -> None:
    """However long the log is: 2 MB here, of which 20 messages are new."""
    store = opened(tmp_path / "s", mapped_file_size_commit_log=1 << 18)
    for number in range(0, 8_000, 400):
        fill(store, 400, first=number, turn=100)
    run_round(store, thorough=True)
    synced = store.written_offset
    assert synced > 1 << 20
    fill(store, 20, first=8_000)
    root = copied(tmp_path / "s", "killed")
    files = Counting()
    if other_boot:
        files.boot_id = lambda: "another"  # type: ignore[method-assign]
    again = opened(root, files=files, mapped_file_size_commit_log=1 << 18)
    assert again.report is not None
    assert (again.report.start, again.report.records) == (synced, 20)
    # The rest of the last file, what is written again, and a look at what lies behind.
    assert files.read_bytes < 3 << 18
    again.close()
    store.close()


@pytest.mark.parametrize("ahead_ms", [1 << 55, 90_000_000])
def test_a_store_time_that_no_clock_gave_is_not_kept(tmp_path: Path, ahead_ms: int) -> None:
    store = opened(tmp_path / "s")
    fill(store, 20)
    last = log_of(store)[-1]
    file = store.log.segments.files[0]
    file.write(last.physical_offset + 56, (last.store_ms + ahead_ms).to_bytes(8, "big"))
    root = copied(tmp_path / "s", "killed")
    again = opened(root)
    assert again.state.last_ms == last.store_ms
    again.close()
    store.close()


def test_store_times_ahead_of_a_clock_that_went_back_are_kept(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", VirtualClock(1_800_000_000_000))
    fill(store, 20)
    root = copied(tmp_path / "s", "killed")
    again = opened(root, VirtualClock(1_700_000_000_000))
    assert again.state.last_ms == 1_800_000_000_000
    again.close()
    store.close()


def test_after_another_broker_s_clean_stop_the_last_time_is_the_last_record_s(
    tmp_path: Path,
) -> None:
    root = closed(tmp_path)
    write_checkpoint(PosixFiles(), str(root), Checkpoint(1 << 60, 0, 0), durable=False)
    store = opened(root)
    assert store.report is not None
    assert store.report.reason == "clean stop by another broker"
    assert store.state.last_ms == log_of(store)[-1].store_ms
    store.close()
