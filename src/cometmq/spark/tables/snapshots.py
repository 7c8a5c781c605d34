"""Versions of a table of Parquet files, each complete; the newest is the current one.

    ROOT/manifests/00000012.json      the version of each bucket that belongs to version 12
    ROOT/versions/00000012/bucket=3/  the Parquet files of the buckets that version 12 rewrote

A version is its manifest. The data files are written first, then the manifest under a temporary
name, which is renamed. A kill before that leaves files that no manifest refers to; the next attempt
overwrites them. A reader takes the newest manifest that it can read and skips a torn one (power
loss). The two newest versions are kept, so a reader must finish before the second commit after its
version.

The directory must be on a file system that the driver and all executors share.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Final

import msgspec

log = logging.getLogger(__name__)

KEPT: Final = 2


class Manifest(msgspec.Struct, frozen=True):
    """A version of a table. ``buckets`` maps each bucket to the version that wrote it.

    ``query`` and ``batch`` are the stream and micro-batch that made it; ``counts`` are running
    totals by name.
    """

    version: int
    query: str
    batch: int
    buckets: dict[int, int]
    counts: dict[str, int]


EMPTY: Final = Manifest(0, "", -1, {}, {})


class SnapshotTable:
    """The table under ``root``. One process writes, any number read."""

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
        """Return the folder where a version's buckets are written, as one folder ``bucket=N``
        each."""
        return self._versions / f"{version:08}"

    def paths(self, manifest: Manifest, buckets: list[int] | None = None) -> list[str]:
        """Return the folders with some buckets of a version (None for all)."""
        wanted = sorted(manifest.buckets) if buckets is None else buckets
        return [
            str(self.folder(manifest.buckets[bucket]) / f"bucket={bucket}")
            for bucket in wanted
            if bucket in manifest.buckets
        ]

    def commit(self, manifest: Manifest) -> None:
        """Make a version the current one, then remove what no kept version refers to."""
        self._manifests.mkdir(parents=True, exist_ok=True)
        path = self._manifests / f"{manifest.version:08}.json"
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(msgspec.json.encode(manifest))
        unfinished.replace(path)
        self._clean()

    def _clean(self) -> None:
        paths = sorted(self._manifests.glob("*.json"), reverse=True)
        named: set[tuple[int, int]] = set()
        for path in paths[:KEPT]:
            kept = msgspec.json.decode(path.read_bytes(), type=Manifest)
            named |= {(version, bucket) for bucket, version in kept.buckets.items()}
        for path in paths[KEPT:]:
            path.unlink()
        for folder in self._versions.glob("*/bucket=*"):
            version, bucket = int(folder.parent.name), int(folder.name.partition("=")[2])
            if (version, bucket) not in named:
                shutil.rmtree(folder)
        for version_folder in self._versions.glob("*"):
            if not any(version_folder.glob("bucket=*")):
                shutil.rmtree(version_folder)
