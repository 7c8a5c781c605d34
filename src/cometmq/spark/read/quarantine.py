"""Quarantine files: the messages that a read set aside, one file per task that had any.

    {"topic": "orders", "broker": "broker-a", "queue": 3, "offset": 120,
     "reason": "body CRC differs from the stored 0x1a2b3c4d", "record": "AAAB..."}

Each line is one message; ``record`` is the stored record in base64, as the broker returned it. All
executors must share the folder. A file appears complete, once its task has read everything, under a
name derived from its ranges. A task that Spark runs again therefore replaces its file, and counts
once.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.spark.read.planning import Range


class Quarantine:
    """The file of one task, created with its first message."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}")
        self._file: IO[str] | None = None

    def add(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        queue_offset: int,
        reason: str,
        raw: bytes,
    ) -> None:
        """Append a message. Raises OSError."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._draft.open("w", encoding="utf-8")
        line = {
            "topic": topic,
            "broker": broker_name,
            "queue": queue_id,
            "offset": queue_offset,
            "reason": reason,
            "record": b64encode(raw).decode("ascii"),
        }
        self._file.write(json.dumps(line) + "\n")

    def finish(self) -> None:
        """Publish the file, if it has any message."""
        if self._file is not None:
            self._file.close()
            self._draft.replace(self._path)

    def drop(self) -> None:
        """Delete the draft: the task did not finish."""
        if self._file is not None:
            self._file.close()
            self._draft.unlink(missing_ok=True)


@contextmanager
def quarantine(folder: str | None, name: str) -> Iterator[Quarantine | None]:
    """Provide the file ``name`` of a task and publish it at the end; None without a folder or a
    name."""
    if folder is None or not name:
        yield None
        return
    aside = Quarantine(Path(folder) / name)
    try:
        yield aside
    except BaseException:
        aside.drop()
        raise
    aside.finish()


def file_name(parts: Sequence[Range]) -> str:
    """Return the file name for some ranges: the first one, and a checksum over all."""
    if not parts:
        return ""
    first = parts[0]
    queue = first.queue
    named = f"{queue.topic}-{queue.broker_name}-{queue.queue_id}-{first.start}"
    return safe_name(named, ";".join(f"{part.queue} {part.start} {part.stop}" for part in parts))


def safe_name(named: str, every: str) -> str:
    """Return a file name that begins with ``named`` and differs for different texts ``every``."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', named)}-{zlib.crc32(every.encode()):08x}.jsonl"
