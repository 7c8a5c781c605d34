"""numpy, loaded once there is work for it: the import takes as long as the rest of a start.

Whatever numpy does here plain Python does too, only slower for many rows at once. So a store begins
without it; the first batch that would gain has a thread load it, and all that comes before the
thread is done goes the plain way. A few rows a second never load it.

An import is Python, and a Python thread beside the loop takes the interpreter for a whole switch
interval each time. While it runs the interval is short, which keeps the loop's longest wait at 7 ms
(docs/decisions/0005-numpy-late.md); two such threads there are never.
"""

from __future__ import annotations

import sys
import threading

_SWITCH_INTERVAL_S = 0.001


class Vectors:
    """Whether the modules that need numpy may be imported."""

    __slots__ = ("_loaded", "_thread")

    def __init__(self) -> None:
        self._loaded = False
        self._thread: threading.Thread | None = None

    def ready(self) -> bool:
        """Whether numpy is there; when it is not, it will be soon."""
        if not self._loaded and self._thread is None:
            self._thread = threading.Thread(target=self._load_aside, name="cometmq-numpy")
            self._thread.start()
        return self._loaded

    def load(self) -> None:
        """Have numpy when this returns, for work that nobody else waits beside."""
        import cometmq.store.columns
        import cometmq.store.uniform  # noqa: F401

        self._loaded = True

    def _load_aside(self) -> None:
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            self.load()
        finally:
            sys.setswitchinterval(before_s)


#: There is one interpreter, so there is one of these.
VECTORS = Vectors()
