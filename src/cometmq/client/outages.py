"""Outages of servers and topics in the log: one line when it begins, one a minute, one at its end.

A server that is gone fails the requests of every queue and every heartbeat, many times a second.
All of them report here instead of logging; what fails is known by its address or its topic:

    unavailable address=10.0.0.1:10911 error="..."
    still_unavailable address=10.0.0.1:10911 seconds=60 failures=412 error="..."
    available_again address=10.0.0.1:10911 seconds=75 failures=520

The single failures are logged as debug where they happen.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import (
    BrokerRefused,
    CometError,
    NotConnected,
    RequestTimedOut,
    RouteNotFound,
)

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

log = logging.getLogger(__name__)

REMIND_MS: Final = 60_000
#: Requests that were in flight when a server came back may fail for this long after it.
SETTLE_MS: Final = 5_000
#: Without a failure for this long, an outage that nobody ended is over.
FORGET_MS: Final = 120_000
#: Outages that are known at one time; the oldest one is dropped.
OUTAGES_MAX: Final = 1_000


@dataclass(slots=True)
class _Outage:
    """What is unavailable since ``begun_ms``. If it is available again since ``ended_ms``, it is
    kept for a moment.
    """

    begun_ms: int
    told_ms: int
    failed_ms: int
    failures: int = 0
    ended_ms: int = -1


#: What is unavailable: a server (topic ""), a topic (address ""), or a topic on a server.
_Subject = tuple[str, str]


def _subject_of(error: CometError, topic: str) -> _Subject:
    match error:
        case NotConnected() | RequestTimedOut():
            return "", error.address
        case BrokerRefused():
            return topic, error.address
        case RouteNotFound():
            return error.topic, ""
    return topic, ""


def _named(subject: _Subject) -> str:
    topic, address = subject
    words = (f"topic={topic}" if topic else "", f"address={address}" if address else "")
    return " ".join(filter(None, words))


class Outages:
    """Outages that one client notices."""

    __slots__ = ("_clock", "_known")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[_Subject, _Outage] = {}

    def failed(self, error: CometError, topic: str = "") -> None:
        """Report an error that stopped work, on ``topic`` if it was for one."""
        subject = _subject_of(error, topic)
        now_ms = self._clock.monotonic_ms()
        known = self._known.get(subject)
        if known is not None and known.ended_ms >= 0 and now_ms - known.ended_ms < SETTLE_MS:
            return
        if known is None or known.ended_ms >= 0 or now_ms - known.failed_ms > FORGET_MS:
            known = self._begin(subject, now_ms)
            log.warning("unavailable %s error=%s", _named(subject), error)
        known.failed_ms = now_ms
        known.failures += 1
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

    def answered(self, address: str, topic: str = "") -> None:
        """Report that a server served a request, about ``topic`` if it was about one."""
        if self._known:
            self._end(("", address))
            self._end((topic, address))

    def has_route(self, topic: str) -> None:
        """Report that a name server knows a topic."""
        if self._known:
            self._end((topic, ""))

    def topic_works(self, topic: str) -> None:
        """Report that the queues of a topic could be shared: nothing refuses them."""
        for subject in [each for each in self._known if each[0] == topic]:
            self._end(subject)

    def _end(self, subject: _Subject) -> None:
        known = self._known.get(subject)
        if known is None:
            return
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
