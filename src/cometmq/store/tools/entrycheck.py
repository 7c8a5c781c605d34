"""Checks of queue entries against the records of one log file, in both directions.

Each entry is reduced to one number (digest.py) and compared with the number of the entry that
dispatch would make from the record. Only pairs that differ are examined in detail, to describe the
difference.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cometmq.message.record import takes_queue_slot
from cometmq.store.layout import HOLE_SIZE
from cometmq.store.tools.digest import mix_entries
from cometmq.store.tools.logfile import read_record
from cometmq.store.tools.queues import Run, read_entries, text_code, written_entries
from cometmq.store.write.dispatch import code_and_keys

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.directory import FileFact, QueueFact
    from cometmq.store.tools.findings import Findings
    from cometmq.store.tools.logfile import Chunk, Gap

#: A granule has 2^6 bytes. A record is longer, so two records never begin in the same granule.
_GRANULE_SHIFT = 6
_EXAMINED = 256
_EXPLAINED = 1_000


class Why(Enum):
    """The reason why a record has no entry in its queue."""

    NO_QUEUE = "its queue has no files"
    NO_ENTRY = "the queue has no entry there"
    NEWER = "its queue begins with later records: the topic was deleted and created again"
    OTHER = "the entry there belongs to another record"
    UNKNOWN = "not examined one by one"


class Lonely(NamedTuple):
    """Records of one queue that have no entry, for one reason.

    The fields are their number, the bounds of their queue offsets, and the physical offsets of the
    first and the last one.
    """

    topic: str
    queue_id: int
    why: Why
    amount: int
    first_offset: int
    last_offset: int
    physical_offset: int
    last_physical_offset: int = 1 << 62


class EntryCheck:
    """The queue entries that point to one log file, matched with their records."""

    def __init__(
        self,
        files: ReadOnlyFiles,
        file: FileFact,
        queues: list[QueueFact],
        queue_file_bytes: int,
        runs: list[Run],
        delays_ms: tuple[int, ...],
    ) -> None:
        self._files = files
        self._file = file
        self._queues = queues
        self._queue_file_bytes = queue_file_bytes
        self._runs = runs
        self._delays_ms = delays_ms
        self._ends = np.cumsum([run.length for run in runs])
        self._by_name: dict[tuple[str, int], QueueFact] = {}
        self._begins: dict[str, tuple[int, int]] = {}
        self.lonely: dict[tuple[str, int, Why], Lonely] = {}
        self._load()

    def _load(self) -> None:
        total = sum(run.length for run in self._runs)
        self._phys = np.empty(total, np.int64)
        self._mixed = np.empty(total, np.int64)
        self._claimed = np.zeros(total, np.bool_)
        self._granules = np.zeros((self._file.size_bytes >> _GRANULE_SHIFT) + 1, np.int32)
        at = 0
        for run in self._runs:
            queue = self._queues[run.queue]
            found = read_entries(self._files, queue, self._queue_file_bytes, run.first, run.length)
            stop = at + run.length
            offsets = np.arange(run.first, run.first + run.length)
            self._phys[at:stop] = found.phys
            topic = np.full(1, text_code(queue.topic))
            number = np.full(1, queue.queue_id)
            self._mixed[at:stop] = mix_entries(
                found.phys, found.sizes, found.codes, offsets, topic, number
            )
            at = stop
        places = (self._phys - self._file.base) >> _GRANULE_SHIFT
        self._granules[places] = np.arange(1, total + 1)

    def take(self, chunk: Chunk, mixed: Ints) -> None:
        """Match records with entries; ``mixed`` has the number (digest.py) of each one's entry."""
        places, takes = chunk.places, chunk.takes_place
        entries = self._granules[(places - self._file.base) >> _GRANULE_SHIFT].astype(np.int64) - 1
        fits = takes & (entries >= 0)
        if len(self._mixed):
            fits &= self._mixed[entries] == mixed
        self._claimed[entries if fits.all() else entries[fits]] = True
        alone = np.flatnonzero(takes & ~fits)
        if len(alone):
            # An entry that points here but differs is reported once, as a fault of the entry.
            hit = entries[alone]
            blamed = (
                (hit >= 0) & (self._phys[hit] == places[alone]) if len(self._phys) else hit < -1
            )
            self._note_lonely(chunk, alone[~blamed])

    def _note_lonely(self, chunk: Chunk, rows: Ints) -> None:
        numbers = chunk.queue_numbers[rows]
        for number in np.unique(numbers):
            own = rows[numbers == number]
            topic, queue_id = chunk.queues[number]
            offsets, places = chunk.queue_offsets[own], chunk.places[own]
            queue = self._queue(topic, queue_id)
            if queue is None:
                self._add_lonely(topic, queue_id, Why.NO_QUEUE, offsets, places)
                continue
            why = np.array(
                [
                    self._why(queue, int(offset), int(place))
                    for offset, place in zip(offsets[:_EXAMINED], places[:_EXAMINED], strict=True)
                ]
                + [Why.UNKNOWN] * (len(own) - _EXAMINED)
            )
            for each in Why:
                chosen = why == each
                if chosen.any():
                    self._add_lonely(topic, queue_id, each, offsets[chosen], places[chosen])

    def _why(self, queue: QueueFact, offset: int, place: int) -> Why:
        if offset < 0:
            return Why.NO_ENTRY
        # If a queue begins with younger records at smaller offsets, this record is of a deleted
        # topic.
        begin_offset, begin_phys = self._begin(queue)
        if offset >= begin_offset and place < begin_phys:
            return Why.NEWER
        found = read_entries(self._files, queue, self._queue_file_bytes, offset, 1)
        return Why.NO_ENTRY if found.sizes[0] in (0, HOLE_SIZE) else Why.OTHER

    def _begin(self, queue: QueueFact) -> tuple[int, int]:
        """Return queue offset and physical offset of a queue's first entry with a record."""
        known = self._begins.get(queue.directory)
        if known is None:
            known = (1 << 62, -1)
            for entries in written_entries(self._files, queue, self._queue_file_bytes):
                filled = np.flatnonzero((entries.sizes != 0) & (entries.sizes != HOLE_SIZE))
                if len(filled):
                    first = int(filled[0])
                    known = (entries.first + first, int(entries.phys[first]))
                    break
            self._begins[queue.directory] = known
        return known

    def _queue(self, topic: str, queue_id: int) -> QueueFact | None:
        if not self._by_name:
            self._by_name = {(each.topic, each.queue_id): each for each in self._queues}
        return self._by_name.get((topic, queue_id))

    def _add_lonely(self, topic: str, queue_id: int, why: Why, offsets: Ints, places: Ints) -> None:
        more = Lonely(
            topic, queue_id, why, len(offsets), int(offsets.min()), int(offsets.max()),
            int(places[0]), int(places[-1]),
        )  # fmt: skip
        known = self.lonely.get((topic, queue_id, why))
        self.lonely[topic, queue_id, why] = more if known is None else joined(known, more)

    def finish(self, end: int, gaps: list[Gap], findings: Findings, *, is_clean: bool) -> None:
        """Report the entries without a record. ``end`` is the end of the last record."""
        rest = np.flatnonzero(~self._claimed)
        phys = self._phys[rest]
        beyond = phys >= end
        if beyond.any():
            first = int(phys[beyond].min())
            add = findings.damage if is_clean else findings.note
            add(
                "queue-entry-beyond", self._file.path, first,
                f"{np.count_nonzero(beyond)} queue entries are for records after the end of the "
                f"log at {end}", int(np.count_nonzero(beyond)),
            )  # fmt: skip
        lost = np.zeros(len(rest), np.bool_)
        for gap in gaps:
            lost |= (phys >= gap.start) & (phys < gap.stop)
        lost &= ~beyond
        if lost.any():
            findings.note(
                "queue-entry-lost", self._file.path, int(phys[lost].min()),
                f"{np.count_nonzero(lost)} queue entries are for records that cannot be read",
                int(np.count_nonzero(lost)),
            )  # fmt: skip
        for entry in rest[~beyond & ~lost][:_EXPLAINED].tolist():
            self._explain(entry, findings)
        more = int(np.count_nonzero(~beyond & ~lost)) - _EXPLAINED
        if more > 0:
            findings.damage(
                "queue-entry-wrong", self._file.path, -1, f"{more} more entries like that", more
            )

    def _explain(self, entry: int, findings: Findings) -> None:
        number = int(np.searchsorted(self._ends, entry, side="right"))
        run = self._runs[number]
        queue = self._queues[run.queue]
        offset = run.first + entry - int(self._ends[number]) + run.length
        found = read_entries(self._files, queue, self._queue_file_bytes, offset, 1)
        phys, size, code = int(found.phys[0]), int(found.sizes[0]), int(found.codes[0])
        record = read_record(self._files, self._file, phys)
        if record is None or record.physical_offset != phys:
            problem = f"points to {phys}, where no record begins"
        else:
            own_code, _ = code_and_keys(
                record.topic, record.sys_flag, record.store_ms, record.properties,
                self._delays_ms,
            )  # fmt: skip
            pairs: list[tuple[str, object, object]] = [
                ("topic", queue.topic, record.topic),
                ("queue", queue.queue_id, record.queue_id),
                ("queue offset", offset, record.queue_offset),
                ("size", size, record.size_bytes),
                ("tag code", code, own_code),
            ]
            wrong = [f"{name} {own} not {its}" for name, own, its in pairs if own != its]
            if not takes_queue_slot(record.sys_flag):
                wrong.append("that record has no queue entry")
            problem = f"for the record at {phys}: " + (", ".join(wrong) or "it is there twice")
        findings.damage("queue-entry-wrong", queue.directory, phys, f"entry {offset} {problem}")


def joined(one: Lonely, other: Lonely) -> Lonely:
    """Join two groups of the same queue and reason."""
    return one._replace(
        amount=one.amount + other.amount,
        first_offset=min(one.first_offset, other.first_offset),
        last_offset=max(one.last_offset, other.last_offset),
        physical_offset=min(one.physical_offset, other.physical_offset),
        last_physical_offset=max(one.last_physical_offset, other.last_physical_offset),
    )
