"""A table of Parquet files in versions. Each version is complete; the newest is the current one.

    ROOT/manifests/00000012.json      for each bucket, the version whose files version 12 uses
    ROOT/versions/00000012/bucket=3/  the Parquet files of a bucket that version 12 rewrote

A version exists once its manifest does. A writer writes the data files first, then the manifest
under a temporary name, and then renames it. A kill before the rename leaves files to which no
manifest refers; the next attempt overwrites them. A power cut may leave a torn manifest, so a
reader takes the newest one that it can read. The two newest versions are kept, so a reader must
finish before the second commit after its version.

The directory must be on a file system that the driver and all executors share.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Final

import msgspec

log = logging.getLogger(__name__)

#: Number of versions whose files are kept.
KEPT: Final = 2


class Manifest(msgspec.Struct, frozen=True):
    """A version of a table. ``buckets`` maps each bucket to the version that last rewrote it.

    ``query`` and ``batch`` are the streaming query and the micro-batch that made this version.
    ``counts`` are running totals by name.
    """

    version: int
    query: str
    batch: int
    buckets: dict[int, int]
    counts: dict[str, int]


#: The manifest before the first commit.
EMPTY: Final = Manifest(0, "", -1, {}, {})


class SnapshotTable:
    """The table in the directory ``root``. One process writes, any number of processes read."""

    def __init__(self, root: Path) -> None:
        self._manifests = root / "manifests"
        self._versions = root / "versions"

    def current(self) -> Manifest:
        """Return the newest readable version, or EMPTY before the first."""
        for path in sorted(self._manifests.glob("*.json"), reverse=True):
            try:
                return msgspec.json.decode(path.read_bytes(), type=Manifest)
            except msgspec.MsgspecError as error:
                log.warning("manifest_unreadable path=%s error=%r", path, str(error))
        return EMPTY

    def folder(self, version: int) -> Path:
        """Return the folder of a version. It has a folder ``bucket=N`` per bucket rewritten."""
        return self._versions / f"{version:08}"

    def paths(self, manifest: Manifest, buckets: list[int] | None = None) -> list[str]:
        """Return the folders of these buckets of a version (None: of all its buckets)."""
        wanted = sorted(manifest.buckets) if buckets is None else buckets
        return [
            str(self.folder(manifest.buckets[bucket]) / f"bucket={bucket}")
            for bucket in wanted
            if bucket in manifest.buckets
        ]

    def commit(self, manifest: Manifest) -> None:
        """Make a version the current one, then remove the files that no kept version uses."""
        self._manifests.mkdir(parents=True, exist_ok=True)
        path = self._manifests / f"{manifest.version:08}.json"
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(msgspec.json.encode(manifest))
        unfinished.replace(path)
        self._clean()

    def _clean(self) -> None:
        paths = sorted(self._manifests.glob("*.json"), reverse=True)
        referred: set[tuple[int, int]] = set()
        for path in paths[:KEPT]:
            kept = msgspec.json.decode(path.read_bytes(), type=Manifest)
            referred |= {(version, bucket) for bucket, version in kept.buckets.items()}
        for path in paths[KEPT:]:
            path.unlink()
        for folder in self._versions.glob("*/bucket=*"):
            version, bucket = int(folder.parent.name), int(folder.name.partition("=")[2])
            if (version, bucket) not in referred:
                shutil.rmtree(folder)
        for version_folder in self._versions.glob("*"):
            if not any(version_folder.glob("bucket=*")):
                shutil.rmtree(version_folder)
