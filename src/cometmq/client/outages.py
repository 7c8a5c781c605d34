"""Outages of servers and topics: one log line at the start, one a minute, and one at the end.

While a server is down, the requests of every queue and every heartbeat fail, many times a second.
All of them report here instead of logging. An outage is identified by an address, a topic, or both:

    unavailable address=10.0.0.1:10911 error="..."
    still_unavailable address=10.0.0.1:10911 seconds=60 failures=412 error="..."
    available_again address=10.0.0.1:10911 seconds=75 failures=520

An outage ends when each operation that failed has succeeded again: a server that answers heartbeats
may still refuse sends, or let them time out. Single failures are logged at level DEBUG where they
occur.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cometmq.client.status import Unavailable
from cometmq.core.errors import (
    BrokerRefused,
    CometError,
    NotConnected,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.core.clock import Clock

log = logging.getLogger(__name__)

REMIND_MS: Final = 60_000
#: Time after the end of an outage in which requests that were in flight may still fail.
SETTLE_MS: Final = 5_000
#: Time without a failure after which an outage is over. An operation that was not tried again for
#: this time no longer prolongs an outage.
FORGET_MS: Final = 120_000
#: Maximum number of outages known at one time. At the limit the oldest one is dropped.
OUTAGES_MAX: Final = 1_000


#: Stands for a failure that is not about one operation; the success of any operation ends it.
_ANY: Final = 0


@dataclass(slots=True)
class _Outage:
    """Outage since ``begun_ms``. One that ended at ``ended_ms`` is kept for SETTLE_MS.

    ``failed`` maps each operation (request code) that has not succeeded since to the time of its
    last failure. ``told_ms`` is the time of the last log line.
    """

    begun_ms: int
    told_ms: int
    failed_ms: int
    failures: int = 0
    ended_ms: int = -1
    error: str = ""
    failed: dict[int, int] = field(default_factory=dict)

    def served(self, operation: int, now_ms: int) -> bool:
        """Note that an operation succeeded; return whether the outage is over."""
        failed = self.failed
        failed.pop(_ANY, None)
        failed.pop(operation, None)
        return all(now_ms - failed_ms > FORGET_MS for failed_ms in failed.values())


#: (topic, address) of an outage: of a server (topic ""), a topic (address ""), or a topic on a
#: server. The address of a broker without a known address is its name.
_Subject = tuple[str, str]


def _subject_of(error: CometError, topic: str) -> tuple[_Subject, int]:
    """Return the subject of an error's outage, and the operation that failed."""
    match error:
        case NotConnected():
            return ("", error.address), _ANY
        case RequestTimedOut():
            return ("", error.address), error.request_code
        case BrokerRefused():
            return (topic, error.address), error.request_code
        case RouteNotFound():
            return (error.topic, ""), _ANY
    return (topic, ""), _ANY


def _named(subject: _Subject) -> str:
    topic, address = subject
    words = (f"topic={topic}" if topic else "", f"address={address}" if address else "")
    return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class OutageEvent:
    """Start of an outage with ``error``, or its end after ``seconds`` (``available`` is True).

    It is the outage of a server (``topic`` is ""), a topic (``address`` is ""), or a topic on a
    server.
    """

    topic: str
    address: str
    available: bool
    error: str = ""
    seconds: int = 0


#: Called on the event loop; its exception is logged.
OutageHook = Callable[[OutageEvent], None]


class Outages:
    """Outages that one client notices."""

    __slots__ = ("_clock", "_known", "listeners")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Called when an outage begins and when it is over.
        self.listeners: list[OutageHook] = []
        self._known: dict[_Subject, _Outage] = {}

    def failed(self, error: CometError, topic: str = "") -> None:
        """Report an error of a request, which was about ``topic`` unless that is ""."""
        subject, operation = _subject_of(error, topic)
        now_ms = self._clock.monotonic_ms()
        known = self._known.get(subject)
        if known is not None and known.ended_ms >= 0 and now_ms - known.ended_ms < SETTLE_MS:
            return
        if known is None or known.ended_ms >= 0 or now_ms - known.failed_ms > FORGET_MS:
            known = self._begin(subject, now_ms)
            log.warning("unavailable %s error=%s", _named(subject), error)
            self._tell(OutageEvent(*subject, available=False, error=str(error)))
        known.failed_ms = known.failed[operation] = now_ms
        known.failures += 1
        known.error = str(error)
        if now_ms - known.told_ms >= REMIND_MS:
            known.told_ms = now_ms
            seconds = (now_ms - known.begun_ms) // 1000
            log.warning(
                "still_unavailable %s seconds=%d failures=%d error=%s",
                _named(subject),
                seconds,
                known.failures,
                error,
            )

    def _begin(self, subject: _Subject, now_ms: int) -> _Outage:
        self._known.pop(subject, None)
        if len(self._known) >= OUTAGES_MAX:
            del self._known[next(iter(self._known))]
        outage = self._known[subject] = _Outage(now_ms, now_ms, now_ms)
        return outage

    @property
    def any_known(self) -> bool:
        """False if nothing has failed lately, so that successes need not be reported."""
        return bool(self._known)

    def answered(self, address: str, operation: int, topic: str = "") -> None:
        """Report that a server served a request with code ``operation``, about ``topic`` if any."""
        if self._known:
            self._served(("", address), operation)
            if topic:
                self._served((topic, address), operation)

    def has_route(self, topic: str, masters: Iterable[str] = ()) -> None:
        """Report that a topic has a route with addresses of ``masters`` (broker names)."""
        if self._known:
            self._served((topic, ""), _ANY)
            for name in masters:
                self._served(("", name), _ANY)

    def topic_works(self, topic: str) -> None:
        """Report that a rebalance of a topic succeeded: a broker returned the group's members."""
        for subject in [each for each in self._known if each[0] == topic]:
            self._served(subject, RequestCode.GET_CONSUMER_LIST_BY_GROUP)

    def _served(self, subject: _Subject, operation: int) -> None:
        known = self._known.get(subject)
        if known is not None and known.served(operation, self._clock.monotonic_ms()):
            self._end(subject)

    def _end(self, subject: _Subject) -> None:
        known = self._known[subject]
        now_ms = self._clock.monotonic_ms()
        if known.ended_ms >= 0:
            if now_ms - known.ended_ms >= SETTLE_MS:
                del self._known[subject]
            return
        known.ended_ms = now_ms
        seconds = (now_ms - known.begun_ms) // 1000
        log.warning(
            "available_again %s seconds=%d failures=%d", _named(subject), seconds, known.failures
        )
        self._tell(OutageEvent(*subject, available=True, seconds=seconds))

    def current(self) -> tuple[Unavailable, ...]:
        """Return the current outages, the oldest first."""
        now_ms = self._clock.monotonic_ms()
        return tuple(
            Unavailable(*subject, (now_ms - each.begun_ms) // 1000, each.failures, each.error)
            for subject, each in list(self._known.items())
            if each.ended_ms < 0 and now_ms - each.failed_ms <= FORGET_MS
        )

    def _tell(self, event: OutageEvent) -> None:
        for listener in list(self.listeners):
            try:
                listener(event)
            except Exception:
                log.exception("hook_failed hook=%r moment=outage", listener)
