"""A thread that syncs files, one sync at a time, without the GIL.

Only the compiled core has it. With plain Python, an executor of the file layer does the same; that
code (store/log/flush.py) is the definition.
"""

from __future__ import annotations

import errno


class SyncThread:
    """Thread that syncs files. It starts with the first request.

    Raises OSError if it is not available: with plain Python, and on systems without eventfd.
    """

    def __init__(self) -> None:
        raise OSError(errno.ENOSYS, "plain Python has no thread without the interpreter's lock")

    @property
    def event(self) -> int:
        """File descriptor that is readable after a sync has ended; -1 after :meth:`close`."""
        raise NotImplementedError

    def begin(self, handles: list[int], target: int) -> None:
        """Request a sync of files, which begins after the running one.

        ``handles`` are file descriptors, which may be closed at once. ``target`` is the position in
        the log that is durable after the sync. The request replaces one that has not begun, so its
        files must include those of the former. Does nothing after a failed sync. Raises OSError if
        the request cannot be taken, for example with more than 64 files.
        """
        raise NotImplementedError

    def take(self) -> tuple[int, int, int]:
        """Return the target of the last successful sync, the number of syncs so far, and the errno
        of a failed sync (0 without one). Makes ``event`` unreadable."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until nothing is left to sync."""
        raise NotImplementedError

    def close(self) -> None:
        """Wait for the running sync, end the thread, and close ``event``.

        A request that has not begun is dropped. :meth:`take` still returns the results so far.
        """
        raise NotImplementedError
