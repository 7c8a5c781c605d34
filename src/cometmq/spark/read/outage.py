"""Detects brokers that are away, and applies the user's choice about them to a read.

A name server forgets a broker that goes away, together with its queues, and the remaining route
looks complete. A read therefore learns the expected brokers from other sources: the checkpoint of a
stream names the broker of each queue, options name brokers, so does the configuration of an ordered
topic, another name server may still know a broker, and every plan records the brokers it saw
(remembered.py). An expected broker counts as away unless its master is registered; if it is
registered, the topic was removed from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut
from cometmq.spark.brokers import cluster, offsets
from cometmq.spark.brokers.cluster import NameServersAway
from cometmq.spark.read import topics
from cometmq.spark.read.options import MissingBroker, Outage
from cometmq.spark.read.positions import AtOffsets, AtTimes, NamedPosition
from cometmq.spark.read.remembered import Memory
from cometmq.spark.read.topics import Assigned, Found

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.options import ReadOptions

log = logging.getLogger(__name__)

BATCH_OUTAGE_MS: Final = 30_000
"""Time for which the plan of a batch waits for a broker."""

ELSEWHERE_MS: Final = 2_000
"""Request timeout for further name servers, which the plan does not depend on."""

PAUSE_MS: Final = 500

T = TypeVar("T")

_clock: Final = SystemClock()
_pause: Final = Event()


class BrokerMissing(NotConnected):
    """Raised if ``broker_name`` holds messages to read, and none of the name servers asked knows
    its address."""

    def __init__(self, broker_name: str, reason: str, access: Access) -> None:
        self.broker_name = broker_name
        super().__init__(
            f"broker {broker_name!r}",
            f"is in no route of the name servers ({';'.join(access.nameservers)}), and {reason}; "
            "start it again, or set option missingBroker to warn to continue without its messages",
        )


# ----------------------------------------------------------------------------- missing brokers


def missing(
    found: Found,
    options: ReadOptions,
    known: Iterable[MessageQueue] = (),
    others: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the brokers that are away, each with the reason why it is expected.

    Brokers are expected by options, by the route, because a query has read their queues ``known``,
    or by the reasons in ``others``. Raises NameServersAway, BrokerRefused.
    """
    there = frozenset().union(*found.brokers.values()) if found.brokers else frozenset()
    reasons = {
        name: why for name, why in {**found.absent, **_named(options)}.items() if name not in there
    }
    # If the option names brokers, it lists all of them: others were taken out of service.
    named = options.outage.brokers
    for queue in known:
        if named and queue.broker_name not in named:
            continue
        if queue.broker_name not in found.brokers.get(queue.topic, ()):
            reasons.setdefault(
                queue.broker_name, f"this query has read its queues of {queue.topic!r}"
            )
    reasons = {**(others or {}), **reasons}
    if not reasons:
        return {}
    registered = cluster.masters(options.access)
    return {name: why for name, why in sorted(reasons.items()) if name not in registered}


def _named(options: ReadOptions) -> dict[str, str]:
    """Return the brokers that options name, each with the option as the reason."""
    found: dict[str, str] = {}
    if isinstance(options.topics, Assigned):
        found |= {q.broker_name: "option 'assign' lists it" for q in options.topics.queues}
    for named in (options.starting, options.ending):
        if named is not None and isinstance(named.position, (AtOffsets, AtTimes)):
            why = f"option {named.option!r} lists it"
            found |= dict.fromkeys((queue.broker_name for queue in named.position.by_queue), why)
    return found | dict.fromkeys(options.outage.brokers, "option 'brokers' lists it")


def _elsewhere(options: ReadOptions, found: Found) -> dict[str, str]:
    """Return brokers that are known only to name servers after the first: one that has just started
    knows few brokers."""
    there: dict[str, str] = {}
    for address in options.access.nameservers[1:]:
        timeout_ms = min(options.access.request_timeout_ms, ELSEWHERE_MS)
        other = replace(options.access, nameservers=(address,), request_timeout_ms=timeout_ms)
        try:
            elsewhere_found = topics.find(options.topics, other)
        except ClientError as error:
            log.warning("name_server_unreachable address=%s error=%r", address, str(error))
            continue
        for queue in elsewhere_found.queues:
            if queue.broker_name not in found.brokers.get(queue.topic, ()):
                why = f"name server {address} knows its queues of {queue.topic!r}"
                there.setdefault(queue.broker_name, why)
    return there


# ------------------------------------------------------------------------- waiting in a plan


@dataclass(frozen=True, slots=True)
class Gathered:
    """The queues of a plan. ``without`` are the brokers that it leaves out."""

    queues: list[MessageQueue]
    without: frozenset[str] = frozenset()


def gather(
    options: ReadOptions, known: Iterable[MessageQueue] = (), *, must_exist: bool = True
) -> Gathered:
    """Return the queues of a plan, with all expected brokers present except those that the user
    allows to be missing.

    ``known`` are queues that the query has read. Raises BrokerMissing, NotConnected or
    RequestTimedOut for a broker that is away, NameServersAway if no name server answers, and with
    ``must_exist`` the errors of :func:`topics.check`.
    """
    found = topics.find(options.topics, options.access)
    memory = Memory(options.outage.memory, options.access)
    others = _elsewhere(options, found)
    if not options.outage.brokers:
        others = memory.absent(options.topics, found.brokers) | others
    away = missing(found, options, known, others)
    warns = options.outage.rule is MissingBroker.WARN
    for name, why in away.items():
        if not warns:
            raise BrokerMissing(name, why, options.access)
        log.warning("broker_missing name=%s reason=%r", name, why)
    if must_exist:
        topics.check(found, options.topics, options.access, without=away)
    queues = [queue for queue in found.queues if queue.broker_name not in away]
    _remember(memory, options, found, away)
    silent = _silent(queues, options.access) if warns else frozenset()
    return Gathered(
        [queue for queue in queues if queue.broker_name not in silent], silent | away.keys()
    )


def _remember(memory: Memory, options: ReadOptions, found: Found, away: Mapping[str, str]) -> None:
    """Record the brokers that hold queues, for later plans."""
    there: dict[str, set[str]] = {}
    for queue in found.queues:
        if queue.broker_name not in away:
            there.setdefault(queue.topic, set()).add(queue.broker_name)
    before = memory.chosen(options.topics)
    memory.keep(
        there,
        {topic: held - found.brokers.get(topic, frozenset()) - away.keys()
         for topic, held in before.items()},
    )  # fmt: skip


def _silent(queues: Collection[MessageQueue], access: Access) -> frozenset[str]:
    """Return the brokers that are in the route and do not answer."""
    found = set()
    for name in sorted({queue.broker_name for queue in queues}):
        try:
            offsets.ends([queue for queue in queues if queue.broker_name == name], access)
        except (NotConnected, RequestTimedOut) as error:
            log.warning("broker_missing name=%s reason=%r", name, str(error))
            found.add(name)
    return frozenset(found)


def outlast(attempt: Callable[[], T], outage: Outage, default_ms: int) -> T:
    """Call ``attempt`` until it returns while a broker is away and the user wants to wait.

    Return its result. Raises its last error: NotConnected and RequestTimedOut after the time is up,
    others at once.
    """
    began_ms = _clock.monotonic_ms()
    timeout_ms = default_ms if outage.timeout_ms is None else outage.timeout_ms
    while True:
        try:
            return attempt()
        except NameServersAway:
            raise
        except (NotConnected, RequestTimedOut) as error:
            away_ms = _clock.monotonic_ms() - began_ms
            if outage.rule is MissingBroker.FAIL or away_ms >= timeout_ms:
                raise
            log.warning("waiting_for_broker away_ms=%d error=%r", away_ms, str(error))
        _pause.wait(min(PAUSE_MS, timeout_ms - away_ms) / 1000)


def unnamed(named: NamedPosition, without: Collection[str]) -> NamedPosition:
    """Return ``named`` without the queues of brokers that a read leaves out."""
    position = named.position
    if not without or not isinstance(position, (AtOffsets, AtTimes)):
        return named
    left = {q: at for q, at in position.by_queue.items() if q.broker_name not in without}
    return replace(named, position=replace(position, by_queue=left))
