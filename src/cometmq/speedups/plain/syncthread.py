"""A thread that syncs files, one sync at a time, without the interpreter's lock.

Only the compiled core has one. With plain Python an executor of the file layer does the same
(store/log/flush.py), which is the definition.
"""

from __future__ import annotations

import errno


class SyncThread:
    """Syncs files in a thread, which starts with the first request.

    Raises OSError where there is none: with plain Python, and on systems without eventfd.
    """

    def __init__(self) -> None:
        raise OSError(errno.ENOSYS, "plain Python has no thread without the interpreter's lock")

    @property
    def event(self) -> int:
        """Descriptor that is readable once a sync has ended; -1 after :meth:`close`."""
        raise NotImplementedError

    def begin(self, handles: list[int], target: int) -> None:
        """Sync files, after the sync that runs; ``target`` names what is durable then.

        A request that has not begun is replaced, so the files must include its files. They may be
        closed at once. Does nothing after a failed sync. Raises OSError if the request cannot be
        taken, as one of more than 64 files.
        """
        raise NotImplementedError

    def take(self) -> tuple[int, int, int]:
        """Return the target of the last successful sync, the number of syncs so far, and the error
        number of a failed one, else 0. Makes ``event`` unreadable."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until nothing is left to sync."""
        raise NotImplementedError

    def close(self) -> None:
        """Wait for the sync that runs, end the thread, and close ``event``.

        A request that has not begun is dropped; :meth:`take` still returns the outcome.
        """
        raise NotImplementedError
