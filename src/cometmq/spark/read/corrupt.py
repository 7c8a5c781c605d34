"""Handles corrupt messages: an error, a row with the reason, or a line in a quarantine file.

The requested columns decide which checks are made. A body that is not requested is not
decompressed. CRCs take half as long as decoding and are checked only on request. Faulty texts, such
as invalid UTF-8, do not fail a query, because other clients read them with replaced characters.
They are reported with mode=PERMISSIVE and with badRecordsPath.

Quarantine files hold the corrupt messages of a read with badRecordsPath, one file per task that had
any:

    {"topic": "orders", "broker": "broker-a", "queue": 3, "offset": 120,
     "reason": "body CRC differs from the stored 0x1a2b3c4d", "record": "AAAB..."}

Each line is one message; ``record`` is the stored record in base64, as the broker returned it. All
executors must share the folder. A file gets its name only when its task has read everything. The
name is derived from the task's ranges, so a task that Spark runs again replaces its file.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from cometmq.core.errors import CometError
from cometmq.message.record import BadRecord
from cometmq.spark.decode import (
    Block,
    RowFaults,
    batches_with_faults,
    find_faults,
    record_starts,
    repaired,
)
from cometmq.spark.options import BadOption, Given, boolean, get, one_of, some_text
from cometmq.spark.schema import CORRUPT

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.message.walk import Ints
    from cometmq.spark.read.planning import Range

OPTIONS: Final = ("mode", "checkCrc", "badRecordsPath")

BATCH_BYTES: Final = 1 << 20
"""Size of the records in one Arrow batch. Spark's JVM starts to process a batch when the batch is
complete, and the Python worker continues once it has sent its last batch. With batches larger than
the socket buffers, the two would take turns instead of working in parallel."""

_TEXTS: Final = frozenset({"topic", "msg_id", "keys", "tags", "properties", CORRUPT.name})


class Mode(Enum):
    """Handling of a message that cannot be read: an error, a row with the reason, or quarantine."""

    FAILFAST = "FAILFAST"
    PERMISSIVE = "PERMISSIVE"
    ASIDE = "put aside"


@dataclass(frozen=True, slots=True)
class CorruptOptions:
    """Options for unreadable messages. ``path`` is the folder of the quarantine files."""

    mode: Mode = Mode.FAILFAST
    check_crc: bool = False
    path: str | None = None


class CorruptMessage(CometError):
    """Raised if the message at ``queue_offset`` cannot be read, for ``reason``. ``topic`` is empty
    if the topic cannot be read either."""

    def __init__(
        self, topic: str, broker_name: str, queue_id: int, queue_offset: int, reason: str
    ) -> None:
        self.topic = topic
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.reason = reason
        super().__init__(
            f"offset {queue_offset} of queue {queue_id} of topic {topic!r} on broker "
            f"{broker_name!r} cannot be read: {reason}; option mode=PERMISSIVE returns such "
            "messages with the reason in column _corrupt, option badRecordsPath writes them to "
            "files"
        )


def parse(given: Given) -> CorruptOptions:
    """Parse the options about unreadable messages. Raises BadOption."""
    check_crc = get(given, "checkCrc", boolean, False)
    if "badRecordsPath" in given:
        if "mode" in given:
            raise BadOption("mode", "cannot be given together with badRecordsPath")
        return CorruptOptions(Mode.ASIDE, check_crc, get(given, "badRecordsPath", some_text, None))
    name = get(given, "mode", one_of(Mode.FAILFAST.value, Mode.PERMISSIVE.value), "FAILFAST")
    return CorruptOptions(Mode(name), check_crc)


def read_block(
    data: bytes,
    broker_name: str,
    corrupt: CorruptOptions,
    starts: Ints | None = None,
    *,
    topic: str = "",
) -> tuple[Block, dict[int, str]]:
    """Return the records that begin at ``starts``, and the problems of bad ones by their start.

    If ``starts`` is None, ``data`` must hold only records, and all of them are returned. Raises
    CorruptMessage for a problem in mode FAILFAST, and BadRecord if the record sizes are invalid.
    """
    try:
        return Block(data, broker_name, starts), {}
    except BadRecord:
        places = record_starts(data) if starts is None else starts
        readable, problems = repaired(data, places)
    block = Block(readable, broker_name, places)
    if corrupt.mode is Mode.FAILFAST:
        _fail(block, find_faults(block, problems, bodies=False, crcs=False, texts=False), topic)
    return block, problems


def clean(
    block: Block,
    problems: dict[int, str],
    names: tuple[str, ...],
    corrupt: CorruptOptions,
    aside: Quarantine | None = None,
    *,
    topic: str = "",
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block from :func:`read_block`, with bad ones handled as the mode says.

    ``topic`` is the topic of all rows, or "" if they may have several. Bad rows go to ``aside``, if
    there is one. Raises CorruptMessage for a bad row in mode FAILFAST.
    """
    if not len(block):
        return
    wants_body = "body" in names
    is_strict = corrupt.mode is Mode.FAILFAST
    found = find_faults(
        block,
        problems,
        bodies=wants_body and (not is_strict or corrupt.check_crc),
        crcs=corrupt.check_crc,
        texts=not is_strict and (corrupt.mode is Mode.ASIDE or not _TEXTS.isdisjoint(names)),
    )
    if is_strict:
        _fail(block, found, topic)
    if found.reasons and aside is not None:
        for row, reason in found.reasons.items():
            aside.add(*_place(block, found, row, topic), reason, block.record(row))
        good = np.ones(len(block), np.bool_)
        good[list(found.reasons)] = False
        block.choose(good)
        yield from block.batches(names, _batch_rows(block))
    elif is_strict:
        try:
            yield from block.batches(names, _batch_rows(block))
        except BadRecord:
            _fail(block, find_faults(block, {}, bodies=True, crcs=False, texts=False), topic)
            raise
    else:
        yield from batches_with_faults(block, found, names, _batch_rows(block))


def _batch_rows(block: Block) -> int:
    """Return the number of rows of a batch of BATCH_BYTES, by the mean size in this block."""
    sizes = block.number("size_bytes")
    return max(1, len(sizes) * BATCH_BYTES // max(1, int(sizes.sum())))


def _fail(block: Block, found: RowFaults, topic: str) -> None:
    for row, reason in found.reasons.items():
        raise CorruptMessage(*_place(block, found, row, topic), reason)


def _place(block: Block, found: RowFaults, row: int, topic: str) -> tuple[str, str, int, int]:
    if not topic and row not in found.unreadable:
        topic = block.column("topic")[row].as_py()
    queue_id, offset = (block.number(name)[row] for name in ("queue_id", "queue_offset"))
    return topic, block.broker_name, int(queue_id), int(offset)


class Quarantine:
    """The quarantine file of one task. It is created with its first message, under a hidden name
    until :meth:`finish`."""

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
        """Append a message; ``raw`` is its stored record. Raises OSError."""
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
    """Return the file name for a task: its first range, and a checksum over all its ranges."""
    if not parts:
        return ""
    first = parts[0]
    queue = first.queue
    named = f"{queue.topic}-{queue.broker_name}-{queue.queue_id}-{first.start}"
    return safe_name(named, ";".join(f"{part.queue} {part.start} {part.stop}" for part in parts))


def safe_name(named: str, every: str) -> str:
    """Return a file name: ``named`` with safe characters only, and a checksum of ``every``."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', named)}-{zlib.crc32(every.encode()):08x}.jsonl"
