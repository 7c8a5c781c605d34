"""Plain sends, single ones and batches: from the frames of clients to records, and their answers.

This is the definition; compiled/sends.pyx does the same, byte for byte. A send is plain if all of
the following is true; every other frame is odd and is handled individually:

- its header is plain (headers.py) and its code is 10, 310 or 320; its strings are ASCII without
  escapes, except for the topic (UTF-8) and the properties (UTF-8 with escapes, without surrogates);
- its properties are pairs with a name and a value; properties that control storage occur at most
  once, and none requests a delay, a timer, a transaction, or an answer before the flush (WAIT);
- its topic and queue are known, and its body and properties are within the limits;
- a batch (320) has a valid body (batches.py), and its topic belongs to no consumer group.

This module also parses prepared sends and ends of transactions; plain/transactions.py stores them.

:func:`send_answers` writes the answers directly to their sockets if possible. An :class:`Outlet` is
the socket of a connection. The caller writes the answers of a connection without an outlet, and the
bytes that a socket does not accept at once. Plain Python leaves all writes to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from cometmq.speedups.plain.batches import append_messages, read_messages
from cometmq.speedups.plain.headers import (
    ESCAPED_TEXT,
    FALSE,
    LENGTHS,
    LONG_NUMBER,
    NUMBER,
    ODD_MAX,
    TEXT,
    TRUTH,
    WIDE_TEXT,
    Form,
    Odd,
    read_header,
)
from cometmq.speedups.plain.properties import PROPERTIES_MAX_BYTES, keys_of
from cometmq.speedups.plain.records import BLANK_BYTES, HEAD, MAGIC_V1, PREPARED, stored_crc
from cometmq.speedups.plain.writebatch import KnownQueues, QueueState, Row, WriteBatch

if TYPE_CHECKING:
    from cometmq.speedups.plain.access import AccessCache

_TEXT_MAX_BYTES: Final = 65_536
_KEYS_MAX: Final = 64
_ONEWAY: Final = 2
#: Bits of sysFlag that make a send odd: ended transactions and IPv6 hosts.
_ODD_FLAGS: Final = 0x38
_SEND_BATCH: Final = 320
_END_TRANSACTION: Final = 37
#: A batch with a longer body, or with records that take more, is odd.
_BATCH_BODY_MAX_BYTES: Final = 1 << 18
_BATCH_MAX_BYTES: Final = 1 << 20
_COMMIT, _ROLLBACK = 8, 12

_ID_MARK: Final = b"UNIQ_KEY\x01"
#: The part of a record between its physical offset and the length of its body.
_MIDDLE: Final = Struct(">iq8sq8siq")

_ESCAPE: Final = re.compile(rb'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPED: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}

#: Field numbers in a send, and in the end of a transaction.
TOPIC, QUEUE_ID, SYS_FLAG, BORN_MS, FLAG, PROPERTIES, RECONSUME_TIMES = (
    1, 4, 5, 6, 7, 8, 9,
)  # fmt: skip
END_GROUP, END_HALF_OFFSET, END_PLACE, END_KIND, _END_MESSAGE_ID = range(5)
_SENT: Final = {
    b"producerGroup": TEXT, b"topic": WIDE_TEXT, b"defaultTopic": TEXT,
    b"defaultTopicQueueNums": NUMBER, b"queueId": NUMBER, b"sysFlag": NUMBER,
    b"bornTimestamp": LONG_NUMBER, b"flag": NUMBER, b"properties": ESCAPED_TEXT,
    b"reconsumeTimes": NUMBER, b"unitMode": TRUTH, b"maxReconsumeTimes": NUMBER, b"batch": FALSE,
    b"bname": TEXT,
}  # fmt: skip
_ENDED: Final = {
    b"producerGroup": TEXT, b"tranStateTableOffset": LONG_NUMBER, b"commitLogOffset": LONG_NUMBER,
    b"commitOrRollback": NUMBER, b"msgId": TEXT, b"fromTransactionCheck": TRUTH,
}  # fmt: skip
_LETTERS: Final = {b"%c" % (97 + number): holds for number, holds in enumerate(_SENT.values())}
_FORMS: Final = {
    10: Form(_SENT, required=8),
    310: Form(_LETTERS, required=8),
    _SEND_BATCH: Form(_LETTERS | {b"m": TRUTH}, required=8),
    _END_TRANSACTION: Form(_ENDED, required=5),
}


class Send:
    """A parsed send or end of a transaction. Raises Odd for a frame that is not plain.

    ``group`` is the producer group of a prepared send, None for other frames. ``fields`` is indexed
    by the field numbers above.
    """

    __slots__ = (
        "_header",
        "body",
        "fields",
        "group",
        "is_batch",
        "is_end",
        "is_fifo",
        "keys",
        "oneway",
        "opaque",
        "properties",
        "tag",
    )

    def __init__(self, header: bytes, body: bytes) -> None:
        self._header = said = read_header(header, _FORMS)
        self.body = body
        self.fields = fields = said.fields
        self.opaque = said.opaque
        self.oneway = bool(said.flag & _ONEWAY)
        self.is_end = said.code == _END_TRANSACTION
        self.is_batch = said.code == _SEND_BATCH
        self.properties, self.tag = b"", b""
        self.is_fifo = False
        self.keys: list[bytes] = []
        self.group: bytes | None = None
        if said.flag & 1:
            raise Odd
        if not self.is_end:
            if not fields[TOPIC] or fields[SYS_FLAG] & _ODD_FLAGS:
                raise Odd
            self._read_properties(_unescaped(fields[PROPERTIES] or b""))
            return
        is_known = fields[END_KIND] in (_COMMIT, _ROLLBACK)
        if not is_known or not fields[END_GROUP] or not fields[_END_MESSAGE_ID]:
            raise Odd

    def is_permitted(self, access: AccessCache) -> bool:
        """Return whether access control certainly allows the frame."""
        code, texts = self._header.code, self._header.all_fields
        values = texts and {
            name: _unescaped(text) if b"\\" in text else text for name, text in texts.items()
        }
        topic = b"" if self.is_end else self.fields[TOPIC]
        return access.permits(code, values, self.body, topic, b"")

    def _read_properties(self, text: bytes) -> None:
        self.properties, special = _scan_properties(text)
        self.tag = special.get(b"TAGS", b"")
        self.is_fifo = b"__SHARDINGKEY" in special
        self.keys = keys_of(special.get(b"UNIQ_KEY", b""), special.get(b"KEYS", b""))
        if len(self.keys) > _KEYS_MAX:
            raise Odd
        if self.is_batch:
            if self.fields[SYS_FLAG] & PREPARED or b"TRAN_MSG" in special:
                raise Odd
            if self.fields[TOPIC].startswith(b"%"):
                raise Odd
        elif b"TRAN_MSG" in special:
            if special.keys() & _BOUND_NAMES:
                raise Odd
            self.group = special.get(b"PGROUP", b"")
        elif self.fields[SYS_FLAG] & PREPARED:
            raise Odd


def _unescaped(value: bytes) -> bytes:
    """Return a property text with its JSON escapes resolved. Raises Odd."""
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


#: Properties that control how a message is stored or found.
_SPECIAL_NAMES: Final = frozenset((b"WAIT", b"TAGS", b"KEYS", b"UNIQ_KEY", b"TRAN_MSG"))
#: Properties that make a prepared send odd; the empty name marks a second producer group.
_BOUND_NAMES: Final = frozenset(
    (b"REAL_TOPIC", b"REAL_QID", b"CHECK_IMMUNITY_TIME_IN_SECONDS", b"")
)


def _scan_properties(text: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the properties to store, and all properties by name. Raises Odd.

    If there are two PGROUP, which makes a prepared send odd, the name "" is in the dict too.
    """
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


def record_bytes(queue: QueueState, body: bytes, properties: bytes) -> int:
    """Return the size of a record in bytes."""
    return HEAD.size + len(body) + len(queue.topic_tail) + 2 + len(properties)


class Taking:
    """State of one call of :meth:`SendBatch.append`: common values and the next physical offset."""

    __slots__ = ("access", "born_host", "known", "limit", "position", "store_ms")

    def __init__(
        self,
        known: KnownQueues,
        born_host: bytes,
        position: int,
        limit: int,
        store_ms: int,
        access: AccessCache | None = None,
    ) -> None:
        self.access = access
        self.known = known
        self.born_host = born_host
        self.position = position
        self.limit = limit
        self.store_ms = store_ms


class SendBatch(WriteBatch):
    """A write batch that accepts plain sends.

    ``store_host`` is the 8-byte host that the records store; ``file_bytes`` is the size of a log
    file.
    """

    def __init__(self, store_host: bytes, file_bytes: int) -> None:
        super().__init__()
        self._store_host = store_host
        self._file_bytes = file_bytes
        self._suffix = b""
        self._body_max_bytes = 0

    def append(
        self,
        data: bytes,
        at: int,
        known: KnownQueues,
        born_host: bytes,
        suffix: bytes,
        body_max_bytes: int,
        position: int,
        limit: int,
        store_ms: int,
        rows_max: int,
        bytes_max: int,
        access: AccessCache | None = None,
    ) -> tuple[int, int, int, bytes]:
        """Append the plain sends of a connection, starting at ``data[at]``.

        ``known`` has the queues that may be appended to. ``suffix`` is the property text that the
        broker adds to each message, ``body_max_bytes`` the maximum body size. Records start at
        physical offset ``position`` in a log file that ends at ``limit``. The call stops after
        ``rows_max`` sends, or once the records reach ``bytes_max`` bytes. With ``access``, a send
        that is not certainly allowed is odd.

        Returns the number of sends taken, the position of the first frame that was not taken, the
        reason (0: more data is needed or a maximum was reached; -1: the log file is full; otherwise
        the number of consecutive odd frames), and the bytes of the records. If the call raises,
        nothing was appended.
        """
        if len(born_host) != 8 or len(self._store_host) != 8:
            raise ValueError("a host that has not 8 bytes")
        if not 0 <= at <= len(data):
            raise ValueError("a begin outside the data")
        self._suffix = suffix
        self._body_max_bytes = body_max_bytes
        count = len(self.rows)
        try:
            taking = Taking(known, born_host, position, limit, store_ms, access)
            return self._append(data, at, taking, rows_max, bytes_max)
        except BaseException:
            self.release(count)
            del self.rows[count:]
            raise

    def _append(
        self, data: bytes, at: int, taking: Taking, rows_max: int, bytes_max: int
    ) -> tuple[int, int, int, bytes]:
        packed: list[bytes] = []
        used = taken = state = 0
        while len(data) - at >= 8:
            total, word = LENGTHS.unpack_from(data, at)
            # A binary header or an invalid length is left to the general frame reader.
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
                send = self._read(data[at + 8 : body_at], data[body_at:stop], taking.access)
                if send.is_end or send.group is not None:
                    records = self._take_other(send, taking)
                elif send.is_batch:
                    records = self._take_batch(send, taking)
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
        """Append a prepared send or an end of a transaction, as :meth:`_take` does.

        Subclasses override this; the base class raises Odd.
        """
        raise Odd

    def _is_for_others(self) -> bool:
        """Return whether :meth:`_take_other` accepts any frames."""
        return False

    def _with_suffix(self, properties: bytes) -> bytes:
        return properties + b"\x02" + self._suffix if properties else self._suffix

    def _read(self, header: bytes, body: bytes, access: AccessCache | None = None) -> Send:
        """Parse a frame, without looking up its topic. Raises Odd."""
        send = Send(header, body)
        if access is not None and not send.is_permitted(access):
            raise Odd
        if not send.is_end and len(self._with_suffix(send.properties)) > PROPERTIES_MAX_BYTES:
            raise Odd
        return send

    def _odd_frames(self, data: bytes, at: int) -> int:
        """Return how many consecutive frames from ``data[at]`` on are certainly odd, at least 1.

        Counting several at once saves the caller a failed attempt for each of them.
        """
        count = 0
        while count < ODD_MAX and len(data) - at >= 8:
            total, word = LENGTHS.unpack_from(data, at)
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
        """Append a send and return its record; None if the log file is full. Raises Odd."""
        queue = self._queue_for(taking, send.fields[TOPIC], send.fields[QUEUE_ID])
        properties = self._with_suffix(send.properties)
        if not self._fits(taking, record_bytes(queue, send.body, properties)):
            return None
        record = self._add(send, queue, properties, taking)
        if send.is_fifo:
            queue.fifo_count += 1
            queue.fifo_bytes += len(record)
        return record

    def _take_batch(self, send: Send, taking: Taking) -> bytes | None:
        """Append the messages of a batch, as :meth:`_take` does a send. Raises Odd."""
        if len(send.body) > _BATCH_BODY_MAX_BYTES:
            raise Odd
        fields = send.fields
        queue = self._queue_for(taking, fields[TOPIC], fields[QUEUE_ID])
        middle = _MIDDLE.pack(
            fields[SYS_FLAG], fields[BORN_MS], taking.born_host, taking.store_ms, self._store_host,
            fields[RECONSUME_TIMES] or 0, 0,
        )  # fmt: skip
        properties = send.properties
        if _ID_MARK in send.body[: int.from_bytes(send.body[:4], "big")]:
            # RocketMQ 5's client also sets a unique key on the batch; leave it out, because the
            # messages have their own.
            pairs = properties.split(b"\x02")
            properties = b"\x02".join([pair for pair in pairs if not pair.startswith(_ID_MARK)])
        try:
            messages = read_messages(send.body, queue, middle, self._with_suffix(properties))
        except ValueError:
            raise Odd from None
        total = sum([size for _, _, _, size in messages])
        if total > _BATCH_MAX_BYTES:
            raise Odd
        if not self._fits(taking, total):
            return None
        first = len(self.rows)
        place = taking.position, taking.store_ms
        packed = append_messages(self, messages, queue, middle, place)
        row = self.rows[first]
        row.opaque, row.oneway, row.members = send.opaque, send.oneway, len(messages)
        return packed

    def _queue_for(self, taking: Taking, topic: bytes, queue_id: int) -> QueueState:
        """Return a known queue. Raises Odd if there is none."""
        queue = taking.known.get(topic, queue_id)
        if queue is None:
            raise Odd
        return queue

    def _fits(self, taking: Taking, size: int) -> bool:
        """Return whether a record fits into the current log file. Raises Odd if no file can hold
        it."""
        if taking.position + size + BLANK_BYTES <= taking.limit:
            return True
        if size + BLANK_BYTES > self._file_bytes:
            raise Odd
        return False

    def _add(self, send: Send, queue: QueueState, properties: bytes, taking: Taking) -> bytes:
        """Add the row of a send and return its record."""
        fields, body = send.fields, send.body
        tail = queue.topic_tail
        head = HEAD.pack(
            record_bytes(queue, body, properties), MAGIC_V1, stored_crc(body),
            queue.queue_id, fields[FLAG], queue.next_offset, taking.position, fields[SYS_FLAG],
            fields[BORN_MS], taking.born_host, taking.store_ms, self._store_host,
            fields[RECONSUME_TIMES] or 0, 0, len(body),
        )  # fmt: skip
        record = b"".join((head, body, tail, len(properties).to_bytes(2, "big"), properties))
        row = Row(
            queue, fields[QUEUE_ID], (taking.position, len(record), taking.store_ms), send.tag,
            send.keys, send.opaque, oneway=send.oneway,
        )  # fmt: skip
        self.rows.append(row)
        queue.next_offset += 1
        return record


class Outlet:
    """The socket of a connection.

    ``handle`` is the file descriptor, or -1 if only the transport may write to the socket.
    ``queued`` holds data that must be sent first. ``unsent_bytes`` returns the size of the
    transport's write buffer; it raises RuntimeError if the socket is closed.
    """

    __slots__ = ("handle", "queued", "unsent_bytes")

    def __init__(
        self, handle: int, queued: list[bytes | memoryview], unsent_bytes: Callable[[], int]
    ) -> None:
        self.handle = handle
        self.queued = queued
        self.unsent_bytes = unsent_bytes


class HasOutlet(Protocol):
    """A connection. Without an outlet, the caller writes all of its answers."""

    @property
    def outlet(self) -> Outlet | None: ...


C = TypeVar("C", bound=HasOutlet)


def send_answers(
    rows: Sequence[tuple[C, WriteBatch, int, int]], pieces: tuple[bytes, ...]
) -> list[tuple[C, bytes]]:
    """Send the answers of stored rows, as far as their sockets accept them at once.

    Each item of ``rows`` holds a connection, its write batch, the first row, and the row after the
    last. ``pieces`` are the pieces of :meth:`WriteBatch.answers`.

    Returns the bytes that the caller still has to write, at most one item for each connection. This
    implementation sends nothing and returns all bytes.
    """
    found: dict[C, bytes] = {}
    # The answers of a connection are joined, so that it is written to once.
    for owner, batch, first, stop in rows:
        found[owner] = found.get(owner, b"") + batch.answers(first, stop, pieces)
    return [(owner, data) for owner, data in found.items() if data]
