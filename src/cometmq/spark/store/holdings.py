"""Finds which messages a store directory holds, and makes the parts of tasks that read them.

A message is held if the log has its record, and its queue has an entry or does not have one yet. An
entry alone is not enough: it may refer to a record that the log lost in a crash, or to a missing
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.message.model import MessageQueue
from cometmq.message.record import TransactionType
from cometmq.spark.read.planning import Range
from cometmq.spark.store.files import DamagedBytes, blocks, has_queues, log_end
from cometmq.spark.store.options import Key, RequestedRange, RequestedRanges
from cometmq.spark.store.planning import StorePlanner, is_wanted, together
from cometmq.spark.store.urls import forget, is_url
from cometmq.store.layout import HOLE_SIZE

if TYPE_CHECKING:
    from cometmq.message.walk import Flags, Ints
    from cometmq.spark.decode import Block
    from cometmq.spark.store.files import Entries
    from cometmq.spark.store.options import StoreOptions, StoreRoot
    from cometmq.spark.store.planning import Part

_ENTRIES: Final = 1 << 20
"""Number of queue entries read at a time."""

#: Bit of sysFlag in records that are in no queue: half messages and rollbacks.
_UNQUEUED: Final = int(TransactionType.PREPARED)
_NOTHING: Final = RequestedRange(0, 0)


@dataclass(frozen=True, slots=True)
class Newest:
    """Messages of one queue that are in the log after the queue's last entry."""

    offsets: Ints
    stored_ms: Ints


def runs(offsets: Ints) -> list[tuple[int, int]]:
    """Return the runs of consecutive offsets as half-open ranges. ``offsets`` are sorted; numbers
    may repeat."""
    if not len(offsets):
        return []
    edges = np.flatnonzero(np.diff(offsets) > 1)
    starts = offsets[np.concatenate(([0], edges + 1))].tolist()
    stops = (offsets[np.concatenate((edges, [len(offsets) - 1]))] + 1).tolist()
    return list(zip(starts, stops, strict=True))


class StoreHoldings:
    """The messages of one store directory, looked up at creation. Raises NoStore, StoreUnreadable,
    OSError."""

    def __init__(self, root: StoreRoot, options: StoreOptions) -> None:
        forget()
        self._root = root
        self._choice = options.choice
        self._planner = StorePlanner(root, options)
        # The order matters if a broker runs: first `ends`, then the bounds of queues, then the end
        # of the log. Otherwise a new message could be in none of them.
        log_ends, names = self._planner.ends()
        self._bounds = {key: self._planner.bounds(key) for key in names if self._is_wanted(key)}
        self._end = log_end(self._planner.files, log_ends.newest)
        self._complete = log_ends.dispatched
        self._newest = self._in_log_alone()
        for key in self._newest:
            self._bounds.setdefault(key, (0, 0))
        if is_url(root.path):
            held = together(self._ranges, self._bounds)
        else:
            held = [self._ranges(key) for key in self._bounds]
        self._held = dict(zip(self._bounds, held, strict=True))

    def held(self) -> list[Range]:
        """Return the ranges of messages that the store holds."""
        return [
            part
            for key, parts in self._held.items()
            for part in (*parts, *(Range(self._queue(key), *run) for run in self._newest_runs(key)))
        ]

    def ends(self) -> dict[MessageQueue, int]:
        """Return the end of each queue, even if its last messages are not held."""
        return {
            self._queue(key): max([stop, *(run[1] for run in self._newest_runs(key))])
            for key, (_, stop) in self._bounds.items()
        }

    def first_at(self, moments: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the first held offset that was stored at each queue's moment (ms) or later.

        A queue without such a message is left out. Raises OSError.
        """
        found: dict[MessageQueue, int] = {}
        for key in self._bounds:
            queue = self._queue(key)
            if queue in moments:
                offset = self._first_at(key, moments[queue])
                if offset is not None:
                    found[queue] = offset
        return found

    def stored_ms(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the store time (ms) of the held message at each queue's offset in ``places``.

        Queues of other stores, and records that cannot be read, are left out. Raises OSError.
        """
        found: dict[MessageQueue, int] = {}
        for key, (_, stop) in self._bounds.items():
            queue = self._queue(key)
            if queue not in places:
                continue
            if places[queue] < stop:
                at_ms = self._planner.store_ms(key, places[queue])
                if at_ms is not None:
                    found[queue] = at_ms
            elif key in self._newest:
                newest = self._newest[key]
                found[queue] = int(newest.stored_ms[newest.offsets == places[queue]][0])
        return found

    def parts(self, wanted: Iterable[Range]) -> list[Part]:
        """Return the parts that read the messages ``wanted``, all of which must be held."""
        by_entries: list[Part] = []
        in_log: list[dict[Key, RequestedRange]] = []
        for part in wanted:
            key = (part.queue.topic, part.queue.queue_id)
            stop = self._bounds[key][1]
            if part.start < stop:
                by_entries.append(self._planner.queue_part(key, part.start, min(part.stop, stop)))
            if part.stop > stop:
                # A part of the log has one range per queue: use another part for further ranges.
                free = next((ranges for ranges in in_log if key not in ranges), None)
                if free is None:
                    free = {}
                    in_log.append(free)
                free[key] = RequestedRange(max(part.start, stop), part.stop)
        dispatched = self._complete if has_queues(self._root.path) else -1
        for ranges in in_log:
            requested = RequestedRanges(_NOTHING, ranges)
            by_entries += self._planner.log(
                self._complete, self._end, requested, dispatched, ranges
            )
        return by_entries

    def _queue(self, key: Key) -> MessageQueue:
        return MessageQueue(key[0], self._root.broker_name, key[1])

    def _ranges(self, key: Key) -> list[Range]:
        """Return the ranges of a queue whose entries refer to records in the log."""
        start, stop = self._bounds[key]
        files = self._planner.files_of(key)
        spans: list[tuple[int, int]] = []
        for low in range(start, stop, _ENTRIES):
            high = min(low + _ENTRIES, stop)
            whole = np.flatnonzero(self._has_records(files.entries(low, high))) + low
            for run in runs(whole):
                if spans and spans[-1][1] == run[0]:
                    spans[-1] = (spans[-1][0], run[1])
                else:
                    spans.append(run)
        return [Range(self._queue(key), *span) for span in spans]

    def _has_records(self, entries: Entries) -> Flags:
        """Return for each entry whether its record lies within an existing file of the log."""
        physical = entries["physical"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        files = self._planner.files
        held: Flags = (sizes > 0) & (sizes < HOLE_SIZE) & (physical + sizes <= self._end)
        if files:
            bases = np.array([file.base for file in files], np.int64)
            stops = np.array([file.stop for file in files], np.int64)
            of_file = np.maximum(np.searchsorted(bases, physical, side="right") - 1, 0)
            held &= (physical >= bases[of_file]) & (physical + sizes <= stops[of_file])
        return held

    def _in_log_alone(self) -> dict[Key, Newest]:
        """Return the messages in the last part of the log whose queues have no entry for them yet.
        That part is the whole log if there are no queues."""
        places: dict[Key, list[Newest]] = {}
        for part in self._planner.log(self._complete, self._end, RequestedRanges(), -1):
            for block in blocks(part.file, part.start, part.stop, part.root.broker_name):
                if isinstance(block, DamagedBytes):
                    continue  # damage is reported when it is read
                for key, rows in _by_key(block):
                    if self._is_wanted(key):
                        stop = self._bounds.get(key, (0, 0))[1]
                        rows = rows[block.queue_offsets[rows] >= stop]
                        first_place = self._planner.first_place(*key)
                        rows = rows[block.number("physical_offset")[rows] >= first_place]
                        newest = Newest(block.queue_offsets[rows], block.number("store_ms")[rows])
                        places.setdefault(key, []).append(newest)
        found = {key: _joined(newest) for key, newest in places.items()}
        return {key: newest for key, newest in found.items() if len(newest.offsets)}

    def _is_wanted(self, key: Key) -> bool:
        return is_wanted(self._choice, self._root.broker_name, *key)

    def _newest_runs(self, key: Key) -> list[tuple[int, int]]:
        newest = self._newest.get(key)
        return [] if newest is None else runs(newest.offsets)

    def _first_at(self, key: Key, moment_ms: int) -> int | None:
        files = self._planner.files_of(key)
        for part in self._held[key]:
            found = self._planner.first_since(files, part.start, part.stop, moment_ms)
            if found < part.stop:
                return found
        newest = self._newest.get(key)
        if newest is not None:
            later = newest.offsets[newest.stored_ms >= moment_ms]
            return int(later.min()) if len(later) else None
        return None


def _joined(found: list[Newest]) -> Newest:
    offsets = np.concatenate([each.offsets for each in found])
    stored_ms = np.concatenate([each.stored_ms for each in found])
    order = np.argsort(offsets, kind="stable")
    return Newest(offsets[order], stored_ms[order])


def _by_key(block: Block) -> Iterator[tuple[Key, Ints]]:
    """Yield each queue of a block, and the numbers of the rows with its messages."""
    topics, codes = block.topic_codes()
    keys = codes.astype(np.int64) << 32 | block.number("queue_id") & 0xFFFF_FFFF
    is_queued = block.number("sys_flag") & _UNQUEUED == 0
    for key in np.unique(keys[is_queued]).tolist():
        yield (topics[key >> 32], key & 0xFFFF_FFFF), np.flatnonzero(is_queued & (keys == key))
