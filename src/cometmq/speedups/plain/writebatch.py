"""The write batch: rows of records, their queue entries, their keys and their answers.

This is the definition; compiled/writebatch.pyx does the same, byte for byte. sends.py, batches.py
and transactions.py fill it; rows of a walk are adopted. A queue entry is laid out in
store/layout.py, a journal's row in store/queue/journal.py.
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
_LONG_MAX: Final = 0x7FFFFFFFFFFFFFFF

#: What a row is in a transaction, if anything: a half message, or what says that one is done with.
HALF, OP = 1, 2


class QueueState:
    """What every send touches of a consume queue.

    ``next_offset`` is given to the next append, ``max_offset`` ends what readers may see, who begin
    at ``min_offset``. ``tail`` holds entries from ``tail_offset`` on, those that are not in a file
    yet and more. ``topic_tail`` is what follows the body of
    its records, ``topic_hash`` the Java hash of ``topic#``.
    """

    __slots__ = (
        "delay_ms",
        "is_dirty",
        "is_prompt",
        "max_offset",
        "min_offset",
        "next_offset",
        "number",
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
        self.tag_code = signed(text_hash(0, tag)) if tag else 0
        self.hashes = [absolute(text_hash(queue.topic_hash, key)) for key in keys]


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
    """What one turn appended, of all connections, in the order of the log. ``size_bytes`` are those
    of all records."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.dispatched_count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def count(self) -> int:
        """Rows that were taken."""
        return len(self.rows)

    @property
    def end(self) -> int:
        """The physical offset behind the last record; 0 without one."""
        return self.rows[-1].place + self.rows[-1].size if self.rows else 0

    @property
    def last_ms(self) -> int:
        """The store time of the last row; 0 without one."""
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
        """The row that :meth:`dispatch` stopped at, as the dispatcher knows it, without keys; it
        counts as dispatched. None when its queue went away."""
        row = self.rows[self.dispatched_count]
        self.dispatched_count += 1
        if row.queue is None:
            return None
        return row.queue, row.queue_offset, row.place, row.size, row.tag_code, row.store_ms, ()

    def dispatch(
        self, long_bytes: int
    ) -> tuple[list[Any], tuple[int, int], list[Any], list[Any], bool]:
        """Put the entries of rows that were not dispatched yet into their queues.

        Gives the queues of these, each once; how many messages they are, and their bytes; the
        queues that are dirty since; those that are to be written now, for they are prompt or have
        ``long_bytes`` in memory; and whether all rows were in order: the first that is not behind
        the entries of its queue ends it.
        """
        grown: dict[Any, None] = {}
        soiled: list[Any] = []
        count = size_bytes = 0
        in_order = True
        for row in self.rows[self.dispatched_count :]:
            queue = row.queue
            if queue is not None:
                takes_slot = row.queue_offset >= 0
                if takes_slot and row.queue_offset != queue.max_offset:
                    in_order = False
                    break
                if takes_slot:
                    queue.tail += ENTRY.pack(row.place, row.size, row.tag_code)
                    queue.max_offset += 1
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
        """Rows as the dispatcher knows them (store/write/dispatch.py), without keys."""
        return [
            (row.queue, row.queue_offset, row.place, row.size, row.tag_code, row.store_ms, ())
            for row in self.rows[max(first, 0) :]
            if row.queue is not None
        ]

    def unnamed_queues(self, first: int) -> list[Any]:
        """The queues that rows belong to whose ``number`` is below ``first``, each once, in the
        order of their first rows."""
        found = {row.queue: None for row in self.rows if _has_entry(row)}
        return [queue for queue in found if queue is not None and queue.number < first]

    def entry_rows(self) -> bytes:
        """The rows of the journal, which name queues by their ``number``."""
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
        """Hashes, physical offsets and store times of all keys, each as native int64."""
        rows = [row for row in self.rows if row.queue is not None]
        return (
            array("q", [value for row in rows for value in row.hashes]).tobytes(),
            array("q", [row.place for row in rows for _ in row.hashes]).tobytes(),
            array("q", [row.store_ms for row in rows for _ in row.hashes]).tobytes(),
        )

    def drop(self, queues: Collection[Any]) -> None:
        """Forget the rows of queues that go away; they are answered still."""
        for row in self.rows:
            if row.queue in queues:
                row.queue = None

    def take_back(self) -> None:
        """Nothing of this was stored: its queue offsets are given again."""
        self.release(0)

    def release(self, first: int) -> None:
        """Let the queue offsets of rows be given again."""
        for row in reversed(self.rows[first:]):
            if row.queue is not None:
                row.queue.next_offset = row.queue_offset
                if row.role:
                    self.let_go(row)
                row.queue = None

    def let_go(self, row: Row) -> None:
        """A row that has a role is taken back; for who gives one."""

    def answers(self, first: int, stop: int, pieces: tuple[bytes, ...]) -> bytes:
        """The answers of rows that were stored, in order, with the lengths of their frames.

        ``pieces`` stand before the physical offset in hex, the queue, the queue offset and the
        opaque, and behind that; the last one before the opaque of the end of a transaction.
        """
        if not 0 <= first <= stop <= len(self.rows):
            raise IndexError("no such rows")
        head, queue_id, offset, opaque, tail, done = pieces
        found: list[bytes] = []
        for row in self.rows[first:stop]:
            if row.oneway:
                continue
            if row.role == OP:
                answer = b"%b%d%b" % (done, row.opaque, tail)
            else:
                answer = b"%b%016X%b%d%b%d%b%d%b" % (
                    head, row.place, queue_id, row.queue_id, offset, row.queue_offset, opaque,
                    row.opaque, tail,
                )  # fmt: skip
            found.append(LENGTHS.pack(len(answer) + 4, len(answer)) + answer)
        return b"".join(found)

    def opaques(self, first: int, stop: int) -> list[tuple[int, bool, int, int, int, bool]]:
        """For each row the opaque of its request, whether that wants no answer, its queue, its
        queue offset, its physical offset, and whether it is of the end of a transaction."""
        if not 0 <= first <= stop <= len(self.rows):
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
            for row in self.rows[first:stop]
        ]

    def places(self, first: int, stop: int) -> list[int]:
        """The physical offsets of rows."""
        if not 0 <= first <= stop <= len(self.rows):
            raise IndexError("no such rows")
        return [row.place for row in self.rows[first:stop]]

    def message_ids(self, first: int, stop: int, host: bytes) -> bytes:
        """The ids of the messages of rows, joined by commas; ``host`` is the store host in hex."""
        return b",".join([b"%b%016X" % (host, place) for place in self.places(first, stop)])
