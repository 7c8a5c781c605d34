"""Versions of a table of Parquet files, each complete, of which the newest counts.

    ROOT/manifests/00000012.json      which version of each bucket belongs to version 12
    ROOT/versions/00000012/bucket=3/  the Parquet files of the buckets that version 12 rewrote

A version is its manifest: files are written first, then the manifest under another name, which is
renamed. A kill before that leaves files that nobody names, and the next attempt writes over them. A
reader takes the newest manifest that it can read; one that is torn (power loss) is passed over.
The two newest versions are kept, so a reader has until the next but one to finish.

The directory lies on a file system that the driver and all executors share.
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
    """A version of a table: ``buckets`` says which version wrote each bucket.

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
    """The table under ``root``; one process writes, any number read."""

    def __init__(self, root: Path) -> None:
        self._manifests = root / "manifests"
        self._versions = root / "versions"

    def current(self) -> Manifest:
        """The newest version that can be read; EMPTY before the first."""
        for path in sorted(self._manifests.glob("*.json"), reverse=True):
            try:
                return msgspec.json.decode(path.read_bytes(), type=Manifest)
            except msgspec.MsgspecError as error:
                log.warning("manifest_unreadable path=%s error=%r", path, str(error))
        return EMPTY

    def folder(self, version: int) -> Path:
        """Where a version's buckets are written, one folder ``bucket=N`` each."""
        return self._versions / f"{version:08}"

    def paths(self, manifest: Manifest, buckets: list[int] | None = None) -> list[str]:
        """The folders that hold some buckets of a version (None for all)."""
        wanted = sorted(manifest.buckets) if buckets is None else buckets
        return [
            str(self.folder(manifest.buckets[bucket]) / f"bucket={bucket}")
            for bucket in wanted
            if bucket in manifest.buckets
        ]

    def commit(self, manifest: Manifest) -> None:
        """Make a version the current one, then remove what no kept version names."""
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
