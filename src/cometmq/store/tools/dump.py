"""Dump of log records as values for programs, selected by position, topic, queue, key or time.

The log is read from end to end (or as far as offsets and times allow), because it is the authority
when queues or index are in doubt. Most records are skipped by columns; only those that may match
are decoded.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from cometmq.message.model import from_record
from cometmq.message.record import COMPRESSED, BadRecord, decode_one, verify
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.layout import index_hash, topic_prefix
from cometmq.store.tools.directory import FileFact, StoreDirectory, StoreInUse, look_into
from cometmq.store.tools.logfile import Gap, LogWalk

if TYPE_CHECKING:
    from cometmq.message.record import Record
    from cometmq.message.walk import Ints
    from cometmq.store.config import StoreConfig
    from cometmq.store.tools.logfile import Chunk


class BodyForm(Enum):
    """The form of bodies: text if they are valid text, always text, always Base64, or none."""

    AUTO = "auto"
    TEXT = "text"
    BASE64 = "base64"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class DumpSelection:
    """A selection of records: a record must match every field that is set.

    Offsets are physical, times in ms; both stops are exclusive. ``key`` is one of a message's keys
    or its unique key.
    """

    start: int = 0
    stop: int = 1 << 62
    topic: str = ""
    queue_id: int = -1
    key: str = ""
    since_ms: int = 0
    until_ms: int = 1 << 62


def dump(
    config: StoreConfig,
    wanted: DumpSelection,
    files: ReadOnlyFiles | None = None,
    *,
    while_running: bool = False,
    on_gap: Callable[[Gap], None] = lambda _: None,
) -> Iterator[Record]:
    """Yield the selected records in log order.

    ``on_gap`` is called with each range of bytes that are not a record. Raises NoStore, OSError,
    and StoreInUse if a broker uses the store. With ``while_running`` the store may be in use; the
    dump then has what the broker has written so far.
    """
    files = files or ReadOnlyFiles()
    directory = look_into(config, files)
    if directory.holder and not while_running:
        raise StoreInUse(directory.root, directory.holder)
    for file in directory.log_files:
        if file.base >= wanted.stop or file.base + file.size_bytes <= wanted.start:
            continue
        walk = LogWalk(files, file.path, file.base, file.size_bytes)
        for chunk in walk:
            for row in _rows(chunk, wanted).tolist():
                at = int(chunk.starts[row])
                record = decode_one(chunk.raw.data, at, check_crc=False)
                if not wanted.key or _has_key(record, wanted.key):
                    yield record
        for gap in walk.gaps:
            if gap.start < wanted.stop and gap.stop > wanted.start:
                on_gap(gap)
        if _ends_here(directory, file, walk):
            return


def _ends_here(directory: StoreDirectory, file: FileFact, walk: LogWalk) -> bool:
    """Return whether the following files are empty ones, created in advance."""
    return not walk.closed and not walk.gaps and file.base + file.size_bytes < directory.log_stop


def _rows(chunk: Chunk, wanted: DumpSelection) -> Ints:
    """Return the rows of a chunk that may match: another key may have the same hash."""
    chosen = (chunk.places >= wanted.start) & (chunk.places < wanted.stop)
    chosen &= (chunk.store_ms >= wanted.since_ms) & (chunk.store_ms < wanted.until_ms)
    if wanted.queue_id >= 0:
        chosen &= chunk.of_queues(number for _, number in chunk.queues) == wanted.queue_id
    if wanted.topic:
        chosen &= chunk.of_queues(name == wanted.topic for name, _ in chunk.queues) == 1
    if wanted.key:
        rows = chunk.key_rows
        hashes = chunk.of_queues(
            index_hash(topic_prefix(name), wanted.key) for name, _ in chunk.queues
        )
        has_key = np.zeros(len(chosen), np.bool_)
        has_key[rows[chunk.key_hashes == hashes[rows]]] = True
        chosen &= has_key
    return np.flatnonzero(chosen)


def _has_key(record: Record, key: str) -> bool:
    try:
        message = from_record(record)
    except BadRecord:
        return True
    return key in message.keys or key == message.properties.get("UNIQ_KEY")


def as_json(record: Record, form: BodyForm) -> dict[str, Any]:
    """Return a record as one JSON object.

    The body is decompressed and stored under ``body`` as text or under ``body_base64``. ``problem``
    is set if the CRC of the body is wrong or if it cannot be decompressed; in the latter case the
    body is included as stored.
    """
    value: dict[str, Any] = {
        "offset": record.physical_offset,
        "size": record.size_bytes,
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "store_ms": record.store_ms,
        "born_ms": record.born_ms,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_offset,
    }
    body = record.body
    if not verify(body, record.body_crc):
        value["problem"] = "the body does not match the CRC of the record"
    try:
        message = from_record(record)
        body = message.body
    except BadRecord as error:
        value["problem"] = error.problem
        message = from_record(replace(record, sys_flag=record.sys_flag & ~COMPRESSED))
    value |= {
        "id": message.message_id,
        "born_host": message.born_address,
        "store_host": message.store_address,
        "properties": message.properties,
    }
    if form is not BodyForm.NONE:
        value |= _body(body, form)
    return value


def _body(body: bytes, form: BodyForm) -> dict[str, str]:
    if form is not BodyForm.BASE64:
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            if form is BodyForm.TEXT:
                return {"body": body.decode(errors="replace")}
    return {"body_base64": base64.b64encode(body).decode()}
