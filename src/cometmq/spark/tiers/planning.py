"""Plans a read of several tiers: finds which messages they hold, assigns each requested message to
a tier (cover.py), and shares the messages among tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cometmq.spark.brokers import cluster, offsets
from cometmq.spark.options import BadOption
from cometmq.spark.read.discovery import without_brokers
from cometmq.spark.read.losses import report_beyond, report_loss
from cometmq.spark.read.planning import Range, backward, ranges, split
from cometmq.spark.read.positions import AtGroup, AtOffsets, Edge, NamedPosition, check_order
from cometmq.spark.read.topics import Assigned, Topics
from cometmq.spark.tiers.cover import cover
from cometmq.spark.tiers.holdings import Holdings, Tier, archived, disagreement, look
from cometmq.spark.tiers.positions import resolve

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.checkpoint import Offsets
    from cometmq.spark.read.pushdown import Pushed
    from cometmq.spark.store.holdings import StoreHoldings
    from cometmq.spark.store.planning import Part
    from cometmq.spark.tiers.archivefiles import ArchiveFile, HeldFile
    from cometmq.spark.tiers.options import TieredOptions

log = logging.getLogger(__name__)

_FROM_EARLIEST: Final = NamedPosition("startingOffsets", Edge.EARLIEST)
_TO_LATEST: Final = NamedPosition("endingOffsets", Edge.LATEST)


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """The messages of an archive file that a task reads."""

    file: ArchiveFile
    ranges: tuple[Range, ...]

    def __len__(self) -> int:
        return sum(map(len, self.ranges))


@dataclass(frozen=True, slots=True)
class TieredPlan:
    """The messages to read from each tier: parts of archive files, parts of stores, and ranges of
    live queues. ``rows`` has the number of messages of each tier."""

    rows: Mapping[Tier, int]
    archive: list[ArchivePart]
    stores: list[Part]
    live: list[Range]


def plan(options: TieredOptions, pushed: Pushed | None = None) -> TieredPlan:
    """Return the messages to read from each tier, less those that ``pushed`` filters exclude.

    Raises DataLoss for messages that no tier holds, TiersDisagree, BadOption, and the errors of
    :func:`look`.
    """
    holdings = look(options)
    wanted = wanted_ranges(holdings, pushed)
    found = cover(wanted, holdings.held())
    if found.missing and options.archive is not None:
        # Since the archive was listed, the job archive may have added messages that were deleted
        # from another tier afterwards: list it again.
        holdings = replace(holdings, files=archived(options))
        found = cover(wanted, holdings.held())
    _check_agreement(holdings)
    for part in found.missing:
        report_loss(part.queue, part.start, part.stop, options)
    by_tier: dict[Tier, list[Range]] = {tier: [] for tier in Tier}
    for portion in found.portions:
        by_tier[portion.place].append(portion.part)
    rows = {tier: sum(map(len, parts)) for tier, parts in by_tier.items()}
    missing = sum(map(len, found.missing))
    log.info("tiers_planned %s missing=%d", _text(rows), missing)
    return TieredPlan(
        rows,
        archive_parts(by_tier[Tier.ARCHIVE], holdings.files),
        store_parts(by_tier[Tier.STORE], holdings.stores),
        sorted(by_tier[Tier.LIVE]),
    )


def wanted_ranges(holdings: Holdings, pushed: Pushed | None) -> list[Range]:
    """Return the messages that the options and the pushed filters request, even if no tier holds
    them. Raises BadOption, DataLoss, RouteNotFound, and the errors of lookups by time."""
    options = holdings.options
    first, last = holdings.bounds()
    _check_chosen(last, options)

    def committed(group: str) -> Mapping[MessageQueue, int]:
        assert options.live is not None
        return offsets.committed(group, holdings.live.end, options.live.access)

    def at(named: NamedPosition) -> dict[MessageQueue, int]:
        left_out = holdings.live.without - {queue.broker_name for queue in last}
        named = without_brokers(named, left_out)
        return resolve(named, first, last, holdings.first_at, committed)

    starting = options.starting or _FROM_EARLIEST
    ending = options.ending or _TO_LATEST
    start, end = at(starting), at(ending)
    if isinstance(ending.position, AtOffsets):
        for queue in sorted(ending.position.by_queue.keys() & end.keys()):
            if end[queue] > last[queue] and queue not in holdings.live.copies:
                report_beyond(ending.option, queue, last[queue], end[queue], options)
                end[queue] = last[queue]
    if isinstance(starting.position, AtGroup):
        for queue in backward(start, end):
            report_loss(queue, end[queue], start[queue], options)
    else:
        check_order(start, end, starting.option)
    return ranges(*_cut(start, end, holdings, pushed))


def _cut(
    start: Offsets, end: Offsets, holdings: Holdings, pushed: Pushed | None
) -> tuple[Offsets, Offsets]:
    if pushed is None:
        return start, end

    def at_time(moment_ms: int, asked: Sequence[MessageQueue]) -> Mapping[MessageQueue, int]:
        found = holdings.first_at(dict.fromkeys(asked, moment_ms))
        return {queue: found.get(queue, end[queue]) for queue in asked}

    return pushed.cut(start, end, at_time)


def archive_parts(wanted: Iterable[Range], files: Sequence[HeldFile]) -> list[ArchivePart]:
    """Assign each wanted message to the first file that holds it. There must be one for each."""
    found = cover(wanted, [(held.file, held.ranges) for held in files])
    by_file: dict[ArchiveFile, list[Range]] = {}
    for portion in found.portions:
        by_file.setdefault(portion.place, []).append(portion.part)
    return [ArchivePart(file, tuple(sorted(parts))) for file, parts in by_file.items()]


def store_parts(wanted: Iterable[Range], stores: Sequence[StoreHoldings]) -> list[Part]:
    """Assign each wanted message to a store that holds it, and return the parts to read."""
    by_store = cover(wanted, [(at, store.held()) for at, store in enumerate(stores)])
    return [
        part
        for at, store in enumerate(stores)
        for part in store.parts(
            portion.part for portion in by_store.portions if portion.place == at
        )
    ]


def archive_tasks(
    parts: Sequence[ArchivePart], *, tasks_min: int, rows_max: int, bytes_max: int
) -> list[tuple[ArchivePart, ...]]:
    """Share parts of files among tasks. Small parts are joined up to ``rows_max`` and
    ``bytes_max``.

    A task that reads a part of a file has to read the whole file, so a part is split only to reach
    ``tasks_min``, the minimum number of tasks.
    """
    total = sum(map(len, parts))
    piece_max = max(1, -(-total // tasks_min))
    pieces = parts if tasks_min == 1 else [p for part in parts for p in _split(part, piece_max)]
    rows_max = min(rows_max, piece_max)
    found: list[list[ArchivePart]] = []
    rows = size_bytes = 0
    for piece in pieces:
        rows, size_bytes = rows + len(piece), size_bytes + piece.file.size_bytes
        if not found or rows > rows_max or size_bytes > bytes_max:
            found.append([])
            rows, size_bytes = len(piece), piece.file.size_bytes
        found[-1].append(piece)
    return [tuple(task) for task in found]


def _split(part: ArchivePart, rows_max: int) -> list[ArchivePart]:
    found: list[list[Range]] = []
    rows = 0
    for each in part.ranges:
        for piece in split(each, rows_max):
            rows += len(piece)
            if not found or rows > rows_max:
                found.append([])
                rows = len(piece)
            found[-1].append(piece)
    return [ArchivePart(part.file, tuple(pieces)) for pieces in found]


def _check_agreement(holdings: Holdings) -> None:
    found = disagreement(holdings)
    if found is not None:
        if holdings.options.fail_on_data_loss:
            raise found
        log.warning("tiers_disagree error=%r", str(found))


def _check_chosen(known: Offsets, options: TieredOptions) -> None:
    """Raise RouteNotFound for a named topic, and BadOption for an assigned queue, that no tier has.

    A named topic may be missing if no live tier is read: it may have had no message.
    """
    choice = options.topics
    if isinstance(choice, Topics) and options.live is not None:
        found = {queue.topic for queue in known}
        for topic in choice.names:
            if topic not in found:
                raise cluster.unknown(topic, options.live.access)
    if isinstance(choice, Assigned):
        for queue in sorted(choice.queues - known.keys()):
            raise BadOption(
                "assign",
                f"no tier has queue {queue.queue_id} of {queue.topic!r} on {queue.broker_name!r}",
            )


def _text(rows: Mapping[Tier, int]) -> str:
    return " ".join(f"{tier.value}={count}" for tier, count in rows.items())
