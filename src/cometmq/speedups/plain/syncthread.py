"""A thread that syncs files, one sync at a time.

This is the definition; compiled/syncthread.pyx does the same without the interpreter's lock, so
that a sync begins and ends while Python runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
from threading import Condition, Thread
from typing import Final

HANDLES_MAX: Final = 64


class SyncThread:
    """Syncs files in a thread, which starts with the first request.

    Raises OSError on systems without eventfd.
    """

    def __init__(self) -> None:
        if not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        #: Descriptor that is readable once a sync has ended.
        self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._changed = Condition()
        self._thread: Thread | None = None
        self._next: tuple[list[int], int] | None = None
        self._is_busy = self._stops = False
        self._problem = 0
        self._target = self._count = 0

    def __del__(self) -> None:
        if hasattr(self, "event"):
            self.close()
            os.close(self.event)

    def begin(self, handles: list[int], target: int) -> None:
        """Sync files, after the sync that runs; ``target`` names what is durable then.

        A request that has not begun is replaced, so the files must include its files. They may be
        closed at once. Does nothing after a failed sync. Raises OSError if the request cannot be
        taken, as one of more than 64 files.
        """
        if len(handles) > HANDLES_MAX:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        copies: list[int] = []
        try:
            copies.extend(map(os.dup, handles))
        except OSError:
            _close(copies)
            raise
        with self._changed:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="cometmq-sync", daemon=True)
                self._thread.start()
            if self._stops:
                _close(copies)
                return
            if self._next is not None:
                _close(self._next[0])
            self._next = copies, target
            self._changed.notify_all()

    def take(self) -> tuple[int, int, int]:
        """Return the target of the last successful sync, the number of syncs so far, and the error
        number of a failed one, else 0. Makes ``event`` unreadable."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.event)
        with self._changed:
            return self._target, self._count, self._problem

    def wait(self) -> None:
        """Wait until nothing is left to sync."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stops or (self._next is None and not self._is_busy)
            )

    def close(self) -> None:
        """Wait for the sync that runs, and end the thread. A request that has not begun is dropped;
        :meth:`take` still returns the outcome."""
        with self._changed:
            self._stops = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._next is not None:
            _close(self._next[0])
            self._next = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stops or self._next is not None)
                if self._stops or self._next is None:
                    return
                (handles, target), self._next, self._is_busy = self._next, None, True
            problem = 0
            try:
                for handle in handles:
                    os.fdatasync(handle)
            except OSError as error:
                problem = error.errno or errno.EIO
            _close(handles)
            with self._changed:
                self._is_busy = False
                self._count += 1
                if problem:
                    # The system reports a failure once: a later success would prove nothing.
                    self._problem, self._stops = problem, True
                else:
                    self._target = target
                os.eventfd_write(self.event, 1)
                self._changed.notify_all()


def _close(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)
