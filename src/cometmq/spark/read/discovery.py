"""Repeated lookup of the ends of a stream's queues, while queues are added and brokers go away.

Spark's loop may ask a hundred times a second. To spare the brokers, routes are read again only
every DISCOVERY_MS. After a round that found nothing, the next one is delayed, so that lookups take
at most a fifth of the time, regardless of the number of queues.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from threading import Event
from typing import TYPE_CHECKING, Final

from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.spark.brokers import cluster, offsets
from cometmq.spark.brokers.cluster import NameServersAway
from cometmq.spark.brokers.offsets import EndOffsets
from cometmq.spark.read import topics
from cometmq.spark.read.options import MissingBroker
from cometmq.spark.read.outage import BrokerMissing, missing
from cometmq.spark.read.topics import Found

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.options import ReadOptions

log = logging.getLogger(__name__)

OUTAGE_MS: Final = 120_000
"""Time for which a broker or a name server may be away before the query fails."""

DISCOVERY_MS: Final = 1_000
"""Upper bound of the delay until new queues and topics are found."""

OUTAGE_WARNING_MS: Final = 5_000
"""Interval of the log lines while the query waits for a broker."""

WARNING_MS: Final = 60_000
"""Interval of the log lines while the query continues without a broker."""

REST_SHARE: Final = 4
REST_MAX_MS: Final = 1_000
"""Delay after a round that found nothing: REST_SHARE times the duration of the round, at most
REST_MAX_MS."""

AWAY: Final = (RouteNotFound, NotConnected, RequestTimedOut)
"""Errors that end when a broker, a name server or a route comes back."""

_clock: Final = SystemClock()
_pause: Final = Event()


class Discovery:
    """Looks up the ends of a stream's queues, and tolerates outages for a limited time."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._found = Found([], [])
        self._found_ms: int | None = None
        self._missing: dict[str, str] = {}
        self._away: frozenset[str] | None = frozenset()
        self._away_since_ms: int | None = None
        self._outage_warned_ms: int | None = None
        self._warned_ms: int | None = None
        self._rest_until_ms = 0

    def ends(self, known: Iterable[MessageQueue] = ()) -> EndOffsets:
        """Return the end of each queue, without the queues of brokers that are away.

        ``known`` are the queues that the query has read; their brokers must be present. Raises the
        last failure if a broker or name server is away too long (OUTAGE_MS unless the options say
        otherwise), or if a topic that the user named is missing.
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
                ends = offsets.ends(of_broker, self._options.access)
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
        return EndOffsets(found, frozenset(copies))

    def has_news(self) -> None:
        """Record that the last round found something to read, so that the next one starts without
        delay."""
        self._rest_until_ms = 0

    def is_away(self, queue: MessageQueue) -> bool:
        """Return whether the last round could not ask the queue's broker."""
        return self._away is None or queue.broker_name in self._away

    def _look(self, known: Iterable[MessageQueue], now_ms: int) -> ClientError | None:
        """Read the routes if they are due. Return the failure, or None."""
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
        # The topic was deleted or does not exist yet. With failOnDataLoss=false the query continues
        # without it.
        self._found_ms = None
        if self._options.fail_on_data_loss:
            return cluster.unknown(found.unknown[0], access)
        log.warning("topics_unknown topics=%s", found.unknown)
        return None

    def _weighed(self, error: ClientError) -> ClientError | None:
        """Return the failure to raise for an absent broker, or None if the user chose to go on
        without it."""
        if self._options.outage.rule is not MissingBroker.WARN:
            return error
        now_ms = _clock.monotonic_ms()
        if self._warned_ms is None or now_ms - self._warned_ms >= WARNING_MS:
            self._warned_ms = now_ms
            log.warning("broker_missing error=%r", str(error))
        return None

    def _bear(self, failure: ClientError | None) -> None:
        """Tolerate the failure for a while, so that a restart passes and a longer outage stops the
        query."""
        now_ms = _clock.monotonic_ms()
        if failure is None:
            self._away_since_ms = self._outage_warned_ms = None
            return
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
        away_ms = now_ms - self._away_since_ms
        if self._outage_warned_ms is None or now_ms - self._outage_warned_ms >= OUTAGE_WARNING_MS:
            self._outage_warned_ms = now_ms
            log.warning("queue_discovery_failed away_ms=%d error=%r", away_ms, str(failure))
        outage = self._options.outage
        fails_at_once = outage.rule is MissingBroker.FAIL and not isinstance(
            failure, (NameServersAway, RouteNotFound)
        )
        timeout_ms = OUTAGE_MS if outage.timeout_ms is None else outage.timeout_ms
        if fails_at_once or away_ms >= timeout_ms:
            raise failure
