"""Memory limit of this process: the machine's memory, or less if a control group limits it.

A container sees the memory of the whole machine, and is killed if it uses more than its own share.
A limit computed from the machine's memory would not protect it.
"""

from __future__ import annotations

import os
from typing import Final

_MOUNT: Final = "sys/fs/cgroup"
#: Version 1 has no value for "no limit", only a number larger than any machine's memory.
_NO_LIMIT_BYTES: Final = 1 << 60


def limit_bytes(root: str = "/") -> int:
    """Return the smallest of physical memory and the limits of this process's control groups.

    The limits of parent groups count too, in cgroup versions 1 and 2. An unreadable file sets no
    limit. ``root`` is the folder that contains ``proc`` and ``sys``; tests pass another one.
    """
    smallest = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            folder, name = _MOUNT, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = f"{_MOUNT}/memory", "memory.limit_in_bytes"
        else:
            continue
        for limit in _limits(os.path.join(root, folder), path, name):
            smallest = min(smallest, limit)
    return smallest


def _limits(mount: str, path: str, name: str) -> list[int]:
    """Return the limits of a group and of its parents.

    In a container ``path`` may be the path on the host, which does not exist inside. Then the mount
    itself is the container's group.
    """
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    found: list[int] = []
    for count in range(len(parts), -1, -1):
        text = _read(os.path.join(mount, *parts[:count], name)).strip()
        if text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) < _NO_LIMIT_BYTES:
            found.append(int(text))
    return found


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65_536)
    except OSError:
        return ""
