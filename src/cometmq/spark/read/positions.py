"""The positions where a read starts and ends: parsed from options, and resolved to offsets of
queues.

A position is the beginning or end of the queues, offsets, times, or the committed offsets of a
group.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import offsets
from cometmq.spark.options import (
    BadOption,
    Given,
    get,
    moment_ms,
    one_of,
    only_one,
    parsed,
    some_text,
)
from cometmq.spark.read.checkpoint import key_of
from cometmq.spark.read.losses import report_beyond

if TYPE_CHECKING:
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.losses import LossRule

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
STRATEGY: Final = "startingOffsetsByTimestampStrategy"

OPTIONS: Final = (
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", STRATEGY),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("consumerGroup", "uncommittedOffsets"),
)
K = TypeVar("K")

Search = Generator[int, int, int]
"""A binary search as a generator: yields an offset, receives the store time (ms) of its message,
and at last returns the offset found."""


class Edge(Enum):
    """The beginning or the end of a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


_EDGES: Final = {EARLIEST_OFFSET: Edge.EARLIEST, LATEST_OFFSET: Edge.LATEST}


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets of queues; -2 is the earliest and -1 the latest. Queues not in ``by_queue`` are at
    ``otherwise``."""

    by_queue: Mapping[MessageQueue, int]
    otherwise: Edge


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first message stored at a moment (ms since the epoch) or later.

    There is one moment for all queues, or one per queue; queues without a moment are at
    ``otherwise``. A queue without such a message is at its end, or raises BadOption if
    ``is_strict``.
    """

    everywhere_ms: int | None = None
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)
    otherwise: Edge = Edge.EARLIEST
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class AtGroup:
    """The committed offsets of a consumer group. Queues without a committed offset are at
    ``otherwise``."""

    group: str
    otherwise: Edge


Position = Edge | AtOffsets | AtTimes | AtGroup


@dataclass(frozen=True, slots=True)
class NamedPosition:
    """A position and the option that named it, for error messages."""

    option: str
    position: Position


def starting(given: Given) -> NamedPosition | None:
    """Return the position where a read starts, or None if no option names it. Raises BadOption."""
    found = _named(given, "starting", Edge.EARLIEST)
    if STRATEGY in given and (found is None or not isinstance(found.position, AtTimes)):
        raise BadOption(STRATEGY, "needs startingTimestamp or startingOffsetsByTimestamp")
    if "uncommittedOffsets" in given and (found is None or not isinstance(found.position, AtGroup)):
        raise BadOption("uncommittedOffsets", "needs startingOffsets=group")
    return found


def ending(given: Given) -> NamedPosition | None:
    """Return the position where a batch ends, or None if no option names it. Raises BadOption."""
    return _named(given, "ending", Edge.LATEST)


def in_order(start: NamedPosition | None, end: NamedPosition | None) -> None:
    """Check the order of two positions as far as possible without a broker. Raises BadOption."""
    if start is None or end is None:
        return
    first, last = start.position, end.position
    if not (isinstance(first, AtTimes) and isinstance(last, AtTimes)):
        return
    if first.everywhere_ms is None or last.everywhere_ms is None:
        return
    if first.everywhere_ms > last.everywhere_ms:
        raise BadOption(end.option, f"is before {start.option}")


def _named(given: Given, side: str, otherwise: Edge) -> NamedPosition | None:
    """Return the position in the options of a side, "starting" or "ending"; None if there is
    none."""
    by_offset, by_time = f"{side}Offsets", f"{side}Timestamp"
    option = only_one(given, (by_offset, by_time, f"{side}OffsetsByTimestamp"))
    if option is None:
        return None
    if option == by_offset:
        return NamedPosition(option, parsed(option, given[option], _offsets(given, otherwise)))
    is_strict = side == "starting" and get(given, STRATEGY, _is_error, False)
    if option == by_time:
        everywhere_ms = parsed(option, given[option], moment_ms)
        return NamedPosition(option, AtTimes(everywhere_ms, is_strict=is_strict))
    by_queue = parsed(option, given[option], _moments)
    return NamedPosition(option, AtTimes(None, by_queue, otherwise, is_strict))


def _is_error(text: str) -> bool:
    return one_of("error", "latest")(text) == "error"


def _offsets(given: Given, otherwise: Edge) -> Callable[[str], Position]:
    def read(text: str) -> Position:
        if text.lower() in ("earliest", "latest"):
            return Edge(text.lower())
        if text.lower() == "group" and otherwise is Edge.EARLIEST:
            return _group(given)
        return AtOffsets(parse_by_queue(text, _offset), otherwise)

    return read


def _group(given: Given) -> AtGroup:
    group = get(given, "consumerGroup", some_text, None)
    if group is None:
        raise BadOption("consumerGroup", "is required with startingOffsets=group")
    edge = get(given, "uncommittedOffsets", one_of("earliest", "latest"), "earliest")
    return AtGroup(group, Edge(edge))


def parse_by_queue(text: str, read: Callable[[int | str], int]) -> dict[MessageQueue, int]:
    """Parse numbers per queue from JSON like ``{"topic": {"broker": {"0": 123}}}``. Raises
    ValueError."""
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, int | str]]])
    except msgspec.MsgspecError as error:
        form = '{"topic": {"broker": {"0": 123}}}'
        raise ValueError(f"is neither a known word nor like {form}: {error}") from None
    return {
        _queue(topic, broker, queue_id): read(value)
        for topic, brokers in found.items()
        for broker, ids in brokers.items()
        for queue_id, value in ids.items()
    }


def _queue(topic: str, broker: str, queue_id: str) -> MessageQueue:
    """Return the queue with an id given as text. Raises ValueError."""
    if not (queue_id.isascii() and queue_id.isdigit()):
        raise ValueError(f"{queue_id!r} of {topic} on {broker} is not a queue id")
    return MessageQueue(topic, broker, int(queue_id))


def _offset(offset: int | str) -> int:
    if not isinstance(offset, int) or offset < EARLIEST_OFFSET:
        raise ValueError(f"{offset!r} is not an offset; -2 means earliest, -1 latest")
    return offset


def _moments(text: str) -> dict[MessageQueue, int]:
    return parse_by_queue(text, lambda moment: moment_ms(str(moment)))


def resolve(
    named: NamedPosition, queues: Sequence[MessageQueue], access: Access
) -> dict[MessageQueue, int]:
    """Return the offset of each queue at a position.

    Raises BadOption if the position names a queue that does not exist, or if it is strict and a
    queue has no message at its moment or later. Raises the errors of :func:`offsets.ends`.
    """
    position = named.position
    match position:
        case Edge():
            return _at_edge(position, queues, access)
        case AtOffsets():
            _check_known(named.option, position.by_queue, queues)
            exact = {q: at for q, at in position.by_queue.items() if at not in _EDGES}
            edge_of = {q: _EDGES[at] for q, at in position.by_queue.items() if at in _EDGES}
            return exact | _rest(
                exact, queues, access, lambda q: edge_of.get(q, position.otherwise)
            )
        case AtTimes():
            _check_known(named.option, position.by_queue, queues)
            found = _at_times(named.option, position, queues, access)
            return found | _rest(found, queues, access, lambda _: position.otherwise)
        case AtGroup():
            found = offsets.committed(position.group, queues, access)
            return found | _rest(found, queues, access, lambda _: position.otherwise)


def end_of(
    named: NamedPosition, queues: Sequence[MessageQueue], access: Access, rule: LossRule
) -> dict[MessageQueue, int]:
    """Return the offset of each queue at the position where a read ends.

    An offset beyond the end of its queue raises BadOption; if ``rule`` says to continue, it is
    reported as a loss and reduced to the end. An end reported by a slave is no limit, because the
    slave may lag. Raises the errors of :func:`resolve`.
    """
    found = resolve(named, queues, access)
    if isinstance(named.position, AtOffsets):
        known_ends = offsets.ends(
            [queue for queue in named.position.by_queue if queue in found], access
        )
        for queue, end in sorted(known_ends.by_queue.items()):
            if found[queue] > end and queue not in known_ends.copies:
                report_beyond(named.option, queue, end, found[queue], rule)
                found[queue] = end
    return found


def check_order(start: dict[MessageQueue, int], end: dict[MessageQueue, int], option: str) -> None:
    """Raise BadOption if a queue starts after its end. ``option`` is the option that named the
    start."""
    for queue in sorted(start):
        if queue in end and start[queue] > end[queue]:
            raise BadOption(
                option,
                f"queue {key_of(queue)} (broker|topic|queue) starts at {start[queue]}, "
                f"after its end {end[queue]}",
            )


def _check_known(
    option: str, named: Iterable[MessageQueue], queues: Iterable[MessageQueue]
) -> None:
    unknown = sorted(set(named) - set(queues))
    if unknown:
        raise BadOption(option, f"no queue {key_of(unknown[0])} (broker|topic|queue)")


def _rest(
    found: Mapping[MessageQueue, int],
    queues: Sequence[MessageQueue],
    access: Access,
    edge_of: Callable[[MessageQueue], Edge],
) -> dict[MessageQueue, int]:
    """Return the offsets of the queues missing in ``found``, each at its edge."""
    rest: dict[MessageQueue, int] = {}
    for edge in Edge:
        rest |= _at_edge(edge, [q for q in queues if q not in found and edge_of(q) is edge], access)
    return rest


def _at_edge(edge: Edge, queues: Sequence[MessageQueue], access: Access) -> dict[MessageQueue, int]:
    ask = offsets.earliest if edge is Edge.EARLIEST else offsets.latest
    return ask(queues, access)


def _at_times(
    option: str, position: AtTimes, queues: Sequence[MessageQueue], access: Access
) -> dict[MessageQueue, int]:
    moments: dict[MessageQueue, int] = {}
    for queue in queues:
        at_ms = position.by_queue.get(queue, position.everywhere_ms)
        if at_ms is not None:
            moments[queue] = at_ms
    newest = offsets.latest(moments, access)
    found = at_moments(moments, newest, access)
    for queue, offset in found.items():
        if position.is_strict and offset >= newest[queue]:
            raise BadOption(
                option,
                f"queue {key_of(queue)} (broker|topic|queue) has no message stored at "
                f"{moments[queue]} ms or later; {STRATEGY} latest starts it at its end",
            )
    return found


def at_moments(
    moments: Mapping[MessageQueue, int], newest: Mapping[MessageQueue, int], access: Access
) -> dict[MessageQueue, int]:
    """Return the offset of the first message stored at each queue's moment (ms) or later.

    If there is none before the end in ``newest``, return that end. Raises the errors of
    :func:`offsets.ends`.
    """
    oldest, near = offsets.earliest(moments, access), offsets.near_moments(moments, access)
    return search_together(
        {
            queue: first_at_or_after(oldest[queue], newest[queue], near[queue], at_ms)
            for queue, at_ms in moments.items()
        },
        lambda places: {
            q: sample.store_ms for q, sample in offsets.samples(places, access).items()
        },
    )


def search_together(
    searches: Mapping[K, Search], look: Callable[[Mapping[K, int]], Mapping[K, int]]
) -> dict[K, int]:
    """Run searches in parallel and return their results by key.

    ``look`` takes the offset that each unfinished search asks about, and returns the store times of
    the messages there (ms). It is called once per step of all searches.
    """
    found: dict[K, int] = {}
    wanted: dict[K, int] = {}

    def step(key: K, found_ms: int | None) -> None:
        try:
            search = searches[key]
            wanted[key] = next(search) if found_ms is None else search.send(found_ms)
        except StopIteration as end:
            found[key] = end.value

    for key in searches:
        step(key, None)
    while wanted:
        asked, wanted = wanted, {}
        for key, store_ms in look(asked).items():
            step(key, store_ms)
    return found


def first_at_or_after(low: int, high: int, hint: int, at_ms: int) -> Search:
    """Search the first offset in ``low..high`` whose store time is ``at_ms`` or later. Return
    ``high`` if all are earlier.

    Store times of ``low <= offset < high`` must not decrease. The search begins at the guess
    ``hint`` and doubles its steps away from it, so a good guess takes three lookups.
    """
    # The message at ``before`` is earlier than ``at_ms``, the message at ``after`` is not.
    before, after = low - 1, high
    step = 1
    at = min(max(hint, low), high - 1)
    while after - before > 1:
        if (yield at) < at_ms:
            before = at
            at = at + step
        else:
            after = at
            at = at - step
        step *= 2
        if not before < at < after:
            at = (before + after) // 2
    return after
