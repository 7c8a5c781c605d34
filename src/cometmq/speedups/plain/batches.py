"""Batch sends: turns the messages of one body into log records and rows of a write batch.

This is the definition; compiled/batches.pyx does the same, byte for byte. message/batch.py
describes the layout of a body, message/record.py that of a record.

    append_batch   small batch: packs records with their offsets, in one call
    pack_batch     large batch: packs records without offsets, in a thread
    place_batch    fills offsets and store time into the records of pack_batch

``middle`` is the part of a record between its physical offset and the length of its body. It is the
same for all records of a batch.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeAlias

from cometmq.speedups.plain.properties import PROPERTIES_MAX_BYTES, find_named, keys_of
from cometmq.speedups.plain.records import BLANK_BYTES, MAGIC_V1, stored_crc
from cometmq.speedups.plain.writebatch import QueueState, Row, WriteBatch

#: Message in a body: its size, two ignored fields (magic and CRC), its flag, the size of its body.
_BATCH_ENTRY: Final = Struct(">i8xii")
_BATCH_FIXED_BYTES: Final = 22
#: A record before ``middle``: size, magic, CRC, queue id, flag, queue offset, physical offset.
_FRONT: Final = Struct(">IIIIiqq")
_OFFSETS: Final = Struct(">qq")
_OFFSETS_AT: Final = _FRONT.size - _OFFSETS.size
#: Separator between properties.
_PROPERTY_SEPARATOR: Final = 2

#: A message of a batch: its flag, its body, the properties of its record, and the record size.
Message: TypeAlias = tuple[int, bytes, bytes, int]


def append_batch(
    rows: WriteBatch,
    body: bytes,
    queue: QueueState,
    middle: bytes,
    properties: bytes,
    position: int,
    limit: int,
    store_ms: int,
) -> tuple[int, bytes]:
    """Append all messages of a batch body.

    ``properties`` are appended to those of each message and take precedence over them. Records
    start at physical offset ``position`` in a log file that ends at ``limit``.

    Returns the total size of the records, and the records. If they do not fit before ``limit``,
    nothing is appended and the second value is empty. Raises ValueError, with nothing appended, for
    an invalid body and for properties that are too long for a record.
    """
    messages = read_messages(body, queue, middle, properties)
    total = sum([size for _, _, _, size in messages])
    if position + total + BLANK_BYTES > limit:
        return total, b""
    first = rows.count
    packed = append_messages(rows, messages, queue, middle, (position, store_ms))
    _delay(rows, first, queue)
    if rows.count > first:
        rows.rows[first].members = rows.count - first
    rows.size_bytes += total
    return total, packed


def append_messages(
    rows: WriteBatch,
    messages: list[Message],
    queue: QueueState,
    middle: bytes,
    place: tuple[int, int],
) -> bytes:
    """Add the rows of messages and return their records.

    ``place`` is the physical offset of the first one, and the store time.
    """
    packed: list[bytes] = []
    layout = _layout(middle)
    position, store_ms = place
    for message in messages:
        rows.rows.append(_row(queue, message, position, store_ms))
        packed.append(_record(layout, queue, message, (queue.next_offset, position), middle))
        queue.next_offset += 1
        position += message[3]
    return b"".join(packed)


def pack_batch(
    body: bytes,
    queue: QueueState,
    middle: bytes,
    properties: bytes,
    bytes_max: int,
    rows_max: int,
) -> tuple[int, list[tuple[WriteBatch, bytearray]]]:
    """Pack rows and records as :func:`append_batch` does, but without offsets and store time.

    The batch is split into parts of at most ``rows_max`` messages. A part must not be modified
    until :func:`place_batch` fills in its queue offsets, physical offsets and store time.

    Returns the total size of the records, and the parts; no parts if the size exceeds
    ``bytes_max``. Raises the same exceptions as :func:`append_batch`. Can run in a thread.
    """
    messages = read_messages(body, queue, middle, properties)
    total = sum([size for _, _, _, size in messages])
    parts: list[tuple[WriteBatch, bytearray]] = []
    layout = _layout(middle)
    if total > bytes_max:
        return total, parts
    for first in range(0, len(messages), rows_max):
        rows, packed, position = WriteBatch(), bytearray(), 0
        for number, message in enumerate(messages[first : first + rows_max]):
            row = _row(queue, message, position, 0)
            # place_batch recognises a part without offsets by the missing queue.
            row.queue, row.queue_offset = None, number
            rows.rows.append(row)
            packed += _record(layout, queue, message, (number, position), middle)
            position += message[3]
        parts.append((rows, packed))
    return total, parts


def place_batch(
    rows: WriteBatch,
    packed: bytearray,
    queue: QueueState,
    middle: bytes,
    position: int,
    store_ms: int,
) -> None:
    """Set the offsets and the store time of a part that :func:`pack_batch` made for this queue.

    The records get the next queue offsets, the physical offsets from ``position`` on, and this
    ``middle``, which has the store time. Raises ValueError if ``rows`` and ``packed`` do not belong
    together, belong to another queue, or already have offsets.
    """
    if sum([row.size for row in rows.rows]) != len(packed) or any(
        row.queue is not None or row.queue_id != queue.queue_id for row in rows.rows
    ):
        raise ValueError("the records of another batch")
    at = 0
    for row in rows.rows:
        row.queue, row.queue_offset, row.store_ms = queue, queue.next_offset, store_ms
        row.place = position + at
        _OFFSETS.pack_into(packed, at + _OFFSETS_AT, row.queue_offset, row.place)
        packed[at + _FRONT.size : at + _FRONT.size + len(middle)] = middle
        queue.next_offset += 1
        at += row.size
    _delay(rows, 0, queue)
    rows.size_bytes += len(packed)


def read_messages(
    body: bytes, queue: QueueState, middle: bytes, properties: bytes
) -> list[Message]:
    """Parse the messages of a body, and append ``properties`` to those of each.

    ``queue`` and ``middle`` are needed for the sizes of the records. Raises ValueError for an
    invalid body, and for properties that are too long.
    """
    fixed_bytes = _FRONT.size + len(middle) + 4 + len(queue.topic_tail) + 2
    separated = bytes((_PROPERTY_SEPARATOR,)) + properties if properties else b""
    found: list[Message] = []
    at, end, longest = 0, len(body), 0
    while at < end:
        left = end - at
        if left < _BATCH_FIXED_BYTES:
            raise ValueError(f"batch body: {left} bytes left at {at}, an entry has at least 22")
        size, flag, body_bytes = _BATCH_ENTRY.unpack_from(body, at)
        body_at, stop = at + _BATCH_ENTRY.size, at + size
        length_at = body_at + body_bytes
        if body_bytes < 0 or stop > end or length_at + 2 > stop:
            raise ValueError(
                f"batch body: entry at {at} of size {size}, its body {body_bytes}, {left} left"
            )
        own = body[length_at + 2 : stop]
        if int.from_bytes(body[length_at : length_at + 2], "big") != len(own):
            raise ValueError(
                f"batch body: entry at {at} of size {size} is not the sum of its parts"
            )
        own += separated if own and own[-1] != _PROPERTY_SEPARATOR else properties
        if len(own) > longest:
            longest = len(own)
        size = fixed_bytes + body_bytes + len(own)
        found.append((flag, body[body_at:length_at], own, size))
        at = stop
    if not found:
        raise ValueError("the batch holds no message")
    if longest > PROPERTIES_MAX_BYTES:
        raise ValueError(
            f"properties of a message with those of its batch are {longest} bytes long, the "
            f"limit is {PROPERTIES_MAX_BYTES}"
        )
    return found


def _row(queue: QueueState, message: Message, position: int, store_ms: int) -> Row:
    unique, keys, tag, _ = find_named(message[2])
    place = position, message[3], store_ms
    return Row(queue, queue.queue_id, place, tag, keys_of(unique, keys))


def _layout(middle: bytes) -> Struct:
    """Return the layout of a record up to its body.

    Its fields are size, magic, CRC, queue id, flag, queue offset, physical offset, the middle, and
    the length of the body.
    """
    return Struct(f">IIIIiqq{len(middle)}sI")


def _record(
    layout: Struct, queue: QueueState, message: Message, offsets: tuple[int, int], middle: bytes
) -> bytes:
    flag, body, properties, size = message
    front = layout.pack(
        size, MAGIC_V1, stored_crc(body), queue.queue_id, flag, *offsets, middle, len(body)
    )
    return front + body + queue.topic_tail + len(properties).to_bytes(2, "big") + properties


def _delay(rows: WriteBatch, first: int, queue: QueueState) -> None:
    """Replace the tag codes by delivery times in a queue of delayed messages."""
    if queue.delay_ms:
        for row in rows.rows[first:]:
            row.tag_code = row.store_ms + queue.delay_ms
