"""Prepared sends and ends of transactions in the write batch of plain sends.

This is the definition; compiled/transactions.pyx does the same, byte for byte. plain/sends.py
parses the frames. A prepared send is plain if it differs from a plain send only by TRAN_MSG=true
and its group; broker/transactions/halfindex.py describes how it is stored.

The end of a transaction is plain if it commits or rolls back an open transaction that is not ending
yet, if its group and physical offset are right, and if the record of the half message is valid and
lies in the part of the log that the caller passes. Every other end is odd and handled individually.
So is a commit whose two records would not fit into one log file.

    commit     appends a copy of the half message to the real topic, then an op message
    rollback   appends the op message only

An op message closes the transaction of a half message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cometmq.speedups.plain.headers import Odd
from cometmq.speedups.plain.properties import PROPERTIES_MAX_BYTES, find_named, keys_of
from cometmq.speedups.plain.records import (
    HEAD,
    MAGIC_V1,
    TRANSACTION_MASK,
    find_whole,
    stored_crc,
)
from cometmq.speedups.plain.sends import (
    END_GROUP,
    END_HALF_OFFSET,
    END_KIND,
    END_PLACE,
    QUEUE_ID,
    SYS_FLAG,
    TOPIC,
    Send,
    SendBatch,
    Taking,
    record_bytes,
)
from cometmq.speedups.plain.writebatch import HALF, OP, QueueState, Row

if TYPE_CHECKING:
    from cometmq.speedups.plain.access import AccessCache
    from cometmq.speedups.plain.writebatch import KnownQueues

_COMMIT: Final = 8
_HOST_BITS: Final = 0x30
_QUEUE_DIGITS_MAX: Final = 9
_DONE: Final = b"TAGS\x01d"
#: Indexes of the HEAD fields that differ between a half message and its copy, and of the CRC.
_SIZE, _CRC, _QUEUE_ID, _QUEUE_OFFSET, _PLACE, _SYS_FLAG = 0, 2, 3, 5, 6, 7
_STORE_MS, _STORE_HOST, _PREPARED_OFFSET = 10, 11, 13


class Half:
    """An open transaction, with the physical offset of its half message.

    ``checks`` counts the checks so far; none is sent within ``immunity_ms`` of the send.
    ``stored_ms`` is wall-clock time; ``due_ms``, the time of the next check, is monotonic.
    ``ending`` is true while the end of the transaction is being stored.
    """

    __slots__ = (
        "checks",
        "due_ms",
        "ending",
        "group",
        "immunity_ms",
        "physical_offset",
        "stored_ms",
    )

    def __init__(
        self, physical_offset: int, group: str, stored_ms: int, immunity_ms: int, checks: int = 0
    ) -> None:
        self.physical_offset = physical_offset
        self.group = group
        self.stored_ms = stored_ms
        self.immunity_ms = immunity_ms
        self.checks = checks
        self.due_ms = 0
        self.ending = False


class OpenTransactions:
    """Open transactions in ascending order of their half offsets, and the queues that store them.

    A half offset is the queue offset of a half message. While ``half_queue`` or ``op_queue`` is
    None, that queue is unknown, and the frames that need it are odd. New half messages get
    ``immunity_ms`` and ``due_ms``. Half messages from ``planned_end`` on have no timer yet.
    """

    def __init__(self) -> None:
        self.halves: dict[int, Half] = {}
        self.half_queue: QueueState | None = None
        self.op_queue: QueueState | None = None
        self.immunity_ms = 0
        self.due_ms = 0
        self.planned_end = 0


class _HalfRecord:
    """The head, body and properties of a half message in the log."""

    __slots__ = ("body", "head", "properties")

    def __init__(self, head: tuple[Any, ...], body: bytes, properties: bytes) -> None:
        self.head = head
        self.body = body
        self.properties = properties


class TransactionBatch(SendBatch):
    """A write batch that also accepts transactions. ``end_count`` is the number of ends in it."""

    def __init__(self, store_host: bytes, file_bytes: int) -> None:
        super().__init__(store_host, file_bytes)
        self._open: OpenTransactions | None = None
        self._admits = False
        self._log: tuple[Any, int, int, int] | None = None
        self.end_count = 0

    def append_all(
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
        transactions: OpenTransactions | None,
        log: tuple[Any, int, int, int] | None,
        access: AccessCache | None = None,
    ) -> tuple[int, int, int, bytes]:
        """Append plain frames as :meth:`append` does; with ``transactions`` also those of theirs.

        ``log`` is the part of the log in memory: a buffer, the physical offset of its first byte,
        and the physical offsets between which records may be read. Raises ValueError if the batch
        already holds another broker's transactions.
        """
        if transactions is not None:
            if self._open is not None and self._open is not transactions:
                raise ValueError("the transactions of another broker")
            self._open, self._log, self._admits = transactions, log, True
        try:
            return self.append(
                data, at, known, born_host, suffix, body_max_bytes, position, limit, store_ms,
                rows_max, bytes_max, access,
            )  # fmt: skip
        finally:
            self._log, self._admits = None, False

    def settle(self, first: int, stop: int, *, stored: bool) -> tuple[int, list[int]]:
        """Close or reopen the transactions that these rows end.

        With ``stored`` true the transactions are closed; otherwise they remain open.

        Returns the queue offset of the first op message, or -1 without one, and the half offsets
        that the op messages name. Op messages have consecutive queue offsets.
        """
        if not 0 <= first <= stop <= len(self.rows):
            raise IndexError("no such rows")
        rows = [row for row in self.rows[first:stop] if row.role == OP]
        for row in rows:
            half = self._halves.get(row.half_offset)
            if half is not None and stored:
                del self._halves[row.half_offset]
            elif half is not None:
                half.ending = False
        return rows[0].queue_offset if rows else -1, [row.half_offset for row in rows]

    @property
    def _halves(self) -> dict[int, Half]:
        return self._open.halves if self._open is not None else {}

    def _is_for_others(self) -> bool:
        return self._admits

    def _take_other(self, send: Send, taking: Taking) -> bytes | None:
        if not self._admits or self._open is None:
            raise Odd
        if send.is_end:
            return self._end(send, taking, self._open)
        return self._prepare(send, taking, self._open)

    def _prepare(self, send: Send, taking: Taking, known: OpenTransactions) -> bytes | None:
        """Append a prepared send to the half topic and return its record; None if the file is
        full."""
        topic, queue_id, queue = send.fields[TOPIC], send.fields[QUEUE_ID], known.half_queue
        if queue is None:
            raise Odd
        self._queue_for(taking, topic, queue_id)
        place = b"\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d" % (topic, queue_id)
        properties = send.properties + place
        if self._suffix:
            properties += b"\x02" + self._suffix
        if len(properties) > PROPERTIES_MAX_BYTES:
            raise Odd
        if not self._fits(taking, record_bytes(queue, send.body, properties)):
            return None
        send.fields[SYS_FLAG] &= ~TRANSACTION_MASK
        record = self._add(send, queue, properties, taking)
        row = self.rows[-1]
        row.role = HALF
        group = (send.group or b"").decode()
        half = Half(taking.position, group, taking.store_ms, known.immunity_ms)
        half.due_ms = known.due_ms
        known.halves[row.queue_offset] = half
        known.planned_end = min(known.planned_end, row.queue_offset)
        return record

    def _end(self, send: Send, taking: Taking, known: OpenTransactions) -> bytes | None:
        """Append the copy of the half message, for a commit, and the op message.

        Returns their records; None if the log file is full. Raises Odd.
        """
        fields, ops, waiting = send.fields, known.op_queue, known.half_queue
        half_offset: int = fields[END_HALF_OFFSET]
        half = known.halves.get(half_offset)
        if ops is None or waiting is None or send.body or half is None or half.ending:
            raise Odd
        if half.physical_offset != fields[END_PLACE] or half.group.encode() != fields[END_GROUP]:
            raise Odd
        found = self._find_half(half, half_offset, waiting)
        body = b"%d" % half_offset
        op_bytes = record_bytes(ops, body, _DONE)
        copy = b""
        if fields[END_KIND] == _COMMIT:
            topic, queue_id = _place_in(found.properties)
            queue = self._queue_for(taking, topic, queue_id)
            if queue.delay_ms:
                raise Odd
            copy_bytes = record_bytes(queue, found.body, found.properties)
            if not self._fits(taking, copy_bytes):
                return None
            after = Taking(taking.known, b"", taking.position + copy_bytes, taking.limit, 0)
            if not self._fits(after, op_bytes):
                # The op message would go to the next log file.
                raise Odd
            copy = self._copy(found, queue, taking)
        elif not self._fits(taking, op_bytes):
            return None
        place = taking.position + len(copy)
        head = HEAD.pack(
            op_bytes, MAGIC_V1, stored_crc(body), ops.queue_id, 0, ops.next_offset, place, 0,
            taking.store_ms, self._store_host, taking.store_ms, self._store_host, 0, 0, len(body),
        )  # fmt: skip
        row = Row(
            ops, ops.queue_id, (place, op_bytes, taking.store_ms), b"d", (), send.opaque,
            oneway=send.oneway,
        )  # fmt: skip
        row.role, row.half_offset = OP, half_offset
        self.rows.append(row)
        ops.next_offset += 1
        half.ending = True
        self.end_count += 1
        size = len(_DONE).to_bytes(2, "big")
        return b"".join((copy, head, body, ops.topic_tail, size, _DONE))

    def _find_half(self, half: Half, half_offset: int, waiting: QueueState) -> _HalfRecord:
        """Return the record of a half message. Raises Odd unless it is in memory and valid."""
        if self._log is None:
            raise Odd
        view, base, begin, end = self._log
        place, end = half.physical_offset, min(end, base + len(view))
        if place < max(begin, base):
            raise Odd
        found = find_whole(view, place - base, end - base)
        if found is None:
            raise Odd
        parts, stop = found
        head = HEAD.unpack_from(view, place - base)
        body = bytes(view[parts.body : parts.body_end])
        properties = bytes(view[parts.topic_end + 2 : stop])
        if (
            head[1] != MAGIC_V1
            or (head[_QUEUE_OFFSET], head[_PLACE]) != (half_offset, place)
            or head[_SYS_FLAG] & _HOST_BITS
            or len(properties) > PROPERTIES_MAX_BYTES
            or view[parts.topic : parts.topic_end] != waiting.topic_tail[1:]
            or stored_crc(body) != head[_CRC]
        ):
            raise Odd
        return _HalfRecord(head, body, properties)

    def _copy(self, found: _HalfRecord, queue: QueueState, taking: Taking) -> bytes:
        """Add the row of a half message's copy for consumers, and return its record."""
        body, properties = found.body, found.properties
        fields = [*found.head]
        fields[_SIZE] = size = record_bytes(queue, body, properties)
        fields[_QUEUE_ID], fields[_QUEUE_OFFSET] = queue.queue_id, queue.next_offset
        fields[_PREPARED_OFFSET], fields[_PLACE] = fields[_PLACE], taking.position
        fields[_SYS_FLAG] = fields[_SYS_FLAG] & ~TRANSACTION_MASK | _COMMIT
        fields[_STORE_MS], fields[_STORE_HOST] = taking.store_ms, self._store_host
        unique, keys, tag, _ = find_named(properties)
        place = taking.position, size, taking.store_ms
        self.rows.append(Row(queue, queue.queue_id, place, tag, keys_of(unique, keys)))
        queue.next_offset += 1
        length = len(properties).to_bytes(2, "big")
        return b"".join((HEAD.pack(*fields), body, queue.topic_tail, length, properties))

    def let_go(self, row: Row) -> None:
        """Undo the effect of a half message or an op message on its transaction."""
        if row.role == OP:
            half = self._halves.get(row.half_offset)
            if half is not None:
                half.ending = False
            return
        half = self._halves.get(row.queue_offset)
        if half is not None and half.physical_offset == row.place:
            del self._halves[row.queue_offset]


def _place_in(properties: bytes) -> tuple[bytes, int]:
    """Return the real topic and queue id of a half message. Raises Odd for timer messages.

    Also raises Odd if the topic is missing or the queue id is invalid.
    """
    if b"TIMER_DE" in properties:
        raise Odd
    values: Mapping[bytes, bytes] = {
        name: value
        for name, _, value in (pair.partition(b"\x01") for pair in properties.split(b"\x02"))
        if value
    }
    topic, queue_id = values.get(b"REAL_TOPIC", b""), values.get(b"REAL_QID", b"0")
    if not topic or not queue_id.isdigit() or len(queue_id) > _QUEUE_DIGITS_MAX:
        raise Odd
    return topic, int(queue_id)
