"""Mounts: the file system of a store directory, and the risks of unsuitable file systems.

On Linux they are read from ``/proc/self/mountinfo``, one line for each mount:

    36 35 98:0 /root /mount/point rw,noatime optional fields - type source options
"""

from __future__ import annotations

import logging
import os.path
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.files import Files

logger = logging.getLogger(__name__)

_NETWORK = (
    "a network file system may acknowledge data that no device has, and may lock late or not at all"
)
_OVERLAY = (
    "a container's layer copies a whole file on its first change and is deleted with the container"
)
_RISKS = {
    **dict.fromkeys(
        (
            *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.cephfs"),
            *("fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs"),
            *("nfs", "nfs4", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"),
        ),
        _NETWORK,
    ),
    **dict.fromkeys(("aufs", "overlay", "overlayfs", "unionfs"), _OVERLAY),
}
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system."""

    point: str
    kind: str
    source: str

    @property
    def risk(self) -> str:
        """The reason why a store is not safe on this file system; empty if it is safe."""
        return _RISKS.get(self.kind, "")


def parse_mounts(text: str) -> list[Mount]:
    """Parse all mounts, in the order in which they were made; skip malformed lines."""
    found: list[Mount] = []
    for line in text.splitlines():
        place, separator, what = line.partition(" - ")
        fields, own = place.split(" "), what.split(" ")
        if separator and len(fields) >= 5 and len(own) >= 2:
            found.append(Mount(_plain(fields[4]), own[0], _plain(own[1])))
    return found


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def mount_of(mounts: list[Mount], path: str) -> Mount | None:
    """Return the mount that holds a path, which must have no symbolic links; None if there is none.

    It is the deepest mount point above the path; of several mounts at one point, the last.
    """
    best: Mount | None = None
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def find_mount(files: Files, path: str) -> Mount | None:
    """Return the mount of a path; None if the system does not report mounts."""
    return mount_of(parse_mounts(files.mounts()), os.path.realpath(path))


def warn_of_mounts(files: Files, *paths: str) -> None:
    """Log a warning for each store directory on an unsuitable file system."""
    for path in paths:
        mount = find_mount(files, path)
        if mount is not None and mount.risk:
            logger.warning(
                "store_on_risky_file_system path=%s type=%s mounted_at=%s risk=%r",
                path, mount.kind, mount.point, mount.risk,
            )  # fmt: skip
