"""Outages of servers and topics in the log: one line when it begins, one a minute, one at its end.

A server that is gone fails the requests of every queue and every heartbeat, many times a second.
All of them report here instead of logging; what fails is known by its address or its topic:

    unavailable address=10.0.0.1:10911 error="..."
    still_unavailable address=10.0.0.1:10911 seconds=60 failures=412 error="..."
    available_again address=10.0.0.1:10911 seconds=75 failures=520

An outage ends when each operation that failed was served again: a server that answers heartbeats
may still refuse sends, or let them time out. The single failures are logged as debug where they
happen.
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
#: Requests that were in flight when a server came back may fail for this long after it.
SETTLE_MS: Final = 5_000
#: Without a failure for this long, an outage that nobody ended is over, and an operation that
#: nobody tried again no longer prolongs one.
FORGET_MS: Final = 120_000
#: Outages that are known at one time; the oldest one is dropped.
OUTAGES_MAX: Final = 1_000


#: Operation of a failure that is not about one: any answer ends it.
_ANY: Final = 0


@dataclass(slots=True)
class _Outage:
    """What is unavailable since ``begun_ms``. If it is available again since ``ended_ms``, it is
    kept for a moment. ``failed`` has the time of the last failure of each operation (request code)
    that was not served since.
    """

    begun_ms: int
    told_ms: int
    failed_ms: int
    failures: int = 0
    ended_ms: int = -1
    error: str = ""
    failed: dict[int, int] = field(default_factory=dict)

    def served(self, operation: int, now_ms: int) -> bool:
        """Note that a request was served; return whether the outage is over."""
        failed = self.failed
        failed.pop(_ANY, None)
        failed.pop(operation, None)
        return all(now_ms - failed_ms > FORGET_MS for failed_ms in failed.values())


#: What is unavailable: a server (topic ""), a topic (address ""), or a topic on a server. A broker
#: without a known address has its name as the address.
_Subject = tuple[str, str]


def _subject_of(error: CometError, topic: str) -> tuple[_Subject, int]:
    """Return what is unavailable, and the operation that failed."""
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
    """A server (``topic`` is ""), a topic (``address`` is ""), or a topic on a server fails with
    ``error``, or is ``available`` again after ``seconds``."""

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
        """Report an error that stopped work, on ``topic`` if it was for one."""
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
        """False if nothing has failed lately: then reports of success change nothing."""
        return bool(self._known)

    def answered(self, address: str, operation: int, topic: str = "") -> None:
        """Report that a server served a request (``operation`` is its code), about ``topic`` if it
        was about one."""
        if self._known:
            self._served(("", address), operation)
            if topic:
                self._served((topic, address), operation)

    def has_route(self, topic: str, masters: Iterable[str] = ()) -> None:
        """Report that a name server knows a topic, and the addresses of these brokers (names)."""
        if self._known:
            self._served((topic, ""), _ANY)
            for name in masters:
                self._served(("", name), _ANY)

    def topic_works(self, topic: str) -> None:
        """Report that the queues of a topic could be shared: its brokers name the members of the
        group."""
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
        """Return what is unavailable, the longest outage first."""
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
