"""The messages of each queue that a read wants: the positions of the options in one store.

Pure functions except for ``bounds``, which looks up a queue's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cometmq.message.model import MessageQueue
from cometmq.spark.options import BadOption
from cometmq.spark.read.positions import EARLIEST_OFFSET, LATEST_OFFSET, AtOffsets, AtTimes, Edge

if TYPE_CHECKING:
    from cometmq.spark.read.positions import NamedPosition

END: Final = (1 << 63) - 1
Key = tuple[str, int]
"""Topic and queue id: a queue of one store."""


@dataclass(frozen=True, slots=True)
class Window:
    """Messages with ``start <= queue offset < stop`` and ``from_ms <= store time < until_ms``.

    A ``start`` of -1 is the beginning of the queue.
    """

    start: int = -1
    stop: int = END
    from_ms: int = -END
    until_ms: int = END


OPEN: Final = Window()


@dataclass(frozen=True, slots=True)
class Windows:
    """The window of each queue. ``otherwise`` is for queues without one of their own."""

    otherwise: Window = OPEN
    by_queue: dict[Key, Window] = field(default_factory=dict)

    def of(self, topic: str, queue_id: int) -> Window:
        """Return the window of a queue."""
        return self.by_queue.get((topic, queue_id), self.otherwise)

    @property
    def are_open(self) -> bool:
        """True if no message is left out."""
        return self.otherwise == OPEN and not self.by_queue


Bounds = Callable[[Key], tuple[int, int]]
"""Returns the offset of a queue's first message and the offset after its last one."""


def resolve(
    starting: NamedPosition | None,
    ending: NamedPosition | None,
    broker_name: str,
    queues: Iterable[Key],
    bounds: Bounds,
) -> Windows:
    """Return the windows of one broker's queues. Raises BadOption for a queue that does not
    exist."""
    otherwise = replace(_unknown_start(starting), **_unknown_stop(ending))
    if _is_global(starting) and _is_global(ending):
        return Windows(otherwise)
    known = set(queues)
    for named in (starting, ending):
        _check(named, broker_name, known)
    found: dict[Key, Window] = {}
    for key in known:
        window = _narrowed(OPEN, starting, broker_name, key, bounds, is_start=True)
        found[key] = _narrowed(window, ending, broker_name, key, bounds, is_start=False)
    return Windows(otherwise, found)


def _is_global(named: NamedPosition | None) -> bool:
    """Return whether a position is the same for existing queues and for those that are added
    later."""
    position = None if named is None else named.position
    if isinstance(position, AtTimes):
        return position.everywhere_ms is not None
    return position is None


def _unknown_start(named: NamedPosition | None) -> Window:
    """Return the window of a queue unknown to the plan: it starts with its first message."""
    if named is not None and isinstance(named.position, AtTimes):
        return Window(from_ms=named.position.everywhere_ms or -END)
    return OPEN


def _unknown_stop(named: NamedPosition | None) -> dict[str, int]:
    if named is not None and isinstance(named.position, AtTimes):
        return {
            "until_ms": END
            if named.position.everywhere_ms is None
            else named.position.everywhere_ms
        }
    return {}


def _check(named: NamedPosition | None, broker_name: str, known: set[Key]) -> None:
    if named is None or not isinstance(named.position, (AtOffsets, AtTimes)):
        return
    for queue in sorted(named.position.by_queue):
        if queue.broker_name == broker_name and (queue.topic, queue.queue_id) not in known:
            raise BadOption(named.option, f"no queue {queue.queue_id} of {queue.topic!r} in the "
                            f"store of {broker_name!r}")  # fmt: skip


def check_brokers(named: NamedPosition | None, brokers: Iterable[str]) -> None:
    """Reject a position that names a broker whose store is not read. Raises BadOption."""
    if named is None or not isinstance(named.position, (AtOffsets, AtTimes)):
        return
    known = set(brokers)
    for queue in sorted(named.position.by_queue):
        if queue.broker_name not in known:
            raise BadOption(
                named.option,
                f"no store is of broker {queue.broker_name!r} ({', '.join(sorted(known))})",
            )


def _narrowed(
    window: Window,
    named: NamedPosition | None,
    broker_name: str,
    key: Key,
    bounds: Bounds,
    *,
    is_start: bool,
) -> Window:
    if named is None:
        return window
    position = named.position
    if isinstance(position, AtTimes):
        moment = position.everywhere_ms
        if moment is None:
            moment = _of(position.by_queue, broker_name, key)
        if moment is not None:
            return replace(window, from_ms=moment) if is_start else replace(window, until_ms=moment)
        return _at_edge(window, position.otherwise, key, bounds, is_start=is_start)
    if isinstance(position, AtOffsets):
        offset = _of(position.by_queue, broker_name, key)
        if offset is not None and offset not in (EARLIEST_OFFSET, LATEST_OFFSET):
            return replace(window, start=offset) if is_start else replace(window, stop=offset)
        edge = {EARLIEST_OFFSET: Edge.EARLIEST, LATEST_OFFSET: Edge.LATEST}.get(
            offset if offset is not None else 0, position.otherwise
        )
        return _at_edge(window, edge, key, bounds, is_start=is_start)
    if isinstance(position, Edge):
        return _at_edge(window, position, key, bounds, is_start=is_start)
    raise BadOption(named.option, "a store directory is read without the offsets of groups")


def _at_edge(window: Window, edge: Edge, key: Key, bounds: Bounds, *, is_start: bool) -> Window:
    if (edge is Edge.EARLIEST) == is_start:
        # From the first message on, or up to the last.
        return window if is_start else replace(window, stop=bounds(key)[1])
    start, stop = bounds(key)
    return replace(window, start=stop) if is_start else replace(window, stop=start)


def _of(numbers: Mapping[MessageQueue, int], broker_name: str, key: Key) -> int | None:
    return numbers.get(MessageQueue(key[0], broker_name, key[1]))
