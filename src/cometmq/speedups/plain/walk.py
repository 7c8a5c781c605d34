"""Columns of the records in a part of the log, for replication, startup, checks and Spark.

This is the definition; compiled/walk.pyx does the same, byte for byte. message/record.py describes
the layout of a record, message/properties.py that of its properties. The walk reads record after
record and stops at the first bytes that are not a complete and valid record. It does not report the
reason; ``message.record.iter_spans`` examines the bytes there and decides.

Each record is a row of native int64, in this order:

    0  position       start of the record in the buffer
    1  size           in bytes
    2  queue          number of its topic and queue within this walk
    3  queue offset
    4  tag code       for a delayed message its delivery time, ms
    5  store time     ms
    6  sysFlag
    7  first hash     number of its first index key hash within this walk
    8  hashes         number of its index keys; 0 if it was rolled back
    9  odd            1 if valid, but unlike any record that a broker stores: see below
    10 body           start of the body in the buffer
    11 body end       end of the body
    12 topic          start of the topic in the buffer
    13 topic end      end of the topic; the properties start two bytes after it

A record is odd if its queue id or queue offset is negative, if its topic or its properties contain
a zero byte, or if its topic cannot name a queue directory: it is empty, ``.`` or ``..``, contains
``/`` or U+FFFD, or is invalid UTF-8.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from cometmq.speedups.plain.hashing import absolute, signed, text_hash
from cometmq.speedups.plain.properties import find_named, keys_of
from cometmq.speedups.plain.records import (
    BORN_V6,
    PREPARED,
    TRANSACTION_MASK,
    V6_MORE_BYTES,
    find_whole,
    stored_crc,
)

WALKED_COLUMNS: Final = 14
_ROW: Final = Struct(f"={WALKED_COLUMNS}q")
_NUMBER: Final = Struct("=q")
#: CRC, queue id, queue offset, physical offset, sysFlag.
_HEAD: Final = Struct(">8xIi4xqqi")
_STORE_MS: Final = Struct(">q")
_STORE_MS_AT: Final = 56
_SCHEDULE_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
_UNKNOWN_DELAY_MS: Final = 1_000
#: Maximum number of queues in one walk; with more, looking them up takes too long.
_QUEUES_MAX: Final = 1_024


class Walked(NamedTuple):
    """Records of a buffer. The module docstring describes ``rows``; ``hashes`` are native uint32.

    ``queues`` holds the topic and queue id of each queue, and whether one of its records occupies a
    queue offset or has properties. ``stop`` is the position where the walk stopped. ``is_open`` is
    true if it stopped because of too many queues, so that another walk can continue there;
    otherwise no valid record starts there, or the end was reached.
    """

    rows: bytes
    hashes: bytes
    queues: list[tuple[str, int, bool]]
    stop: int
    is_open: bool

    @property
    def row_count(self) -> int:
        """Number of records."""
        return len(self.rows) // _ROW.size

    def begin(self, row: int) -> int:
        """Return the start of a record in the buffer."""
        return self._number(row, 0)

    def end(self, row: int) -> int:
        """Return the end of a record in the buffer."""
        return self._number(row, 0) + self._number(row, 1)

    def store_ms(self, row: int) -> int:
        """Return the store time of a record, in ms."""
        return self._number(row, 5)

    def _number(self, row: int, column: int) -> int:
        found: int = _NUMBER.unpack_from(self.rows, row * _ROW.size + column * _NUMBER.size)[0]
        return found


class _Place(NamedTuple):
    """Positions and header fields of a complete and valid record."""

    at: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    body_at: int
    body_end: int
    topic_at: int
    topic_end: int


def walk(
    data: bytes | bytearray | memoryview,
    start: int,
    stop: int,
    base: int | None,
    delays_ms: tuple[int, ...],
    *,
    check_crc: bool,
) -> Walked:
    """Walk over the records of ``data`` from ``start`` to ``stop``.

    ``base`` is the physical offset of the first byte of ``data``; if it is given, the physical
    offset in each record must be its own. With ``check_crc`` each body must match its CRC.
    ``delays_ms`` are the delays of the delay levels. Raises ValueError for positions outside
    ``data``.
    """
    view = memoryview(data)
    if not 0 <= start <= stop <= len(view):
        raise ValueError("a begin or an end outside the data")
    rows: list[bytes] = []
    hashes = array("I")
    queues: dict[tuple[bytes, int], _Queue] = {}
    is_open = False
    while (place := _place_at(view, start, stop, base, check_crc=check_crc)) is not None:
        key = bytes(view[place.topic_at : place.topic_end]), place.queue_id
        queue = queues.get(key)
        if queue is None:
            is_open = len(queues) == _QUEUES_MAX
            if is_open:
                break
            queue = queues[key] = _Queue(len(queues), *key)
        properties = bytes(view[place.topic_end + 2 : place.at + place.size])
        if properties or not place.sys_flag & PREPARED:
            queue.is_listed = True
        unique, keys, tag, delay = find_named(properties)
        code = signed(text_hash(0, tag))
        if queue.is_delayed and (delay_ms := _delay_of(delay, delays_ms)):
            code = _wrapped(place.store_ms + delay_ms)
        first = len(hashes)
        # Rolled-back messages are not indexed.
        if place.sys_flag & TRANSACTION_MASK != TRANSACTION_MASK:
            names = keys_of(unique, keys)
            hashes.extend([absolute(text_hash(queue.prefix, name)) for name in names])
        odd = queue.is_odd or place.queue_offset < 0 or 0 in properties
        row = _ROW.pack(
            place.at, place.size, queue.number, place.queue_offset, code, place.store_ms,
            place.sys_flag, first, len(hashes) - first, odd, *place[-4:],
        )  # fmt: skip
        rows.append(row)
        start += place.size
    found = [(queue.topic, queue.queue_id, queue.is_listed) for queue in queues.values()]
    return Walked(b"".join(rows), hashes.tobytes(), found, start, is_open)


class _Queue:
    """A queue found by a walk.

    ``is_odd`` marks one that no broker creates, ``is_delayed`` one of the schedule topic.
    """

    __slots__ = ("is_delayed", "is_listed", "is_odd", "number", "prefix", "queue_id", "topic")

    def __init__(self, number: int, topic: bytes, queue_id: int) -> None:
        self.number = number
        self.topic = topic.decode("utf-8", "replace")
        self.queue_id = queue_id
        self.prefix = text_hash(text_hash(0, topic), b"#")
        self.is_delayed = topic == _SCHEDULE_TOPIC
        self.is_listed = False
        self.is_odd = (
            queue_id < 0
            or self.topic in ("", ".", "..")
            or not {"/", "\0", "\N{REPLACEMENT CHARACTER}"}.isdisjoint(self.topic)
        )


def check_records(
    data: bytes | bytearray | memoryview, start: int, stop: int, base: int | None
) -> int:
    """Return the position where a walk over these bytes that checks CRCs stops.

    Raises ValueError for positions outside ``data``.
    """
    view = memoryview(data)
    if not 0 <= start <= stop <= len(view):
        raise ValueError("a begin or an end outside the data")
    while (place := _place_at(view, start, stop, base, check_crc=True)) is not None:
        start += place.size
    return start


def _place_at(
    view: memoryview, at: int, stop: int, base: int | None, *, check_crc: bool
) -> _Place | None:
    """Return the record at a position; None unless a valid one ends at or before ``stop``."""
    found = find_whole(view, at, stop)
    if found is None:
        return None
    parts, end = found
    crc, queue_id, queue_offset, offset, sys_flag = _HEAD.unpack_from(view, at)
    if base is not None and offset != base + at:
        return None
    if check_crc and crc and stored_crc(view[parts.body : parts.body_end]) != crc:
        return None
    stored_at = at + _STORE_MS_AT + (V6_MORE_BYTES if sys_flag & BORN_V6 else 0)
    (store_ms,) = _STORE_MS.unpack_from(view, stored_at)
    return _Place(at, end - at, queue_id, queue_offset, sys_flag, store_ms, *parts)


def _delay_of(level: bytes, delays_ms: Sequence[int]) -> int:
    """Return the delay in ms of a level given as text.

    Returns 0 without a level; a level above the highest one counts as the highest.
    """
    number = int(level[:9]) if level.isdigit() else 0
    if number == 0:
        return 0
    return delays_ms[min(number, len(delays_ms)) - 1] if delays_ms else _UNKNOWN_DELAY_MS


def _wrapped(value: int) -> int:
    # The store time is untrusted, so the sum may overflow; it wraps around as in a Java long.
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
