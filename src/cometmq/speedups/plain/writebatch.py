"""The write batch: a row for each appended record, from which queue entries, index keys and answers
are made; and the table of queues to which plain sends may be appended.

This is the definition; compiled/writebatch.pyx does the same, byte for byte. (Its table may leave
out a queue for which it has no room.) sends.py, batches.py and transactions.py append rows;
:meth:`WriteBatch.adopt` takes rows of a walk. store/layout.py describes the layout of a queue
entry, store/queue/journal.py that of a journal row.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from struct import Struct
from typing import Any, Final

from cometmq.speedups.plain.hashing import absolute, signed, text_hash
from cometmq.speedups.plain.headers import LENGTHS
from cometmq.speedups.plain.records import ENTRY, PREPARED

_JOURNAL_ROW: Final = Struct(">Qqqiq")
_WALKED_ROW: Final = Struct("=10q32x")
_HOST_DIGITS: Final = 16
_LONG_MAX: Final = 0x7FFFFFFFFFFFFFFF

#: Role of a row in a transaction: a half message, or an op message, which closes the transaction of
#: a half message.
HALF, OP = 1, 2


class QueueState:
    """Frequently used state of a consume queue.

    ``next_offset`` is the queue offset of the next append. Readers see the offsets from
    ``min_offset`` to ``max_offset`` (exclusive). ``tail`` holds the entries from ``tail_offset``
    on, which include all that are not in a file yet. ``topic_tail`` is the byte string that follows
    the body in its records, ``topic_hash`` the Java hash of ``topic#``.

    ``put_count``, ``put_bytes`` and ``put_times`` are the numbers of dispatched messages, of their
    bytes and of their sends, since a caller set them to 0. ``fifo_count`` and ``fifo_bytes`` are
    those of appended single sends with a sharding key. ``is_dirty`` is true if the files may lack
    entries, ``is_prompt`` if entries are written at once.
    """

    __slots__ = (
        "delay_ms",
        "fifo_bytes",
        "fifo_count",
        "is_dirty",
        "is_prompt",
        "max_offset",
        "min_offset",
        "next_offset",
        "number",
        "put_bytes",
        "put_count",
        "put_times",
        "queue_id",
        "tail",
        "tail_offset",
        "topic_hash",
        "topic_tail",
    )

    def __init__(self) -> None:
        self.next_offset = 0
        self.max_offset = 0
        self.min_offset = 0
        self.tail_offset = 0
        self.queue_id = 0
        self.delay_ms = 0
        self.number = 0
        self.tail = bytearray()
        self.topic_tail = b""
        self.topic_hash = 0
        self.is_dirty = False
        self.is_prompt = False
        self.put_count = 0
        self.put_bytes = 0
        self.put_times = 0
        self.fifo_count = 0
        self.fifo_bytes = 0


class KnownQueues:
    """Queues by topic and queue id."""

    def __init__(self) -> None:
        self._queues: dict[tuple[bytes, int], QueueState] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, queue: QueueState) -> None:
        """Add a queue; it replaces one of the same topic and queue id.

        Raises ValueError if its ``topic_tail`` is empty.
        """
        if not queue.topic_tail:
            raise ValueError("a queue without a topic")
        self._queues[queue.topic_tail[1:], queue.queue_id] = queue

    def forget(self, queue: QueueState) -> None:
        """Remove a queue, if it is there."""
        key = queue.topic_tail[1:], queue.queue_id
        if self._queues.get(key) is queue:
            del self._queues[key]

    def clear(self) -> None:
        """Remove all queues."""
        self._queues.clear()

    def get(self, topic: bytes, queue_id: int) -> QueueState | None:
        """Return the queue of a topic and a queue id, or None."""
        return self._queues.get((topic, queue_id))


class Row:
    """Row of one record; ``place`` is its physical offset.

    The first row of a batch has the number of the batch's rows as ``members``, and its answer names
    them all; the others count as one-way. ``half_offset`` is the half offset that an op message
    names.
    """

    __slots__ = (
        "half_offset",
        "hashes",
        "members",
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
        self.members = 1
        self.role = 0
        self.half_offset = 0
        self.tag_code = signed(text_hash(0, tag)) if tag else 0
        self.hashes = [absolute(text_hash(queue.topic_hash, key)) for key in keys]


def _walked_rows(rows: bytes, key_count: int, queue_count: int) -> list[tuple[int, ...]]:
    found = list(_WALKED_ROW.iter_unpack(rows))
    for _, _, number, _, _, _, _, at, count, _ in found:
        if not 0 <= number < queue_count or at < 0 or not 0 <= count <= key_count - at:
            raise ValueError("a row of another walk")
    return found


def _leaves_gap(queue: QueueState, slot: int, *, is_lacking: bool) -> bool:
    """Return whether a queue lacks entries between its end and the queue offset ``slot``.

    ``is_lacking`` is true if the queue has no entry of the record yet. If it has one although
    ``next_offset`` is 0, nothing is known about the queue, and no gap is reported.
    """
    return slot > queue.next_offset and (is_lacking or queue.next_offset > 0)


def _has_entry(row: Row) -> bool:
    return row.queue is not None and row.queue_offset >= 0


class WriteBatch:
    """Records appended in one turn of the event loop by all connections, in log order.

    ``size_bytes`` is the total size of the records.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.dispatched_count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def end(self) -> int:
        """Physical offset of the end of the last record; 0 without one."""
        return self.rows[-1].place + self.rows[-1].size if self.rows else 0

    @property
    def last_ms(self) -> int:
        """Store time of the last row, in ms; 0 without one."""
        return self.rows[-1].store_ms if self.rows else 0

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
        """Append rows of a walk (walk.py) from row ``first`` on, for records already in the log.

        ``queues`` are the queues of the walk, with None for a queue whose records are skipped;
        ``base`` is the physical offset of the first byte of the walk. Returns the row at which the
        call stopped: the first one at or after physical offset ``limit``, or the end.

        ``begins`` has a physical offset for each queue: earlier records get no queue entry, and are
        left out if they have no keys either. With ``in_order``, the call also stops at an odd row
        and at a row that would leave a gap in its queue, and it advances ``next_offset`` of the
        queues. Raises ValueError for rows of another walk.
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
            slot = -1 if sys_flag & PREPARED else offset
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
                self.rows.append(taken)
                self.size_bytes += size
        return len(found)

    def pass_row(self) -> tuple[Any, int, int, int, int, int, tuple[str, ...]] | None:
        """Return the row at which :meth:`dispatch` stopped, and count it as dispatched.

        The row has the dispatcher's format, without keys. Returns None if its queue was removed.
        """
        row = self.rows[self.dispatched_count]
        self.dispatched_count += 1
        if row.queue is None:
            return None
        return row.queue, row.queue_offset, row.place, row.size, row.tag_code, row.store_ms, ()

    def dispatch(
        self, long_bytes: int
    ) -> tuple[list[Any], tuple[int, int], list[Any], list[Any], bool]:
        """Append the entries of rows that were not dispatched yet to their queues.

        The call stops at the first row that is not the next entry of its queue. Returns the
        distinct queues of the rows; the number of messages and their bytes; the queues that became
        dirty; the queues to write now, because they are prompt or hold ``long_bytes`` in memory;
        and whether no row was out of order.
        """
        grown: dict[Any, None] = {}
        soiled: list[Any] = []
        count = size_bytes = 0
        in_order = True
        members = 0
        for row in self.rows[self.dispatched_count :]:
            queue = row.queue
            if queue is not None:
                takes_slot = row.queue_offset >= 0
                # The entries of a queue are contiguous, so a row out of order stops the call.
                if takes_slot and row.queue_offset != queue.max_offset:
                    in_order = False
                    break
                if takes_slot:
                    queue.tail += ENTRY.pack(row.place, row.size, row.tag_code)
                    queue.max_offset += 1
                    queue.put_count += 1
                    queue.put_bytes += row.size
                    # The rows of a batch count as one send.
                    if members <= 0:
                        queue.put_times += 1
                        members = row.members
                    members -= 1
                grown[queue] = None
                count += 1
                size_bytes += row.size
                if takes_slot and not queue.is_dirty:
                    queue.is_dirty = True
                    soiled.append(queue)
            self.dispatched_count += 1
        due = [queue for queue in grown if queue.is_prompt or len(queue.tail) >= long_bytes]
        return [*grown], (count, size_bytes), soiled, due, in_order

    def rows_from(self, first: int) -> list[tuple[Any, int, int, int, int, int, tuple[str, ...]]]:
        """Return rows in the dispatcher's format (store/dispatch.py), without keys."""
        return [
            (row.queue, row.queue_offset, row.place, row.size, row.tag_code, row.store_ms, ())
            for row in self.rows[max(first, 0) :]
            if row.queue is not None
        ]

    def unnamed_queues(self, first: int) -> list[Any]:
        """Return the queues with a ``number`` below ``first``, in the order of their first rows."""
        found = {row.queue: None for row in self.rows if _has_entry(row)}
        return [queue for queue in found if queue is not None and queue.number < first]

    def entry_rows(self) -> bytes:
        """Return the journal rows, which refer to queues by their ``number``."""
        return b"".join(
            [
                _JOURNAL_ROW.pack(
                    row.queue.number, row.queue_offset, row.place, row.size, row.tag_code
                )
                for row in self.rows
                if row.queue is not None and _has_entry(row)
            ]
        )

    def index_columns(self) -> tuple[bytes, bytes, bytes]:
        """Return the hashes, physical offsets and store times of all keys, each as native int64."""
        rows = [row for row in self.rows if row.queue is not None]
        return (
            array("q", [value for row in rows for value in row.hashes]).tobytes(),
            array("q", [row.place for row in rows for _ in row.hashes]).tobytes(),
            array("q", [row.store_ms for row in rows for _ in row.hashes]).tobytes(),
        )

    def drop(self, queues: Collection[Any]) -> None:
        """Detach the rows of removed queues: they get no entries, but are still answered."""
        for row in self.rows:
            if row.queue in queues:
                row.queue = None

    def take_back(self) -> None:
        """Release all queue offsets, after a write that stored none of the records."""
        self.release(0)

    def release(self, first: int) -> None:
        """Release the queue offsets of the rows from ``first`` on, for use by other records."""
        # Go backwards, so that ``next_offset`` ends at the first released offset of each queue.
        for row in reversed(self.rows[first:]):
            if row.queue is not None:
                row.queue.next_offset = row.queue_offset
                if row.role:
                    self.let_go(row)
                row.queue = None

    def let_go(self, row: Row) -> None:
        """Undo a row that has a role. Subclasses that set roles override this."""

    def answers(self, first: int, stop: int, pieces: tuple[bytes, ...]) -> bytes:
        """Return the answer frames of rows that were stored, in order.

        ``pieces`` are six parts of the header:

            0  before the physical offset in hex; ends with the 16 digits of the store host, which
               each message id of a batch repeats
            1  before the queue id
            2  before the queue offset
            3  before the opaque
            4  after the opaque
            5  before the opaque, in the answer to an end of a transaction
        """
        if not 0 <= first <= stop <= len(self.rows):
            raise IndexError("no such rows")
        head, queue_id, offset, opaque, tail, done = pieces
        if len(head) < _HOST_DIGITS:
            raise ValueError("a head without the store host")
        found: list[bytes] = []
        for number, row in enumerate(self.rows[first:stop], first):
            if row.oneway:
                continue
            if row.role == OP:
                answer = b"%b%d%b" % (done, row.opaque, tail)
            else:
                host = head[-_HOST_DIGITS:]
                ids = self.message_ids(number, min(number + row.members, stop), host)
                answer = b"%b%b%b%d%b%d%b%d%b" % (
                    head[:-_HOST_DIGITS], ids, queue_id, row.queue_id, offset, row.queue_offset,
                    opaque, row.opaque, tail,
                )  # fmt: skip
            found.append(LENGTHS.pack(len(answer) + 4, len(answer)) + answer)
        return b"".join(found)

    def opaques(self, first: int, stop: int) -> list[tuple[int, bool, int, int, list[int], bool]]:
        """Return the answer data of each row.

        It consists of the opaque of the request, whether it is one-way, the queue id, the queue
        offset, the physical offsets that the answer names, and whether it belongs to an end of a
        transaction.
        """
        if not 0 <= first <= stop <= len(self.rows):
            raise IndexError("no such rows")
        return [
            (
                row.opaque,
                row.oneway,
                row.queue_id,
                row.queue_offset,
                self.places(number, min(number + row.members, stop)),
                row.role == OP,
            )
            for number, row in enumerate(self.rows[first:stop], first)
        ]

    def places(self, first: int, stop: int) -> list[int]:
        """Return the physical offsets of rows."""
        if not 0 <= first <= stop <= len(self.rows):
            raise IndexError("no such rows")
        return [row.place for row in self.rows[first:stop]]

    def message_ids(self, first: int, stop: int, host: bytes) -> bytes:
        """Return the message ids of rows, joined by commas; ``host`` is the store host in hex."""
        return b",".join([b"%b%016X" % (host, place) for place in self.places(first, stop)])
