"""How far the queues of a stream reach, asked again and again: queues come, brokers go away.

What Spark's loop may ask a hundred times a second is asked more gently here: routes are read anew
every DISCOVERY_MS, and after a round that found nothing the next one waits, so that asking takes at
most a fifth of the time however many queues there are.
"""

from __future__ import annotations

import logging
from threading import Event
from typing import TYPE_CHECKING, Final

from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.spark.brokers import cluster, reach
from cometmq.spark.brokers.reach import Ends
from cometmq.spark.read import topics

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.options import ReadOptions

log = logging.getLogger(__name__)

OUTAGE_MS: Final = 120_000
"""How long a broker or a name server may be away before the query fails."""

DISCOVERY_MS: Final = 1_000
"""New queues and topics are found this late at most."""

REST_SHARE: Final = 4
REST_MAX_MS: Final = 1_000
"""After a round of nothing new: this many times as long as the round took, and at most so long."""

AWAY: Final = (RouteNotFound, NotConnected, RequestTimedOut)
"""What passes when a broker, a name server or a route comes back."""

_clock: Final = SystemClock()
_pause: Final = Event()


class Discovery:
    """Asks for the ends of a stream's queues, and bears outages for a while."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._queues: list[MessageQueue] = []
        self._queues_ms: int | None = None
        self._away_since_ms: int | None = None
        self._rest_until_ms = 0

    def ends(self) -> Ends:
        """How far each queue reaches, without those whose broker cannot be asked now.

        Raises the last failure when some broker or name server is away for OUTAGE_MS, or a topic
        that the user named is.
        """
        _pause.wait(max(0, self._rest_until_ms - _clock.monotonic_ms()) / 1000)
        began_ms = _clock.monotonic_ms()
        found: dict[MessageQueue, int] = {}
        copies: set[MessageQueue] = set()
        queues, failure = self._find(began_ms)
        for name in sorted({queue.broker_name for queue in queues}):
            of_broker = [queue for queue in queues if queue.broker_name == name]
            try:
                ends = reach.ends(of_broker, self._options.access)
            except AWAY as error:
                failure = error
                continue
            found |= ends.by_queue
            copies |= ends.copies
        self._bear(failure)
        ended_ms = _clock.monotonic_ms()
        self._rest_until_ms = ended_ms + min(REST_SHARE * (ended_ms - began_ms), REST_MAX_MS)
        return Ends(found, frozenset(copies))

    def has_news(self) -> None:
        """The last round found something to read: the next one need not wait."""
        self._rest_until_ms = 0

    def _find(self, now_ms: int) -> tuple[list[MessageQueue], ClientError | None]:
        if self._queues_ms is not None and now_ms - self._queues_ms < DISCOVERY_MS:
            return self._queues, None
        access = self._options.access
        try:
            found = topics.find(self._options.topics, access)
        except AWAY as error:
            self._queues_ms = None
            return [], error
        self._queues, self._queues_ms = found.queues, now_ms
        if not found.unknown:
            return found.queues, None
        # Deleted, or not there yet. Who goes on without lost messages goes on without these too.
        self._queues_ms = None
        if self._options.fail_on_data_loss:
            return found.queues, cluster.unknown(found.unknown[0], access)
        log.warning("topics_unknown topics=%s", found.unknown)
        return found.queues, None

    def _bear(self, failure: ClientError | None) -> None:
        """Let a restart of a broker pass, and a real outage stop the query."""
        now_ms = _clock.monotonic_ms()
        if failure is None:
            self._away_since_ms = None
            return
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
        away_ms = now_ms - self._away_since_ms
        log.warning("queues_unknown away_ms=%d error=%r", away_ms, str(failure))
        if away_ms >= OUTAGE_MS:
            raise failure
