"""The thread that syncs files, which only the compiled core has."""

from __future__ import annotations

import errno
import gc
import os
import select
from pathlib import Path

import pytest

from cometmq.speedups import CORE, SyncThread
from cometmq.speedups.plain import syncthread

needs_core = pytest.mark.skipif(CORE == "plain", reason="plain Python has no such thread")


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    """Close the files that earlier tests left to the collector: these tests count open files."""
    gc.collect()


def ended(thread: SyncThread, count: int) -> tuple[int, int, int]:
    """Return what `take` says once `count` syncs have ended."""
    while True:
        readable, _, _ = select.select([thread.event], [], [], 10)
        assert readable, "no sync ended"
        found = thread.take()
        if found[1] >= count:
            return found


@needs_core
def test_a_sync_reports_its_target(tmp_path: Path) -> None:
    thread = SyncThread()
    assert thread.take() == (0, 0, 0)
    with (tmp_path / "file").open("wb", buffering=0) as file:
        for number in (1, 2):
            file.write(b"data")
            thread.begin([file.fileno()], number * 100)
            target, count, problem = ended(thread, number)
            assert (target, count, problem) == (number * 100, number, 0)
    assert not select.select([thread.event], [], [], 0)[0]
    thread.close()


@needs_core
def test_files_may_be_closed_once_they_are_asked_for(tmp_path: Path) -> None:
    thread = SyncThread()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 200):
        handles = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
        os.write(handles[0], b"data")
        thread.begin(handles, number)
        for handle in handles:
            os.close(handle)
    thread.wait()
    target, count, problem = thread.take()
    assert (target, problem) == (199, 0)
    # Requests that had not begun were replaced by later ones.
    assert 1 <= count <= 199
    assert len(os.listdir("/proc/self/fd")) == before
    thread.close()


@needs_core
def test_after_a_failure_nothing_is_synced(tmp_path: Path) -> None:
    thread = SyncThread()
    reader, writer = os.pipe()
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    thread.begin([handle], 1)
    assert ended(thread, 1)[0] == 1
    thread.begin([writer], 2)  # a pipe cannot be synced
    thread.wait()
    assert thread.take()[0::2] == (1, errno.EINVAL)
    thread.begin([handle], 3)
    thread.wait()
    assert thread.take()[0::2] == (1, errno.EINVAL)
    for each in (reader, writer, handle):
        os.close(each)
    thread.close()
    assert thread.take()[0::2] == (1, errno.EINVAL)


@needs_core
def test_a_closed_file_and_too_many_files_are_refused(tmp_path: Path) -> None:
    thread = SyncThread()
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="too long"):
        thread.begin([handle] * 65, 1)
    thread.begin([handle] * 64, 1)
    thread.wait()
    os.close(handle)
    with pytest.raises(OSError, match="Bad file descriptor"):
        thread.begin([handle], 2)
    assert thread.take()[0::2] == (1, 0)
    assert len(os.listdir("/proc/self/fd")) == before - 1
    thread.close()


@needs_core
def test_a_thread_that_never_ran_can_be_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        thread = SyncThread()
        thread.wait()
        thread.close()
        thread.close()
        assert thread.event == -1
        del thread
    assert len(os.listdir("/proc/self/fd")) == before


def test_plain_python_has_none() -> None:
    with pytest.raises(OSError, match="plain Python"):
        syncthread.SyncThread()
