"""Batches: all messages of one body, as records and rows of a write batch.

This is the definition; compiled/batches.pyx does the same, byte for byte. A body is laid out in
message/batch.py. One of very many messages is packed first, without a place, beside the loop; then
it gets its place.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeAlias

from cometmq.speedups.plain.properties import PROPERTIES_MAX_BYTES, find_named, keys_of
from cometmq.speedups.plain.records import BLANK_BYTES, MAGIC_V1, stored_crc
from cometmq.speedups.plain.writebatch import QueueState, Row, WriteBatch

_BATCH_ENTRY: Final = Struct(">i8xii")
_BATCH_FIXED_BYTES: Final = 22
_FRONT: Final = Struct(">IIIIiqq")
_PLACE: Final = Struct(">qq")
_PLACE_AT: Final = _FRONT.size - _PLACE.size


#: A message of a batch, what its record holds of its own: flag, body, properties; and its size.
_Message: TypeAlias = tuple[int, bytes, bytes, int]


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
    """Take all messages of a batch body.

    ``middle`` is what stands in every record between its physical offset and the length of its
    body, ``properties`` follow those of each message: for a name in both they count. Records begin
    at the physical offset ``position``, in a file that ends at ``limit``.

    Gives how many bytes the records have, and these; none when they do not fit before ``limit``,
    and nothing was taken. Raises ValueError, with nothing taken, for a body that is none and for
    properties that no record holds.
    """
    messages = _messages(body, queue, middle, properties)
    total = sum([size for _, _, _, size in messages])
    if position + total + BLANK_BYTES > limit:
        return total, b""
    packed: list[bytes] = []
    first = rows.count
    head = _head_of(middle)
    for message in messages:
        rows.rows.append(_row(queue, message, position, store_ms))
        packed.append(_record(head, queue, message, (queue.next_offset, position), middle))
        queue.next_offset += 1
        position += message[3]
    _delay(rows, first, queue)
    rows.size_bytes += total
    return total, b"".join(packed)


def pack_batch(
    body: bytes,
    queue: QueueState,
    middle: bytes,
    properties: bytes,
    bytes_max: int,
    rows_max: int,
) -> tuple[int, list[tuple[WriteBatch, bytearray]]]:
    """The rows and the records of a batch, as :func:`append_batch` makes them, but without a place,
    queue offsets and a time: :func:`place_batch` gives them. They come in parts of at most
    ``rows_max`` messages, to which nothing else may happen until then.

    Gives how many bytes the records have, and the parts; none when that is more than ``bytes_max``.
    Raises what :func:`append_batch` raises. May run in a thread.
    """
    messages = _messages(body, queue, middle, properties)
    total = sum([size for _, _, _, size in messages])
    parts: list[tuple[WriteBatch, bytearray]] = []
    head = _head_of(middle)
    if total > bytes_max:
        return total, parts
    for first in range(0, len(messages), rows_max):
        rows, packed, position = WriteBatch(), bytearray(), 0
        for number, message in enumerate(messages[first : first + rows_max]):
            row = _row(queue, message, position, 0)
            row.queue, row.queue_offset = None, number
            rows.rows.append(row)
            packed += _record(head, queue, message, (number, position), middle)
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
    """Give what :func:`pack_batch` made for this queue the next queue offsets, the physical offset
    ``position`` and a time; ``middle`` takes the place of the one from before. Raises ValueError
    for ``rows`` and records of another batch, or that have their place."""
    if sum([row.size for row in rows.rows]) != len(packed) or any(
        row.queue is not None or row.queue_id != queue.queue_id for row in rows.rows
    ):
        raise ValueError("the records of another batch")
    at = 0
    for row in rows.rows:
        row.queue, row.queue_offset, row.store_ms = queue, queue.next_offset, store_ms
        row.place = position + at
        _PLACE.pack_into(packed, at + _PLACE_AT, row.queue_offset, row.place)
        packed[at + _FRONT.size : at + _FRONT.size + len(middle)] = middle
        queue.next_offset += 1
        at += row.size
    _delay(rows, 0, queue)
    rows.size_bytes += len(packed)


def _messages(body: bytes, queue: QueueState, middle: bytes, properties: bytes) -> list[_Message]:
    """The messages of a body. Raises ValueError."""
    fixed_bytes = _FRONT.size + len(middle) + 4 + len(queue.topic_tail) + 2
    separated = b"\x02" + properties if properties else b""
    found: list[_Message] = []
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
        own += separated if own and own[-1] != 2 else properties
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


def _row(queue: QueueState, message: _Message, position: int, store_ms: int) -> Row:
    unique, keys, tag, _ = find_named(message[2])
    place = position, message[3], store_ms
    return Row(queue, queue.queue_id, place, tag, keys_of(unique, keys))


def _head_of(middle: bytes) -> Struct:
    """A record up to its body: size, magic, CRC, queue id, flag, queue offset, physical offset, the
    middle, the length of the body."""
    return Struct(f">IIIIiqq{len(middle)}sI")


def _record(
    head: Struct, queue: QueueState, message: _Message, place: tuple[int, int], middle: bytes
) -> bytes:
    flag, body, properties, size = message
    front = head.pack(
        size, MAGIC_V1, stored_crc(body), queue.queue_id, flag, *place, middle, len(body)
    )
    return front + body + queue.topic_tail + len(properties).to_bytes(2, "big") + properties


def _delay(rows: WriteBatch, first: int, queue: QueueState) -> None:
    """Messages of a queue that delays them have their time of delivery instead of a tag."""
    if queue.delay_ms:
        for row in rows.rows[first:]:
            row.tag_code = row.store_ms + queue.delay_ms
