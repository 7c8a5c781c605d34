"""The lag of a query, in messages and in time, from the progress that Spark reports.

Spark reports offsets without store times. The ends of the queues are therefore kept with the times
at which they were seen. The message at an offset was stored when the end of its queue passed that
offset, between two of these times.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from cometmq.spark.read.checkpoint import BadOffset, Offsets, StreamOffset, from_json

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue

Place = tuple[str, str]
"""A topic and a broker."""

ENDS_MAX: Final = 240
"""Maximum number of ends kept for a queue. If there are more, every second one is dropped."""


class EndHistory:
    """The ends of the queues of one query over time."""

    def __init__(self) -> None:
        self._seen: dict[MessageQueue, deque[tuple[float, int]]] = {}

    def note(self, ends: Offsets, at_s: float) -> None:
        """Record the ends of queues at a time, which is not before that of the previous call.

        If a queue ends before its previous end, its topic was recreated, and older ends are
        dropped.
        """
        for queue, end in ends.items():
            seen = self._seen.setdefault(queue, deque())
            if seen and end < seen[-1][1]:
                seen.clear()
            if len(seen) > 1 and seen[-1][1] == seen[-2][1] == end:
                seen.pop()
            seen.append((at_s, end))
            if len(seen) > ENDS_MAX:
                newest = seen[-1]
                kept = [each for number, each in enumerate(seen) if number % 2 == 0]
                self._seen[queue] = deque(kept if kept[-1] == newest else [*kept, newest])

    def age_s(self, queue: MessageQueue, reached: int, at_s: float) -> float | None:
        """Return the age of the message at offset ``reached`` of a queue.

        Returns 0 if the queue ended there, and None if the age is unknown. If the message is older
        than the first known end, its age is estimated from the rate of later messages.
        """
        seen = self._seen.get(queue)
        if not seen or seen[-1][1] <= reached:
            return 0.0
        while len(seen) > 1 and seen[1][1] <= reached:
            seen.popleft()
        (first_s, first), (last_s, last) = seen[0], seen[-1]
        if first <= reached:
            later_s, later = next(each for each in seen if each[1] > reached)
            stored_s = first_s + (later_s - first_s) * (reached - first) / (later - first)
        elif last > first:
            stored_s = first_s - (last_s - first_s) * (first - reached) / (last - first)
        else:
            return None
        return max(at_s - stored_s, 0.0)


def lag_of(end: str | None, latest: str | None) -> dict[Place, int]:
    """Return the number of messages that a batch left unread, by topic and broker.

    ``end`` and ``latest`` are the JSON texts endOffset and latestOffset of Spark's progress. The
    result is empty for offsets of another source.
    """
    offsets = offsets_of(end, latest)
    if offsets is None:
        return {}
    reached, ends = offsets
    found: dict[Place, int] = {}
    for queue, offset in reached.items():
        place = (queue.topic, queue.broker_name)
        found[place] = found.get(place, 0) + max(ends.get(queue, offset) - offset, 0)
    for queue in ends.keys() - reached.keys():
        found.setdefault((queue.topic, queue.broker_name), 0)
    return found


def offsets_of(end: str | None, latest: str | None) -> tuple[Offsets, Offsets] | None:
    """Return the offsets that a batch reached, and the last known ends of the queues.

    The parameters are those of :func:`lag_of`. The result is None for another source.
    """
    reached, newest = _parsed(end), _parsed(latest)
    if reached is None:
        return None
    ends = dict(reached.queues) | dict(reached.reached or {})
    if newest is not None:
        ends |= newest.queues
        ends |= newest.reached or {}
    return reached.queues, ends


def _parsed(text: str | None) -> StreamOffset | None:
    if not text:
        return None
    try:
        found: Any = json.loads(text)
        return from_json(found) if isinstance(found, dict) else None
    except (ValueError, BadOffset):
        return None
