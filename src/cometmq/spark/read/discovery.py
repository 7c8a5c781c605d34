"""How far the queues of a stream reach, asked again and again: queues come, brokers go away.

What Spark's loop may ask a hundred times a second is asked more gently here: routes are read anew
every DISCOVERY_MS, and after a round that found nothing the next one waits, so that asking takes at
most a fifth of the time however many queues there are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from threading import Event
from typing import TYPE_CHECKING, Final

from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.spark.brokers import cluster, reach
from cometmq.spark.brokers.cluster import NameServersAway
from cometmq.spark.brokers.reach import Ends
from cometmq.spark.read import topics
from cometmq.spark.read.outage import BrokerMissing, MissingBroker, missing
from cometmq.spark.read.topics import Found

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.options import ReadOptions

log = logging.getLogger(__name__)

OUTAGE_MS: Final = 120_000
"""How long a broker or a name server may be away before the query fails."""

DISCOVERY_MS: Final = 1_000
"""New queues and topics are found this late at most."""

TOLD_MS: Final = 5_000
"""Who waits is told of it so often."""

WARNING_MS: Final = 60_000
"""Who goes on without a broker is told of it so often."""

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
        self._found = Found([], [])
        self._found_ms: int | None = None
        self._missing: dict[str, str] = {}
        self._away: frozenset[str] | None = frozenset()
        self._away_since_ms: int | None = None
        self._told_ms: int | None = None
        self._warned_ms: int | None = None
        self._rest_until_ms = 0

    def ends(self, known: Iterable[MessageQueue] = ()) -> Ends:
        """How far each queue reaches, without those whose broker cannot be asked now. ``known``
        are the queues that the query has read: their brokers have to be there.

        Raises the last failure when some broker or name server is away for too long (OUTAGE_MS
        unless the options say otherwise), or a topic that the user named is.
        """
        _pause.wait(max(0, self._rest_until_ms - _clock.monotonic_ms()) / 1000)
        began_ms = _clock.monotonic_ms()
        found: dict[MessageQueue, int] = {}
        copies: set[MessageQueue] = set()
        failure = self._look(known, began_ms)
        queues = self._found.queues
        away = set(self._missing)
        for name in sorted({queue.broker_name for queue in queues} - away):
            of_broker = [queue for queue in queues if queue.broker_name == name]
            try:
                ends = reach.ends(of_broker, self._options.access)
            except AWAY as error:
                away.add(name)
                failure = self._weighed(error) or failure
                continue
            found |= ends.by_queue
            copies |= ends.copies
        self._away = None if isinstance(failure, NameServersAway) else frozenset(away)
        self._bear(failure)
        ended_ms = _clock.monotonic_ms()
        self._rest_until_ms = ended_ms + min(REST_SHARE * (ended_ms - began_ms), REST_MAX_MS)
        return Ends(found, frozenset(copies))

    def has_news(self) -> None:
        """The last round found something to read: the next one need not wait."""
        self._rest_until_ms = 0

    def is_away(self, queue: MessageQueue) -> bool:
        """Whether the last round could not ask the broker of a queue."""
        return self._away is None or queue.broker_name in self._away

    def _look(self, known: Iterable[MessageQueue], now_ms: int) -> ClientError | None:
        """Read the routes when it is time; gives what is wrong with them."""
        if self._found_ms is not None and now_ms - self._found_ms < DISCOVERY_MS:
            return None
        access = self._options.access
        try:
            found = topics.find(self._options.topics, access)
            self._missing = missing(found, self._options, known)
        except AWAY as error:
            self._found, self._found_ms, self._missing = Found([], []), None, {}
            return error
        self._found, self._found_ms = found, now_ms
        for name, why in self._missing.items():
            failure = self._weighed(BrokerMissing(name, why, access))
            if failure is not None:
                self._found_ms = None
                return failure
        if not found.unknown:
            return None
        # Deleted, or not there yet. Who goes on without lost messages goes on without these too.
        self._found_ms = None
        if self._options.fail_on_data_loss:
            return cluster.unknown(found.unknown[0], access)
        log.warning("topics_unknown topics=%s", found.unknown)
        return None

    def _weighed(self, error: ClientError) -> ClientError | None:
        """The failure that a broker's absence is; None where the user goes on without it."""
        if self._options.outage.rule is not MissingBroker.WARN:
            return error
        now_ms = _clock.monotonic_ms()
        if self._warned_ms is None or now_ms - self._warned_ms >= WARNING_MS:
            self._warned_ms = now_ms
            log.warning("broker_missing error=%r", str(error))
        return None

    def _bear(self, failure: ClientError | None) -> None:
        """Let a restart of a broker pass, and a real outage stop the query."""
        now_ms = _clock.monotonic_ms()
        if failure is None:
            self._away_since_ms = self._told_ms = None
            return
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
        away_ms = now_ms - self._away_since_ms
        if self._told_ms is None or now_ms - self._told_ms >= TOLD_MS:
            self._told_ms = now_ms
            log.warning("queues_unknown away_ms=%d error=%r", away_ms, str(failure))
        outage = self._options.outage
        fails_at_once = outage.rule is MissingBroker.FAIL and not isinstance(
            failure, (NameServersAway, RouteNotFound)
        )
        timeout_ms = OUTAGE_MS if outage.timeout_ms is None else outage.timeout_ms
        if fails_at_once or away_ms >= timeout_ms:
            raise failure
