"""The thread that syncs files: with both cores the same requests end alike."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path
from types import SimpleNamespace

import pytest


def ended(thread: SimpleNamespace, count: int) -> tuple[int, int, int]:
    """Return what `take` says once `count` syncs have ended."""
    while True:
        readable, _, _ = select.select([thread.event], [], [], 10)
        assert readable, "no sync ended"
        found: tuple[int, int, int] = thread.take()
        if found[1] >= count:
            return found


def test_a_sync_reports_its_target(core: SimpleNamespace, tmp_path: Path) -> None:
    thread = core.SyncThread()
    assert thread.take() == (0, 0, 0)
    with (tmp_path / "file").open("wb", buffering=0) as file:
        for number in (1, 2):
            file.write(b"data")
            thread.begin([file.fileno()], number * 100)
            target, count, problem = ended(thread, number)
            assert (target, count, problem) == (number * 100, number, 0)
    assert not select.select([thread.event], [], [], 0)[0]
    thread.close()


def test_files_may_be_closed_once_they_are_asked_for(core: SimpleNamespace, tmp_path: Path) -> None:
    thread = core.SyncThread()
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


def test_after_a_failure_nothing_is_synced(core: SimpleNamespace, tmp_path: Path) -> None:
    thread = core.SyncThread()
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


def test_a_closed_file_and_too_many_files_are_refused(
    core: SimpleNamespace, tmp_path: Path
) -> None:
    thread = core.SyncThread()
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


def test_a_thread_that_never_ran_can_be_closed(core: SimpleNamespace) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        thread = core.SyncThread()
        thread.wait()
        thread.close()
        thread.close()
        del thread
    assert len(os.listdir("/proc/self/fd")) == before
