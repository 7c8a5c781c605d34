"""Files of a store that somebody deletes, while it runs or between two runs."""

from __future__ import annotations

import asyncio
import logging
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.core.errors import StoreCorrupt, StoreFull, StoreOffline
from cometmq.store.config import FlushDiskType
from tests.store.full import FullFiles
from tests.store.stores import (
    assert_consistent,
    bodies,
    copied,
    fill,
    opened,
    put,
    run_round,
)

#: What a queue file of these stores holds.
PER_FILE = 40


# --- the log, while it runs ---------------------------------------------------------------------


def _delete(path: Path) -> None:
    path.unlink()


def _move(path: Path) -> None:
    path.rename(path.parent.parent / "moved")


def _replace(path: Path) -> None:
    raw = path.read_bytes()
    path.unlink()
    path.write_bytes(raw)


def _delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("lose", [_delete, _move, _replace, _delete_folder])
def test_nothing_is_acknowledged_into_a_log_file_that_is_gone(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path / "s", flush_disk_type=FlushDiskType.SYNC_FLUSH)
    failed: list[object] = []
    done: list[object] = []
    store.on_durable.append(done.extend)
    store.on_sync_failed.append(lambda tokens, _: failed.extend(tokens))
    fill(store, 10)
    store.flusher.sync_now()
    lose(Path(store.log.segments.files[-1].path))

    phys, _ = put(store)
    store.commit()
    store.sync_waiters.park(phys + 1, 1 << 60, "sent late")
    store.flusher.sync_now()
    assert (done, failed) == ([], ["sent late"])
    with pytest.raises(StoreOffline, match="deleted or replaced"):
        put(store)
    store.sync()
    assert sum("deleted or replaced" in each.getMessage() for each in caplog.records) == 1
    store.close()


def test_the_store_itself_may_take_a_log_file_away(tmp_path: Path) -> None:
    """A replica cuts its log while a thread syncs it."""
    store = opened(tmp_path / "s")
    fill(store, 10)
    file = store.log.segments.files[-1]
    file.pin()
    file.close()
    Path(file.path).unlink()
    file.sync()
    file.unpin()


# --- queues, between two runs -------------------------------------------------------------------


def queue_path(root: Path, queue_id: int, number: int = 0) -> Path:
    name = f"{number * PER_FILE * 20:020d}"
    return root / "consumequeue" / "t" / str(queue_id) / name


@pytest.mark.parametrize("numbers", [[0], [0, 1], [1], [2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_queue_files_are_made_again(tmp_path: Path, numbers: list[int], clean: bool) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 300)
    run_round(store, thorough=True)
    sent = bodies(store, "t", 0)
    assert len(sent) == 100
    if clean:
        store.close()
    else:
        root = copied(root, "killed")
    for number in numbers:
        queue_path(root, 0, number).unlink()
    store = opened(root)
    assert bodies(store, "t", 0) == sent
    assert store.queue("t", 0).min_offset == 0
    assert_consistent(store)
    store.close()
    store = opened(root)
    assert store.report is not None
    assert not store.report.remade
    assert bodies(store, "t", 0) == sent
    store.close()


def test_a_lost_first_file_is_found_after_a_java_broker_ran(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 300)
    sent = bodies(store, "t", 0)
    store.close()
    (root / "cometmq-positions.json").unlink()
    queue_path(root, 0).unlink()
    store = opened(root)
    assert bodies(store, "t", 0) == sent
    store.close()


def shorten(root: Path, base: int) -> None:
    """As retention does: the log begins with the file at ``base``, nothing else is touched."""
    for path in (root / "commitlog").iterdir():
        if int(path.name) < base:
            path.unlink()


def test_what_retention_dropped_is_not_missed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 600)
    run_round(store, thorough=True)
    for _ in range(3):
        store.log.segments.drop_first()
    for queue in list(store.queues.values()):
        queue.correct_min(store.log.segments.start)
    start = store.log.segments.start
    begins = [queue.min_offset for queue in store.queues.values()]
    assert min(begins) > PER_FILE
    store.close()
    shorten(root, start)
    store = opened(root)
    assert store.report is not None
    assert not store.report.remade
    assert [store.queue("t", number).min_offset for number in range(3)] == begins
    store.close()


def test_a_queue_that_begins_with_a_file_is_searched_for_once(tmp_path: Path) -> None:
    """The log begins where a queue file begins: nothing tells that from a lost one."""
    root = tmp_path / "s"
    store = opened(root)
    for number in range(100):
        put(store, body=b"%03d" % number + bytes(2_000))
        store.commit()
        if number == PER_FILE - 1:
            file = store.log.segments.files[-1]
            # The next record begins a file.
            while store.log.position + 2_300 < file.end:
                put(store, "other", body=bytes(2_000))
                store.commit()
    store.dispatcher.write(0)
    place = store.queue("t", 0).read(PER_FILE, 1)
    start = int.from_bytes(place[:8], "big")
    assert store.log.segments.find(start).base == start  # type: ignore[union-attr]
    store.close()
    shorten(root, start)
    queue_path(root, 0).unlink()
    (root / "consumequeue/other/0" / f"{0:020d}").unlink()
    remade = []
    for _ in range(3):
        store = opened(root)
        assert store.report is not None
        remade.append(store.report.remade)
        assert [body[:3] for body in bodies(store, "t", 0, PER_FILE)] == [
            b"%03d" % number for number in range(PER_FILE, 100)
        ]
        assert store.queue("t", 0).min_offset == PER_FILE
        put(store, "again")
        store.commit()
        store.close()
    # Of the other one the log has nothing any more.
    assert remade == [(("other", 0), ("t", 0)), (), ()]


def test_a_topic_that_was_made_anew_is_not_missed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 300)
    deletion = store.deletions.delete("t")
    store.pool.removals.settle(deletion.pending)
    fill(store, 30)
    run_round(store, thorough=True)
    for path in (root, copied(root, "killed")):
        if path == root:
            store.close()
        again = opened(path)
        assert again.report is not None
        assert not again.report.remade
        assert len(bodies(again, "t", 0)) == 10
        again.close()


# --- who may read -------------------------------------------------------------------------------


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "above" / "s"
    store = opened(root)
    fill(store, 200)
    run_round(store, thorough=True)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*") if path.is_file()}
    folders = [root.parent, root, *(path for path in root.rglob("*") if path.is_dir())]
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    store.close()


def test_what_exists_keeps_its_mode(tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir(mode=0o755)
    opened(root).close()
    file = root / "commitlog" / f"{0:020d}"
    file.chmod(0o640)
    opened(root).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert stat.S_IMODE(root.stat().st_mode) == 0o755


# --- refusals in the log ------------------------------------------------------------------------


def test_the_line_that_writes_resume_says_after_what(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = opened(tmp_path / "s")
    store.state.disk_problem = "the disk is full"
    store.state.update()
    store.state.disk_problem = ""
    store.state.update()
    lines = [line for line in caplog.messages if line.startswith("store_writes_")]
    assert lines == [
        "store_writes_refused reason='the disk is full'",
        "store_writes_resumed after='the disk is full'",
    ]
    store.close()


# --- a full disk --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["clean", "killed", "killed behind its notes", "power cut"])
def test_a_store_opens_without_a_byte_of_room(tmp_path: Path, end: str) -> None:
    class AfterPowerCut(FullFiles):
        def boot_id(self) -> str:
            return "another"

    root = tmp_path / "s"
    store = opened(root)
    fill(store, 300)
    run_round(store, thorough=True)
    fill(store, 20, first=300)
    if end == "killed behind its notes":
        store.dispatcher.write(0)
    sent = [bodies(store, "t", number) for number in range(3)]
    if end == "clean":
        store.close()
    else:
        root = copied(root, "ended")
    files = AfterPowerCut() if end == "power cut" else FullFiles()
    store = opened(root, files=files, clean_file_forcibly_enable=False)
    asyncio.run(store.maintenance.expiry.check())
    assert [bodies(store, "t", number) for number in range(3)] == sent
    with pytest.raises(StoreFull, match="free space there"):
        put(store)
    files.full = False
    asyncio.run(store.maintenance.expiry.check())
    run_round(store)
    put(store)
    store.commit()
    assert (root / "abort").exists()
    store.close()
    store = opened(root)
    assert_consistent(store)
    store.close()


def test_a_store_that_could_not_say_that_it_runs_takes_nothing(tmp_path: Path) -> None:
    """Whatever the ratios allow: the next start would believe the last stop."""
    root = tmp_path / "s"
    opened(root).close()
    files = FullFiles()
    store = opened(root, files=files)
    store.state.update()
    with pytest.raises(StoreFull, match="no room in"):
        put(store)
    files.full = False
    run_round(store)
    assert (root / "abort").exists()
    put(store)
    store.commit()
    store.close()


def test_a_start_that_has_to_mend_says_that_it_needs_room(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 300)
    store.close()
    queue_path(root, 0).unlink()
    with pytest.raises(StoreFull, match="free some MiB"):
        opened(root, files=FullFiles())
    store = opened(root)
    assert len(bodies(store, "t", 0)) == 100
    store.close()


async def test_queue_files_go_after_the_log_files(tmp_path: Path) -> None:
    """A broker that ends in between must not take them for lost."""
    root = tmp_path / "s"
    files = FullFiles()
    files.full = False
    store = opened(root, files=files)
    fill(store, 600)
    store.dispatcher.write(0)
    store.flusher.sync_now()
    store.maintenance.synced = store.written_offset
    files.full = True
    await store.maintenance.expiry.check()
    assert store.queue("t", 0).min_offset > PER_FILE
    again = opened(copied(root, "killed"))
    assert again.report is not None
    assert not again.report.remade
    again.close()
    await store.maintenance.expiry.make_room()
    again = opened(copied(root, "later"))
    assert again.report is not None
    assert not again.report.remade
    assert not (root / "consumequeue/t/0" / f"{0:020d}").exists()
    again.close()


# --- queues, while it runs ----------------------------------------------------------------------


def test_a_queue_file_that_is_gone_is_told_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 300)
    store.close()
    store = opened(root)
    fill(store, 3, first=300)
    run_round(store)
    sent = bodies(store, "t", 0)
    assert len(sent) == 101
    shutil.rmtree(root / "consumequeue/t/0")
    # Its handles are no longer open.
    store.pool.close()
    for _ in range(3):
        with pytest.raises(StoreCorrupt, match="cannot read"):
            store.read("t", 0, 0, 32)
    lines = [line for line in caplog.messages if line.startswith("queue_file_unreadable")]
    assert len(lines) == 1

    fill(store, 3, first=303)
    sent.append(bodies(store, "t", 0, 101)[0])
    run_round(store)
    with pytest.raises(StoreFull, match="deleted while the broker was running"):
        put(store)
    store.close()
    store = opened(root)
    assert bodies(store, "t", 0) == sent
    assert_consistent(store)
    store.close()


def test_a_lost_last_file_is_made_again_even_after_a_stop(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 300)
    store.close()
    store = opened(root)
    sent = bodies(store, "t", 0)
    store.pool.close()
    queue_path(root, 0, 2).unlink()
    with pytest.raises(StoreCorrupt, match="cannot read"):
        store.read("t", 0, 90, 32)
    store.close()
    store = opened(root)
    assert bodies(store, "t", 0) == sent
    store.close()


def test_a_queue_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 300)
    store.close()
    store = opened(root)
    store.pool.close()
    path = queue_path(root, 0)
    path.rename(root / "kept")
    path.mkdir()
    with pytest.raises(StoreCorrupt, match="directory"):
        store.read("t", 0, 0, 32)
    path.rmdir()
    (root / "kept").rename(path)
    assert store.read("t", 0, 0, 32).count == 32
    store.close()
