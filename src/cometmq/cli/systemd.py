"""Tells systemd when a service of ``Type=notify`` has started, and when it begins to stop.

systemd passes the address of a datagram socket in ``NOTIFY_SOCKET`` (sd_notify(3)). Without it, or
if nobody listens there, nothing is sent.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def notify(state: str) -> None:
    """Send one notice to systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # An @ stands for the zero byte with which abstract addresses begin.
    target = "\0" + address[1:] if address[0] == "@" else address
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_UNIX, kind) as sender, contextlib.suppress(OSError):
        sender.sendto(state.encode(), target)
