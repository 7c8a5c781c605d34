"""Plain single sends and batches, from bytes of clients to records, queue entries and answers.

This is the definition; compiled/sends.pyx does the same, byte for byte. A send is plain when all of
this holds; every other frame is odd, and is served one by one:

- its header is JSON without blanks, each name once, of the names that clients send;
- its code is 10 or 310, its numbers have no sign and no leading zeros, its strings are ASCII
  without escapes, but for the topic (UTF-8) and the properties (UTF-8, escapes, no surrogates);
- its properties are pairs with a name and a value, those that say how it is stored once at the
  most, and none asks for a delay, a timer, a transaction or an answer before the sync;
- its topic and queue are known, and its body and its properties fit.

Prepared sends and ends of transactions are read here, too; plain/transactions.py takes them.

A record is laid out in message/record.py, a batch body in message/batch.py, a queue entry in
store/layout.py, an index entry in store/indexfile.py, a journal's row in store/entryjournal.py.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Sequence
from struct import Struct
from typing import Any, Final
from zlib import crc32

from cometmq.speedups.plain.hashing import extended_hash

_LENGTHS: Final = Struct(">II")
HEAD: Final = Struct(">IIIIIqqIq8sq8sIqI")
_FRONT: Final = Struct(">IIIIiqq")
_BATCH_ENTRY: Final = Struct(">i8xii")
_ENTRY: Final = Struct(">qiq")
_JOURNAL_ROW: Final = Struct(">Qqqiq")
_INDEX_ENTRY: Final = Struct(">iqii")
MAGIC_V1: Final = 0xDAA320A7
CRC_MASK: Final = 0x7FFFFFFF
_WALKED_ROW: Final = Struct("=10q32x")
_BLANK_BYTES: Final = 8
_BATCH_FIXED_BYTES: Final = 22
PROPERTIES_MAX_BYTES: Final = 32_767
_TEXT_MAX_BYTES: Final = 65_536
_KEYS_MAX: Final = 64
_ODD_MAX: Final = 32
_INT_MAX: Final = 0x7FFFFFFF
_LONG_MAX: Final = 0x7FFFFFFFFFFFFFFF
#: Bits of sysFlag that no send that is taken has: of ended transactions, of IPv6 hosts.
_ODD_FLAGS: Final = 0x38
#: The bit of sysFlag of half messages, and of records that take no place in their queue.
_PREPARED_FLAG: Final = 0x4

_STRING: Final = re.compile(rb'"((?:[^"\\\x00-\x1f]|\\[\x20-\x7f])*+)"')
_NUMBER: Final = re.compile(rb"(?:0|[1-9][0-9]{0,18})(?![0-9])")
_ESCAPE: Final = re.compile(rb'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPED: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}

TOPIC, QUEUE_ID, SYS_FLAG, BORN_MS, FLAG, PROPERTIES, RECONSUME_TIMES = (
    1, 4, 5, 6, 7, 8, 9,
)  # fmt: skip
_UNIT_MODE, _BATCH = 10, 12
_NUMBERS: Final = {3, QUEUE_ID, SYS_FLAG, BORN_MS, FLAG, RECONSUME_TIMES, 11}
_REQUIRED: Final = set(range(8))
_END_TRANSACTION: Final = 37
_COMMIT, _ROLLBACK = 8, 12
END_GROUP, END_HALF_OFFSET, END_PLACE, END_KIND, _END_MESSAGE_ID, _END_IS_CHECK = range(6)
_END_REQUIRED: Final = set(range(5))
_FIELDS: Final = {
    10: {
        name: number
        for number, name in enumerate(
            (
                b"producerGroup", b"topic", b"defaultTopic", b"defaultTopicQueueNums", b"queueId",
                b"sysFlag", b"bornTimestamp", b"flag", b"properties", b"reconsumeTimes",
                b"unitMode", b"maxReconsumeTimes", b"batch", b"bname",
            )
        )
    },
    310: {bytes((97 + number,)): number for number in range(14)},
    _END_TRANSACTION: {
        b"producerGroup": END_GROUP,
        b"tranStateTableOffset": END_HALF_OFFSET,
        b"commitLogOffset": END_PLACE,
        b"commitOrRollback": END_KIND,
        b"msgId": _END_MESSAGE_ID,
        b"fromTransactionCheck": _END_IS_CHECK,
    },
}  # fmt: skip


class QueueState:
    """What every send touches of a consume queue.

    ``next_offset`` is given to the next append, ``max_offset`` ends what readers may see. ``tail``
    holds entries that are not in a file yet, and more. ``topic_tail`` is what follows the body of
    its records, ``topic_hash`` the Java hash of ``topic#``.
    """

    __slots__ = (
        "delay_ms",
        "is_dirty",
        "is_prompt",
        "max_offset",
        "next_offset",
        "number",
        "queue_id",
        "tail",
        "topic_hash",
        "topic_tail",
    )

    def __init__(self) -> None:
        self.next_offset = 0
        self.max_offset = 0
        self.queue_id = 0
        self.delay_ms = 0
        self.number = 0
        self.tail = bytearray()
        self.topic_tail = b""
        self.topic_hash = 0
        self.is_dirty = False
        self.is_prompt = False


class Odd(Exception):
    """A frame has to be served by itself."""


class Send:
    """One send or end of a transaction, taken apart. ``group`` is that of a prepared send, None for
    others; ``fields`` are by the numbers of their names."""

    __slots__ = (
        "body",
        "fields",
        "frame_flag",
        "group",
        "is_end",
        "keys",
        "opaque",
        "properties",
        "tag",
    )

    def __init__(self, header: bytes, body: bytes) -> None:
        self.body = body
        self.fields: dict[int, Any] = {}
        self.frame_flag = 0
        self.opaque = 0
        self.is_end = False
        self.properties, self.tag = b"", b""
        self.keys: list[bytes] = []
        self.group: bytes | None = None
        self._read_header(header)
        if not self.is_end:
            self._read_properties(self.fields.get(PROPERTIES, b""))

    def _read_properties(self, text: bytes) -> None:
        self.properties, special = _scan_properties(text)
        self.tag = special.get(b"TAGS", b"")
        self.keys = keys_of(special.get(b"UNIQ_KEY", b""), special.get(b"KEYS", b""))
        if len(self.keys) > _KEYS_MAX:
            raise Odd
        if b"TRAN_MSG" in special:
            if special.keys() & _BOUND_NAMES:
                raise Odd
            self.group = special.get(b"PGROUP", b"")
        elif self.fields[SYS_FLAG] & _PREPARED_FLAG:
            raise Odd

    def _read_header(self, header: bytes) -> None:  # noqa: C901
        code = None
        seen: set[bytes] = set()
        at = _expect(header, 0, b"{")
        while True:
            name, at = _string(header, at, escapes=False)
            at = _expect(header, at, b":")
            if name in seen:
                raise Odd
            seen.add(name)
            if name in (b"code", b"flag", b"opaque", b"version"):
                number, at = _number(header, at, _INT_MAX)
                if name == b"code":
                    code = number
                    if code not in _FIELDS:
                        raise Odd
                elif name == b"flag":
                    self.frame_flag = number
                    if number & 1:
                        raise Odd
                elif name == b"opaque":
                    self.opaque = number
            elif name == b"extFields":
                if code is None:
                    raise Odd
                self.is_end = code == _END_TRANSACTION
                read = self._read_end if self.is_end else self._read_fields
                at = read(header, at, _FIELDS[code])
            elif name in (b"language", b"serializeTypeCurrentRPC", b"remark"):
                _, at = _string(header, at, escapes=False)
            else:
                raise Odd
            if header[at : at + 1] == b"}":
                break
            at = _expect(header, at, b",")
        if at + 1 != len(header) or not {b"code", b"extFields", b"opaque"} <= seen:
            raise Odd

    def _read_fields(self, header: bytes, at: int, numbers: dict[bytes, int]) -> int:
        fields = self.fields
        at = _expect(header, at, b"{")
        while True:
            name, at = _string(header, at, escapes=False)
            at = _expect(header, at, b":")
            number = numbers.get(name, -1)
            if number in fields:
                raise Odd
            if number == PROPERTIES:
                value, at = _string(header, at, escapes=True)
                fields[number] = _unescaped(value)
            elif number == TOPIC:
                value, at = _string(header, at, escapes=False, wide=True)
                fields[number] = value
            else:
                value, at = _string(header, at, escapes=False)
                if number >= 0:
                    fields[number] = _field(number, value)
            if header[at : at + 1] == b"}":
                break
            at = _expect(header, at, b",")
        if not fields.keys() >= _REQUIRED or not fields[TOPIC] or fields[SYS_FLAG] & _ODD_FLAGS:
            raise Odd
        return at + 1

    def _read_end(  # noqa: C901
        self, header: bytes, at: int, numbers: dict[bytes, int]
    ) -> int:
        fields = self.fields
        at = _expect(header, at, b"{")
        while True:
            name, at = _string(header, at, escapes=False)
            at = _expect(header, at, b":")
            value, at = _string(header, at, escapes=False)
            number = numbers.get(name, -1)
            if number in fields:
                raise Odd
            if number in (END_HALF_OFFSET, END_PLACE, END_KIND):
                limit = _INT_MAX if number == END_KIND else _LONG_MAX
                fields[number], end = _number(value, 0, limit)
                if end != len(value):
                    raise Odd
            elif number == _END_IS_CHECK:
                if value not in (b"false", b"true"):
                    raise Odd
            elif number >= 0:
                fields[number] = value
            if header[at : at + 1] == b"}":
                break
            at = _expect(header, at, b",")
        if not fields.keys() >= _END_REQUIRED or fields[END_KIND] not in (_COMMIT, _ROLLBACK):
            raise Odd
        if not fields[END_GROUP] or not fields[_END_MESSAGE_ID]:
            raise Odd
        return at + 1


def _expect(header: bytes, at: int, mark: bytes) -> int:
    if header[at : at + 1] != mark:
        raise Odd
    return at + 1


def _string(header: bytes, at: int, *, escapes: bool, wide: bool = False) -> tuple[bytes, int]:
    found = _STRING.match(header, at)
    if found is None:
        raise Odd
    value = found[1]
    if not escapes and (b"\\" in value or not (wide or value.isascii())):
        raise Odd
    return value, found.end()


def _number(header: bytes, at: int, limit: int) -> tuple[int, int]:
    found = _NUMBER.match(header, at)
    if found is None or int(found[0]) > limit:
        raise Odd
    return int(found[0]), found.end()


def _field(number: int, value: bytes) -> int | bytes:
    if number in _NUMBERS:
        found, end = _number(value, 0, _LONG_MAX if number == BORN_MS else _INT_MAX)
        if end != len(value):
            raise Odd
        return found
    if number == _BATCH and value != b"false":
        raise Odd
    if number == _UNIT_MODE and value not in (b"false", b"true"):
        raise Odd
    return value


def _unescaped(value: bytes) -> bytes:
    """A property text without the escapes of JSON."""
    if len(value) > _TEXT_MAX_BYTES:
        raise Odd
    pieces: list[bytes] = []
    at = 0
    while (mark := value.find(b"\\", at)) >= 0:
        found = _ESCAPE.match(value, mark)
        if found is None:
            raise Odd
        pieces.append(value[at:mark])
        if found[1] is None:
            pieces.append(_ESCAPED.get(found[2], found[2]))
        else:
            unit = int(found[1], 16)
            if 0xD800 <= unit < 0xE000:
                raise Odd
            pieces.append(chr(unit).encode())
        at = found.end()
    text = b"".join(pieces) + value[at:]
    try:
        text.decode()
    except UnicodeDecodeError:
        raise Odd from None
    return text


#: Names of which the value decides how a message is stored, or found.
_SPECIAL_NAMES: Final = frozenset((b"WAIT", b"TAGS", b"KEYS", b"UNIQ_KEY", b"TRAN_MSG"))
#: Names that say of a prepared send what a plain one does not say; the last
#: stands for a second group.
_BOUND_NAMES: Final = frozenset(
    (b"REAL_TOPIC", b"REAL_QID", b"CHECK_IMMUNITY_TIME_IN_SECONDS", b"")
)


def _scan_properties(text: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """The pairs that are kept, and those that say how a message is stored or found."""
    if not text:
        return b"", {}
    if text.endswith(b"\x02"):
        text = text[:-1]
    if b"TIMER_DE" in text:
        raise Odd
    kept: list[bytes] = []
    special: dict[bytes, bytes] = {}
    for pair in text.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if not name or not value or b"\x01" in value or name == b"DELAY":
            raise Odd
        if name in (b"WAIT", b"TRAN_MSG") and value != b"true":
            raise Odd
        if name == b"PGROUP" and name in special:
            special[b""] = value
        elif name in _SPECIAL_NAMES and name in special:
            raise Odd
        special[name] = value
        if name != b"WAIT":
            kept.append(pair)
    return b"\x02".join(kept), special


def keys_of(unique: bytes, keys: bytes) -> list[bytes]:
    """What a message is found by: its unique key and its keys."""
    return [unique] * bool(unique) + [key for key in keys.split(b" ") if key]


def _check_batch(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """The flags, bodies and properties of the messages of a batch body. Raises ValueError."""
    found: list[tuple[int, bytes, bytes]] = []
    at, end = 0, len(body)
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
        own_at = length_at + 2
        if own_at + int.from_bytes(body[length_at:own_at], "big") != stop:
            raise ValueError(
                f"batch body: entry at {at} of size {size} is not the sum of its parts"
            )
        found.append((flag, body[body_at:length_at], body[own_at:stop]))
        at = stop
    if not found:
        raise ValueError("the batch holds no message")
    return found


def values_of(properties: bytes) -> tuple[bytes, bytes, bytes]:
    """The unique key, the keys and the tag in properties: of each the last that is not empty."""
    values = {b"UNIQ_KEY": b"", b"KEYS": b"", b"TAGS": b""}
    for pair in properties.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if value and name in values:
            values[name] = value
    return values[b"UNIQ_KEY"], values[b"KEYS"], values[b"TAGS"]


def _hash(value: int, text: bytes) -> int:
    """Java's hash of UTF-8, going on from that of what stands before it; 32 bits. What is no UTF-8
    counts as replaced, as Python does it."""
    return extended_hash(value, text.decode("utf-8", "replace"))


def _signed(value: int) -> int:
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def _absolute(value: int) -> int:
    # The one value whose absolute value is no int32 counts as 0.
    return -value & _INT_MAX if value & 0x8000_0000 else value


#: What a row is in a transaction, if anything: a half message, or what says that one is done with.
HALF, OP = 1, 2


class Row:
    """A record. That of a batch has no answer of its own: it counts as one-way. ``half_offset`` is
    what the op message of a transaction names."""

    __slots__ = (
        "half_offset",
        "hashes",
        "oneway",
        "opaque",
        "place",
        "queue",
        "queue_id",
        "queue_offset",
        "role",
        "size",
        "store_ms",
        "tag_code",
    )

    def __init__(
        self,
        queue: QueueState,
        queue_id: int,
        place: tuple[int, int, int],
        tag: bytes,
        keys: Sequence[bytes],
        opaque: int = 0,
        *,
        oneway: bool = True,
    ) -> None:
        self.queue: QueueState | None = queue
        self.queue_id = queue_id
        self.queue_offset = queue.next_offset
        self.place, self.size, self.store_ms = place
        self.opaque = opaque
        self.oneway = oneway
        self.role = 0
        self.half_offset = 0
        self.tag_code = _signed(_hash(0, tag))
        self.hashes = [_absolute(_hash(queue.topic_hash, key)) for key in keys]


def record_bytes(queue: QueueState, body: bytes, properties: bytes) -> int:
    """The size of a record."""
    return HEAD.size + len(body) + len(queue.topic_tail) + 2 + len(properties)


class Taking:
    """One call of :meth:`WriteBatch.append`: what holds for all of its frames, and where its next
    record goes."""

    __slots__ = ("born_host", "known", "limit", "position", "store_ms")

    def __init__(
        self,
        known: dict[bytes, list[Any]],
        born_host: bytes,
        position: int,
        limit: int,
        store_ms: int,
    ) -> None:
        self.known = known
        self.born_host = born_host
        self.position = position
        self.limit = limit
        self.store_ms = store_ms


def _walked_rows(rows: bytes, key_count: int, queue_count: int) -> list[tuple[int, ...]]:
    found = list(_WALKED_ROW.iter_unpack(rows))
    for _, _, number, _, _, _, _, at, count, _ in found:
        if not 0 <= number < queue_count or at < 0 or not 0 <= count <= key_count - at:
            raise ValueError("a row of another walk")
    return found


def _leaves_gap(queue: QueueState, slot: int, *, is_lacking: bool) -> bool:
    """Whether a queue would lack entries before a record. Of one that is not lacking and has
    nothing, nothing is known."""
    return slot > queue.next_offset and (is_lacking or queue.next_offset > 0)


def _has_entry(row: Row) -> bool:
    return row.queue is not None and row.queue_offset >= 0


class WriteBatch:
    """The plain sends and the batches of one turn, of all connections, in the order of the log.

    ``store_host`` are the 8 bytes that the records of sends hold, ``file_bytes`` is the length of a
    log file. ``size_bytes`` are those of all records.
    """

    def __init__(self, store_host: bytes, file_bytes: int) -> None:
        self._store_host = store_host
        self._file_bytes = file_bytes
        self._suffix = b""
        self._body_max_bytes = 0
        self._rows: list[Row] = []
        self.dispatched_count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def count(self) -> int:
        """Rows that were taken."""
        return len(self._rows)

    @property
    def end(self) -> int:
        """The physical offset behind the last record; 0 without one."""
        return self._rows[-1].place + self._rows[-1].size if self._rows else 0

    @property
    def last_ms(self) -> int:
        """The store time of the last row; 0 without one."""
        return self._rows[-1].store_ms if self._rows else 0

    def append(
        self,
        data: bytes,
        at: int,
        known: dict[bytes, list[Any]],
        born_host: bytes,
        suffix: bytes,
        body_max_bytes: int,
        position: int,
        limit: int,
        store_ms: int,
        rows_max: int,
        bytes_max: int,
    ) -> tuple[int, int, int, bytes]:
        """Take the plain sends of a connection, from ``data[at]`` on.

        ``known`` has the queues of topics by number, None for one that is not known. ``suffix`` is
        the property that the broker adds to each, ``body_max_bytes`` the largest body. Records
        begin at the physical offset ``position``, in a file that ends at ``limit``. At most
        ``rows_max`` rows are taken, and no more once their records have ``bytes_max``.

        Gives how many rows were taken, where the first frame begins that was not, why it was not
        (0: more bytes are needed or enough was taken; -1: the file is full; else how many frames
        from there on are odd), and the bytes of the records. Whatever it raises, it took nothing.
        """
        if not 0 <= at <= len(data) or len(born_host) != 8 or len(self._store_host) != 8:
            raise ValueError("a begin outside the data, or a host that has not 8 bytes")
        self._suffix = suffix
        self._body_max_bytes = body_max_bytes
        count = len(self._rows)
        try:
            taking = Taking(known, born_host, position, limit, store_ms)
            return self._append(data, at, taking, rows_max, bytes_max)
        except BaseException:
            self._release(count)
            del self._rows[count:]
            raise

    def _release(self, first: int) -> None:
        """Let the queue offsets of rows be given again."""
        for row in reversed(self._rows[first:]):
            if row.queue is not None:
                row.queue.next_offset = row.queue_offset
                if row.role:
                    self._let_go(row)
                row.queue = None

    def _append(
        self, data: bytes, at: int, taking: Taking, rows_max: int, bytes_max: int
    ) -> tuple[int, int, int, bytes]:
        packed: list[bytes] = []
        used = taken = state = 0
        while len(data) - at >= 8:
            total, word = _LENGTHS.unpack_from(data, at)
            if word >> 24 or total < 4 + word:
                state = 1
                break
            stop = at + 4 + total
            if stop > len(data) or taken == rows_max or used >= bytes_max:
                break
            body_at = at + 8 + word
            try:
                if stop - body_at > self._body_max_bytes:
                    raise Odd
                send = self._read(data[at + 8 : body_at], data[body_at:stop])
                if send.is_end or send.group is not None:
                    records = self._take_other(send, taking)
                else:
                    records = self._take(send, taking)
            except Odd:
                state = 1
                break
            if records is None:
                state = -1
                break
            packed.append(records)
            taken += 1
            used += len(records)
            taking.position += len(records)
            at = stop
        if state == 1:
            state = self._odd_frames(data, at)
        self.size_bytes += used
        return taken, at, state, b"".join(packed)

    def _take_other(self, send: Send, taking: Taking) -> bytes | None:
        """Take what is no plain send, as :meth:`_take` does; for who knows how."""
        raise Odd

    def _is_for_others(self) -> bool:
        """Whether :meth:`_take_other` may take something."""
        return False

    def _let_go(self, row: Row) -> None:
        """A row that has a role is taken back; for who gives one."""

    def _with_suffix(self, properties: bytes) -> bytes:
        return properties + b"\x02" + self._suffix if properties else self._suffix

    def _read(self, header: bytes, body: bytes) -> Send:
        """What a frame is, but for its topic."""
        send = Send(header, body)
        if not send.is_end and len(self._with_suffix(send.properties)) > PROPERTIES_MAX_BYTES:
            raise Odd
        return send

    def _odd_frames(self, data: bytes, at: int) -> int:
        """How many frames from ``data[at]`` on are surely not taken; the first counts as one."""
        count = 0
        while count < _ODD_MAX and len(data) - at >= 8:
            total, word = _LENGTHS.unpack_from(data, at)
            body_at, stop = at + 8 + (word & 0xFFFFFF), at + 4 + total
            if body_at > stop or stop > len(data):
                break
            if count and not word >> 24:
                try:
                    send = self._read(data[at + 8 : body_at], b"")
                except Odd:
                    pass
                else:
                    is_other = send.is_end or send.group is not None
                    if not is_other or self._is_for_others():
                        break
            count += 1
            at = stop
        return max(count, 1)

    def _take(self, send: Send, taking: Taking) -> bytes | None:
        """Take a send; gives its record, None when its file is full."""
        queue = self._queue_for(taking, send.fields[TOPIC], send.fields[QUEUE_ID])
        properties = self._with_suffix(send.properties)
        if not self._fits(taking, record_bytes(queue, send.body, properties)):
            return None
        record = self._pack(send, queue, properties, taking)
        self._rows.append(
            Row(
                queue,
                send.fields[QUEUE_ID],
                (taking.position, len(record), taking.store_ms),
                send.tag,
                send.keys,
                send.opaque,
                oneway=bool(send.frame_flag & 2),
            )
        )
        queue.next_offset += 1
        return record

    def _queue_for(self, taking: Taking, topic: bytes, queue_id: int) -> QueueState:
        """A known queue. Raises Odd when there is none."""
        queues = taking.known.get(topic, [])
        queue: QueueState | None = queues[queue_id] if queue_id < len(queues) else None
        if queue is None:
            raise Odd
        return queue

    def _fits(self, taking: Taking, size: int) -> bool:
        """Whether a record ends before its file does. Raises Odd when no file holds it."""
        if taking.position + size + _BLANK_BYTES <= taking.limit:
            return True
        if size + _BLANK_BYTES > self._file_bytes:
            raise Odd
        return False

    def _pack(self, send: Send, queue: QueueState, properties: bytes, taking: Taking) -> bytes:
        """The record of a send."""
        fields, body = send.fields, send.body
        tail = queue.topic_tail
        head = HEAD.pack(
            record_bytes(queue, body, properties), MAGIC_V1, crc32(body) & CRC_MASK,
            queue.queue_id, fields[FLAG], queue.next_offset, taking.position, fields[SYS_FLAG],
            fields[BORN_MS], taking.born_host, taking.store_ms, self._store_host,
            fields.get(RECONSUME_TIMES, 0), 0, len(body),
        )  # fmt: skip
        return b"".join((head, body, tail, len(properties).to_bytes(2, "big"), properties))

    def append_batch(
        self,
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
        body, ``properties`` follow those of each message: for a name in both they count. Records
        begin at the physical offset ``position``, in a file that ends at ``limit``.

        Gives how many bytes the records have, and these; none when they do not fit before
        ``limit``, and nothing was taken. Raises ValueError, with nothing taken, for a body that is
        none and for properties that no record holds.
        """
        separated = b"\x02" + properties if properties else b""
        messages = [
            (flag, text, own + (separated if own and own[-1] != 2 else properties))
            for flag, text, own in _check_batch(body)
        ]
        longest = max(len(text) for _, _, text in messages)
        if longest > PROPERTIES_MAX_BYTES:
            raise ValueError(
                f"properties of a message with those of its batch are {longest} bytes long, the "
                f"limit is {PROPERTIES_MAX_BYTES}"
            )
        tail = queue.topic_tail
        fixed_bytes = _FRONT.size + len(middle) + 4 + len(tail) + 2
        total = sum(fixed_bytes + len(text) + len(own) for _, text, own in messages)
        if position + total + _BLANK_BYTES > limit:
            return total, b""
        packed: list[bytes] = []
        for flag, text, own in messages:
            size = fixed_bytes + len(text) + len(own)
            packed += (
                _FRONT.pack(
                    size, MAGIC_V1, crc32(text) & CRC_MASK, queue.queue_id, flag,
                    queue.next_offset, position,
                ),
                middle, len(text).to_bytes(4, "big"), text, tail, len(own).to_bytes(2, "big"), own,
            )  # fmt: skip
            unique, keys, tag = values_of(own)
            row = Row(queue, queue.queue_id, (position, size, store_ms), tag, keys_of(unique, keys))
            if queue.delay_ms:
                row.tag_code = store_ms + queue.delay_ms
            self._rows.append(row)
            queue.next_offset += 1
            position += size
        self.size_bytes += total
        return total, b"".join(packed)

    def adopt(
        self,
        rows: bytes,
        hashes: bytes,
        queues: list[Any],
        base: int,
        first: int = 0,
        limit: int = _LONG_MAX,
        *,
        with_keys: bool = True,
        begins: list[int] | None = None,
        in_order: bool = False,
    ) -> int:
        """Take rows of a walk (walk.py) from row ``first`` on, whose records are in the log already
        and begin before the physical offset ``limit``; returns the row at which that ended.

        ``queues`` are those of the walk, None for one whose records are passed over; ``base`` is
        the physical offset of the first byte that was walked over. A record takes its place in its
        queue from the physical offset in ``begins`` on; one that takes none and has no keys to take
        is left out then. With ``in_order`` it ends at a row that is odd, or whose queue would get a
        gap, and ``next_offset`` of queues goes on. Raises ValueError for rows of another walk.
        """
        keys = array("I", hashes)
        found = _walked_rows(rows, len(keys), len(queues))
        if begins is not None and len(begins) != len(queues):
            raise ValueError("not as many begins as queues")
        first = min(max(first, 0), len(found))
        for row, walked in enumerate(found[first:], first):
            position, size, number, offset, code, store_ms, sys_flag, at, count, odd = walked
            place, queue = base + position, queues[number]
            if place >= limit or (in_order and odd):
                return row
            if queue is None:
                continue
            slot = -1 if sys_flag & _PREPARED_FLAG else offset
            is_lacking = begins is None or place >= begins[number]
            if in_order and _leaves_gap(queue, slot, is_lacking=is_lacking):
                return row
            slot = slot if is_lacking else -1
            if in_order and slot == queue.next_offset:
                queue.next_offset = slot + 1
            count = count if with_keys else 0
            if slot >= 0 or count or begins is None:
                taken = Row(queue, queue.queue_id, (place, size, store_ms), b"", ())
                taken.queue_offset, taken.tag_code = slot, code
                taken.hashes = list(keys[at : at + count])
                self._rows.append(taken)
                self.size_bytes += size
        return len(found)

    def pass_row(self) -> tuple[Any, int, int, int, int, int, tuple[str, ...]] | None:
        """The row that :meth:`dispatch` stopped at, as the dispatcher knows it, without keys; it
        counts as dispatched. None when its queue went away."""
        row = self._rows[self.dispatched_count]
        self.dispatched_count += 1
        if row.queue is None:
            return None
        return row.queue, row.queue_offset, row.place, row.size, row.tag_code, row.store_ms, ()

    def dispatch(self) -> tuple[dict[Any, tuple[int, int]], list[Any], bool]:
        """Put the entries of rows that were not dispatched yet into their queues.

        Gives the messages and bytes of each queue, the queues that are dirty since, and whether
        all rows were in order: the first that is not behind the entries of its queue ends it.
        """
        grown: dict[Any, tuple[int, int]] = {}
        soiled: list[Any] = []
        for row in self._rows[self.dispatched_count :]:
            queue = row.queue
            if queue is not None:
                takes_slot = row.queue_offset >= 0
                if takes_slot and row.queue_offset != queue.max_offset:
                    return grown, soiled, False
                if takes_slot:
                    queue.tail += _ENTRY.pack(row.place, row.size, row.tag_code)
                    queue.max_offset += 1
                count, size_bytes = grown.get(queue, (0, 0))
                grown[queue] = count + 1, size_bytes + row.size
                if takes_slot and not queue.is_dirty:
                    queue.is_dirty = True
                    soiled.append(queue)
            self.dispatched_count += 1
        return grown, soiled, True

    def rows_from(self, first: int) -> list[tuple[Any, int, int, int, int, int, tuple[str, ...]]]:
        """Rows as the dispatcher knows them (store/dispatch.py), without keys."""
        return [
            (row.queue, row.queue_offset, row.place, row.size, row.tag_code, row.store_ms, ())
            for row in self._rows[max(first, 0) :]
            if row.queue is not None
        ]

    def entry_queues(self) -> list[Any]:
        """The queues that rows belong to, each once, in the order of their first rows."""
        return list(dict.fromkeys(row.queue for row in self._rows if _has_entry(row)))

    def entry_rows(self) -> bytes:
        """The rows of the journal, which name queues by their ``number``."""
        return b"".join(
            [
                _JOURNAL_ROW.pack(
                    row.queue.number, row.queue_offset, row.place, row.size, row.tag_code
                )
                for row in self._rows
                if row.queue is not None and _has_entry(row)
            ]
        )

    def index_columns(self) -> tuple[bytes, bytes, bytes]:
        """Hashes, physical offsets and store times of all keys, each as native int64."""
        rows = [row for row in self._rows if row.queue is not None]
        return (
            array("q", [value for row in rows for value in row.hashes]).tobytes(),
            array("q", [row.place for row in rows for _ in row.hashes]).tobytes(),
            array("q", [row.store_ms for row in rows for _ in row.hashes]).tobytes(),
        )

    def drop(self, queues: Collection[Any]) -> None:
        """Forget the rows of queues that go away; they are answered still."""
        for row in self._rows:
            if row.queue in queues:
                row.queue = None

    def take_back(self) -> None:
        """Nothing of this was stored: its queue offsets are given again."""
        self._release(0)

    def answers(self, first: int, stop: int, pieces: tuple[bytes, ...]) -> bytes:
        """The answers of rows that were stored, in order, with the lengths of their frames.

        ``pieces`` stand before the physical offset in hex, the queue, the queue offset and the
        opaque, and behind that; the last one before the opaque of the end of a transaction.
        """
        if not 0 <= first <= stop <= len(self._rows):
            raise IndexError("no such rows")
        head, queue_id, offset, opaque, tail, done = pieces
        found: list[bytes] = []
        for row in self._rows[first:stop]:
            if row.oneway:
                continue
            if row.role == OP:
                answer = b"%b%d%b" % (done, row.opaque, tail)
            else:
                answer = b"%b%016X%b%d%b%d%b%d%b" % (
                    head, row.place, queue_id, row.queue_id, offset, row.queue_offset, opaque,
                    row.opaque, tail,
                )  # fmt: skip
            found.append(_LENGTHS.pack(len(answer) + 4, len(answer)) + answer)
        return b"".join(found)

    def opaques(self, first: int, stop: int) -> list[tuple[int, bool, int, int, int, bool]]:
        """For each row the opaque of its request, whether that wants no answer, its queue, its
        queue offset, its physical offset, and whether it is of the end of a transaction."""
        if not 0 <= first <= stop <= len(self._rows):
            raise IndexError("no such rows")
        return [
            (
                row.opaque,
                row.oneway,
                row.queue_id,
                row.queue_offset,
                row.place,
                row.role == OP,
            )
            for row in self._rows[first:stop]
        ]

    def places(self, first: int, stop: int) -> list[int]:
        """The physical offsets of rows."""
        if not 0 <= first <= stop <= len(self._rows):
            raise IndexError("no such rows")
        return [row.place for row in self._rows[first:stop]]

    def message_ids(self, first: int, stop: int, host: bytes) -> bytes:
        """The ids of the messages of rows, joined by commas; ``host`` is the store host in hex."""
        return b",".join([b"%b%016X" % (host, place) for place in self.places(first, stop)])


def put_keys(
    slots: Any,
    hashes: Sequence[int],
    places: Sequence[int],
    times_ms: Sequence[int],
    begin_ms: int,
    first: int,
) -> tuple[bytes, int]:
    """Entries of keys for an index file that begins at ``begin_ms``, numbered from ``first`` on,
    and how many slots were empty before. ``slots`` (native int32) point to them afterwards; the
    columns are native int64."""
    count, used = len(hashes), 0
    if len(places) != count or len(times_ms) != count or not len(slots):
        raise ValueError("columns of different lengths, or no slots")
    entries: list[bytes] = []
    for number, (value, place, ms) in enumerate(zip(hashes, places, times_ms, strict=True)):
        slot = value % len(slots)
        seconds = min(max((ms - begin_ms) // 1000, 0), _INT_MAX)
        entries.append(_INDEX_ENTRY.pack(value, place, seconds, slots[slot]))
        used += not slots[slot]
        slots[slot] = first + number
    return b"".join(entries), used
