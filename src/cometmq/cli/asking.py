"""Input from the user: reads of standard input that an interrupt ends, and secrets.

A read of standard input blocks the event loop. asyncio turns the first interrupt into a
cancellation of its task, which a blocked read does not notice. With :func:`interruptible`, the
interrupt ends the command at once.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cometmq.core.errors import SettingsError


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt during the block, also within an event loop."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def secret_from(path: str) -> str:
    """Return the secret in a file, or on standard input for "-"; "" without a path.

    A secret on the command line would be in the list of processes. A terminal does not show the
    typed text. Raises SettingsError for an empty secret, OSError for a file that cannot be read.
    """
    if not path:
        return ""
    with interruptible():
        text = _read(path)
    if not text.strip():
        raise SettingsError("--secret-file", f"{path} is empty")
    return text.strip()


def _read(path: str) -> str:
    if path != "-":
        return Path(path).read_text(encoding="utf-8")
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass("secret key: ")
    return sys.stdin.readline()
