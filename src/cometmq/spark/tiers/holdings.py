"""The messages that each tier holds, and lookups by offset and time across all tiers.

The archive is looked up first, then the stores, then the brokers. For messages that moved to the
archive in between, planning.py looks it up again.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from cometmq.core.errors import CometError
from cometmq.message.record import BadRecord
from cometmq.spark.brokers import offsets
from cometmq.spark.read.discovery import find_queues
from cometmq.spark.read.planning import Range, ranges
from cometmq.spark.read.positions import at_moments
from cometmq.spark.store.holdings import StoreHoldings
from cometmq.spark.tiers.archivefiles import (
    HeldFile,
    archive_files,
    first_at,
    held_files,
    stored_ms,
)
from cometmq.spark.tiers.cover import last_shared

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.checkpoint import Offsets
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.tiers.options import TieredOptions

log = logging.getLogger(__name__)

FirstAt = Callable[[Mapping["MessageQueue", int]], Mapping["MessageQueue", int]]
"""Function that returns the first held offset that was stored at each queue's moment (ms) or later.
A queue without such a message is left out."""


class Tier(Enum):
    """A place that holds messages. A message is read from the first tier, in this order, that holds
    it."""

    ARCHIVE = "archive"
    STORE = "store"
    LIVE = "live"


class TiersDisagree(CometError):
    """Raised if ``tier`` and ``other`` have different messages at ``offset`` of ``queue``, or if
    ``other`` is the broker and its queue ends before that offset."""

    def __init__(self, tier: Tier, other: Tier, queue: MessageQueue, offset: int) -> None:
        self.tier = tier
        self.other = other
        self.queue = queue
        self.offset = offset
        super().__init__(
            f"{tier.value} and {other.value} disagree on offset {offset} of queue "
            f"{queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r}: the topic "
            "was created again, the broker lost messages, or brokerName is not its name; read "
            "them separately, or set option failOnDataLoss to false to prefer "
            f"{tier.value}"
        )


@dataclass(frozen=True, slots=True)
class LiveQueues:
    """The queues of the brokers: their bounds, the queues whose ends come from a slave
    (``copies``), and the brokers that the user allows to be missing (``without``)."""

    start: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    copies: frozenset[MessageQueue] = frozenset()
    without: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Holdings:
    """The messages that the tiers hold, as they were looked up by :func:`look`."""

    files: Sequence[HeldFile]
    stores: Sequence[StoreHoldings]
    live: LiveQueues
    options: TieredOptions

    def held(self) -> list[tuple[Tier, list[Range]]]:
        """Return the ranges that each tier holds, in the order of :class:`Tier`."""
        live = self.live
        return [
            (Tier.ARCHIVE, [part for file in self.files for part in file.ranges]),
            (Tier.STORE, [part for store in self.stores for part in store.held()]),
            (Tier.LIVE, ranges(live.start, live.end)),
        ]

    def bounds(self) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        """Return the first offset of each queue that any tier holds, and the end of each queue. For
        an empty queue, the first is the end."""
        end = dict(self.live.end)
        for store in self.stores:
            _raise_to(end, store.ends().items())
        start: dict[MessageQueue, int] = {}
        for _, parts in self.held():
            whole = [part for part in parts if len(part) > 0]
            _raise_to(end, ((part.queue, part.stop) for part in whole))
            for part in whole:
                start[part.queue] = min(part.start, start.get(part.queue, part.start))
        return {**end, **start}, end

    def first_at(self, moments: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the first offset in any tier that was stored at each queue's moment (ms) or later.

        A queue without such a message is left out. Raises OSError and the errors of
        :func:`offsets.ends`.
        """
        lookups: list[FirstAt] = [lambda asked: first_at(self.files, asked)]
        lookups += [store.first_at for store in self.stores]
        lookups.append(self._first_live)
        found: dict[MessageQueue, int] = {}
        for look in lookups:
            for queue, offset in look(moments).items():
                found[queue] = min(offset, found.get(queue, offset))
        return found

    def stored_ms(
        self, tier: Tier, places: Mapping[MessageQueue, int]
    ) -> Mapping[MessageQueue, int]:
        """Return the store time (ms) of the message that a tier holds at each queue's offset in
        ``places``.

        Messages that cannot be read are left out, and those of which only a slave could be asked.
        Raises OSError and the errors of :func:`offsets.samples`.
        """
        if tier is Tier.ARCHIVE:
            return stored_ms(self.files, places)
        if tier is Tier.STORE:
            found: dict[MessageQueue, int] = {}
            for store in self.stores:
                found |= store.stored_ms(places)
            return found
        asked = {queue: at for queue, at in places.items() if queue not in self.live.copies}
        if self.options.live is None or not asked:
            return {}
        try:
            samples = offsets.samples(asked, self.options.live.access)
        except BadRecord as error:
            log.warning("sample_failed error=%r", str(error))
            return {}
        return {queue: each.store_ms for queue, each in samples.items() if not each.is_gone}

    def _first_live(self, moments: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, int]:
        options, live = self.options.live, self.live
        known = {queue: at_ms for queue, at_ms in moments.items() if queue in live.end}
        if options is None or not known:
            return {}
        found = at_moments(known, live.end, options.access)
        return {queue: offset for queue, offset in found.items() if offset < live.end[queue]}


def look(options: TieredOptions) -> Holdings:
    """Look up the messages that the tiers hold. Raises BadOption, NoStore, OSError, BrokerMissing
    and the errors of :func:`offsets.ends`."""
    files = archived(options)
    of_stores = options.store
    stores = [StoreHoldings(root, of_stores) for root in of_stores.roots] if of_stores else []
    live = LiveQueues() if options.live is None else _live(options.live)
    return Holdings(files, stores, live, options)


def archived(options: TieredOptions) -> list[HeldFile]:
    """Return the archive's files with the ranges that they hold. Raises BadOption, ArchiveFileGone,
    OSError."""
    if options.archive is None:
        return []
    return held_files(archive_files(options.archive, options.topics), options.topics)


def _live(options: ReadOptions) -> LiveQueues:
    # must_exist=False: a topic that no broker has any more may be in the archive.
    planned = find_queues(options, must_exist=False)
    first = offsets.earliest(planned.queues, options.access)
    ends = offsets.ends(planned.queues, options.access)
    return LiveQueues(first, ends.by_queue, ends.copies, planned.without)


def disagreement(holdings: Holdings) -> TiersDisagree | None:
    """Return a queue for which two tiers have different messages, or None.

    Two tiers are compared by the store time of the last message that both hold. They also disagree
    if a tier holds messages after the end of the queue at the broker, unless that end comes from a
    slave, which may lag. Raises the errors of :meth:`Holdings.stored_ms`.
    """
    held = holdings.held()
    live = holdings.live
    for tier, parts in held:
        for part in parts:
            end = live.end.get(part.queue)
            if end is not None and part.stop > end and part.queue not in live.copies:
                return TiersDisagree(tier, Tier.LIVE, part.queue, part.stop - 1)
    for (tier, parts), (other, others) in itertools.combinations(held, 2):
        places = last_shared(parts, others)
        if places:
            times = holdings.stored_ms(tier, places)
            found = holdings.stored_ms(other, places)
            for queue in sorted(times.keys() & found.keys()):
                if times[queue] != found[queue]:
                    return TiersDisagree(tier, other, queue, places[queue])
    return None


def _raise_to(offsets: dict[MessageQueue, int], found: Iterable[tuple[MessageQueue, int]]) -> None:
    for queue, offset in found:
        offsets[queue] = max(offset, offsets.get(queue, offset))
