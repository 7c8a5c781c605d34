"""Discovery of the queues of a read, while queues are added and brokers go away. Applies the user's
choice about brokers that are away.

A name server forgets a broker that goes away, together with its queues, and the remaining route
looks complete. A read therefore learns from other sources which brokers to expect:

- the checkpoint of a stream, which names the broker of each queue;
- options that name brokers;
- the configuration of an ordered topic;
- other name servers, which may still know a broker;
- the brokers that earlier plans recorded (:class:`KnownBrokers`). A batch has no checkpoint, so it
  depends on these. They are in a small file of the driver per set of name servers, which is
  replaced atomically. If it cannot be read or written, that is logged, and the read continues.

An expected broker that is not in the route counts as away unless its master is registered: a
registered master means that the topic was removed from the broker.

Spark's loop may ask for the ends of a stream's queues a hundred times a second. To spare the
brokers, routes are read again only every DISCOVERY_MS. After a round that found nothing, the next
one is delayed, so that lookups take at most a fifth of the time, whatever the number of queues. A
server that is away is asked again after a pause that doubles with each failure (:class:`Backoff`),
while the others are read as before. A stream needs name servers only to find new queues, so it
continues while they are away.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.spark.brokers import cluster, offsets
from cometmq.spark.brokers.cluster import NameServersAway
from cometmq.spark.brokers.offsets import EndOffsets
from cometmq.spark.read import topics
from cometmq.spark.read.options import MissingBroker, Outage
from cometmq.spark.read.positions import AtOffsets, AtTimes, NamedPosition
from cometmq.spark.read.topics import Assigned, Pattern, TopicQueues, matching

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.topics import TopicChoice

log = logging.getLogger(__name__)

DISCOVERY_MS: Final = 1_000
"""Upper bound of the delay until new queues and topics are found."""

OUTAGE_MS: Final = 120_000
"""Time for which a broker or a name server may be away before the query fails."""

BATCH_OUTAGE_MS: Final = 30_000
"""Time for which the plan of a batch waits for a broker."""

PAUSE_MS: Final = 500

OUTAGE_WARNING_MS: Final = 30_000
"""Interval of the log lines while the query waits for a broker."""

WARNING_MS: Final = 60_000
"""Interval of the log lines while the query continues without a broker."""

AWAY_MIN_MS: Final = 100
AWAY_MAX_MS: Final = 2_000
"""Bounds of the pause until a server that is away is asked again."""

REST_SHARE: Final = 4
REST_MAX_MS: Final = 1_000
"""Delay after a round that found nothing: REST_SHARE times the duration of the round, at most
REST_MAX_MS."""

ELSEWHERE_MS: Final = 2_000
"""Request timeout for name servers after the first, which the plan does not depend on."""

KEPT_MS: Final = 72 * 3_600_000
"""A broker that was not seen for this long is forgotten: 72 hours, the default retention of
brokers."""

RENEWED_MS: Final = 3_600_000
"""Minimum age of a recorded time at which it is updated."""

PAIRS_MAX: Final = 100_000
FILE_BYTES_MAX: Final = 32 << 20
"""Limits of the file of recorded brokers: pairs of topic and broker, and bytes read."""

AWAY: Final = (RouteNotFound, NotConnected, RequestTimedOut)
"""Errors that end when a broker, a name server or a route comes back."""

_NAME_SERVERS: Final = ""
"""Key of the name servers in :class:`Backoff`; the other keys are broker names."""

Seen = dict[str, dict[str, int]]
"""Time when each broker was last seen (ms since the epoch), by topic and broker name."""

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


@dataclass(frozen=True, slots=True)
class PlannedQueues:
    """The queues of a plan. ``without`` are the names of the brokers that it leaves out."""

    queues: list[MessageQueue]
    without: frozenset[str] = frozenset()


def find_queues(
    options: ReadOptions, known: Iterable[MessageQueue] = (), *, must_exist: bool = True
) -> PlannedQueues:
    """Return the queues of a plan.

    ``known`` are queues that the query has read. With missingBroker=warn, brokers that are away are
    left out. Otherwise such a broker raises BrokerMissing, NotConnected or RequestTimedOut. Raises
    NameServersAway if no name server answers, and with ``must_exist`` the errors of
    :func:`topics.check`.
    """
    found = topics.find(options.topics, options.access)
    recorded = KnownBrokers(options.outage.known_brokers, options.access)
    others = _brokers_elsewhere(options, found)
    if not options.outage.brokers:
        others = recorded.absent(options.topics, found.brokers) | others
    away = missing_brokers(found, options, known, others)
    warns = options.outage.rule is MissingBroker.WARN
    for name, why in away.items():
        if not warns:
            raise BrokerMissing(name, why, options.access)
        log.warning("broker_missing name=%s reason=%r", name, why)
    if must_exist:
        topics.check(found, options.topics, options.access, without=away)
    queues = [queue for queue in found.queues if queue.broker_name not in away]
    _remember(recorded, options, found, away)
    silent = _unresponsive(queues, options.access) if warns else frozenset()
    return PlannedQueues(
        [queue for queue in queues if queue.broker_name not in silent], silent | away.keys()
    )


def _remember(
    recorded: KnownBrokers, options: ReadOptions, found: TopicQueues, away: Mapping[str, str]
) -> None:
    """Record the brokers that hold queues, for later plans."""
    there: dict[str, set[str]] = {}
    for queue in found.queues:
        if queue.broker_name not in away:
            there.setdefault(queue.topic, set()).add(queue.broker_name)
    before = recorded.chosen(options.topics)
    recorded.keep(
        there,
        {topic: held - found.brokers.get(topic, frozenset()) - away.keys()
         for topic, held in before.items()},
    )  # fmt: skip


def _unresponsive(queues: Collection[MessageQueue], access: Access) -> frozenset[str]:
    """Return the names of the queues' brokers that do not answer."""
    found = set()
    for name in sorted({queue.broker_name for queue in queues}):
        try:
            offsets.ends([queue for queue in queues if queue.broker_name == name], access)
        except (NotConnected, RequestTimedOut) as error:
            log.warning("broker_missing name=%s reason=%r", name, str(error))
            found.add(name)
    return frozenset(found)


def wait_for_brokers(attempt: Callable[[], T], outage: Outage, default_ms: int) -> T:
    """Call ``attempt``, repeatedly while a broker is away, and return its result.

    Raises its last error: NotConnected and RequestTimedOut once ``outage.timeout_ms`` (or
    ``default_ms``) has passed, at once with missingBroker=fail. All other errors, and
    NameServersAway, are raised at once.
    """
    began_ms = _clock.monotonic_ms()
    timeout_ms = default_ms if outage.timeout_ms is None else outage.timeout_ms
    warned_ms: int | None = None
    while True:
        try:
            return attempt()
        except NameServersAway:
            raise
        except (NotConnected, RequestTimedOut) as error:
            away_ms = _clock.monotonic_ms() - began_ms
            if outage.rule is MissingBroker.FAIL or away_ms >= timeout_ms:
                raise
            if warned_ms is None or away_ms - warned_ms >= OUTAGE_WARNING_MS:
                warned_ms = away_ms
                log.warning("waiting_for_broker away_ms=%d error=%r", away_ms, str(error))
        _pause.wait(min(PAUSE_MS, timeout_ms - away_ms) / 1000)


def without_brokers(named: NamedPosition, without: Collection[str]) -> NamedPosition:
    """Return ``named`` without the queues of brokers that a read leaves out."""
    position = named.position
    if not without or not isinstance(position, (AtOffsets, AtTimes)):
        return named
    left = {q: at for q, at in position.by_queue.items() if q.broker_name not in without}
    return replace(named, position=replace(position, by_queue=left))


def missing_brokers(
    found: TopicQueues,
    options: ReadOptions,
    known: Iterable[MessageQueue] = (),
    others: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the brokers that are away, each with the reason why it is expected.

    A broker is expected if an option or a route names it, if the query has read one of its queues
    (``known``), or if it is in ``others``, which has the reason. Raises NameServersAway,
    BrokerRefused.
    """
    there = frozenset().union(*found.brokers.values()) if found.brokers else frozenset()
    reasons = {
        name: why
        for name, why in {**found.absent, **_brokers_named(options)}.items()
        if name not in there
    }
    # If option brokers is set, it lists all brokers: others were taken out of service.
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


def _brokers_named(options: ReadOptions) -> dict[str, str]:
    """Return the brokers that options name, each with the option as the reason."""
    found: dict[str, str] = {}
    if isinstance(options.topics, Assigned):
        found |= {q.broker_name: "option 'assign' lists it" for q in options.topics.queues}
    for named in (options.starting, options.ending):
        if named is not None and isinstance(named.position, (AtOffsets, AtTimes)):
            why = f"option {named.option!r} lists it"
            found |= dict.fromkeys((queue.broker_name for queue in named.position.by_queue), why)
    return found | dict.fromkeys(options.outage.brokers, "option 'brokers' lists it")


def _brokers_elsewhere(options: ReadOptions, found: TopicQueues) -> dict[str, str]:
    """Return brokers that are missing in ``found`` and known to name servers after the first, each
    with the reason. A name server that has just started knows few brokers."""
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


class Backoff:
    """Times when servers that failed may be asked again. The pause after the first failure is
    AWAY_MIN_MS; it doubles with each further failure, up to AWAY_MAX_MS. ``now_ms`` is a monotonic
    time."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._due_ms: dict[str, int] = {}
        self._errors: dict[str, ClientError] = {}

    def error(self, name: str, now_ms: int) -> ClientError | None:
        """Return the last failure of a server while its pause lasts; None if it may be asked."""
        return self._errors[name] if now_ms < self._due_ms.get(name, now_ms) else None

    def failed(self, name: str, error: ClientError, now_ms: int) -> None:
        """Record a failure, which starts a pause."""
        before = self._failures.get(name, 0)
        self._failures[name] = before + 1
        self._due_ms[name] = now_ms + min(AWAY_MIN_MS << min(before, 16), AWAY_MAX_MS)
        self._errors[name] = error

    def answered(self, name: str) -> None:
        """Reset a server that answered."""
        if self._failures.pop(name, None) is not None:
            del self._due_ms[name], self._errors[name]


class Discovery:
    """Looks up the ends of a stream's queues, and tolerates outages for a limited time."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        #: Result and time of the last successful lookup. Without a time, the next round looks up.
        self._found = TopicQueues([], [])
        self._found_ms: int | None = None
        self._missing: dict[str, str] = {}
        #: Brokers that the last round could not ask; None (all) if no name server answered it.
        self._away: frozenset[str] | None = frozenset()
        self._away_since_ms: int | None = None
        self._outage_warned_ms: int | None = None
        self._warned_ms: int | None = None
        self._unknown_warned_ms: int | None = None
        #: Time since which the stream reads without name servers.
        self._alone_since_ms: int | None = None
        self._alone_warned_ms: int | None = None
        self._rest_until_ms = 0
        self._backoff = Backoff()

    def ends(self, known: Iterable[MessageQueue] = ()) -> EndOffsets:
        """Return the end of each queue, without the queues of brokers that are away.

        ``known`` are the queues that the query has read; their brokers are expected. While no name
        server answers, the queues are those that were found last. Raises the last failure once it
        has lasted for the option outageTimeout (default OUTAGE_MS): a broker is away (raised at
        once with missingBroker=fail), a topic that the user named is missing, or no name server has
        answered yet.
        """
        _pause.wait(max(0, self._rest_until_ms - _clock.monotonic_ms()) / 1000)
        began_ms = _clock.monotonic_ms()
        found: dict[MessageQueue, int] = {}
        copies: set[MessageQueue] = set()
        failure = self._look(known, began_ms)
        queues = self._found.queues
        away = set(self._missing)
        for name in sorted({queue.broker_name for queue in queues} - away):
            earlier = self._backoff.error(name, began_ms)
            if earlier is not None:
                away.add(name)
                failure = self._failure_of(earlier) or failure
                continue
            of_broker = [queue for queue in queues if queue.broker_name == name]
            try:
                ends = offsets.ends(of_broker, self._options.access)
            except AWAY as error:
                self._backoff.failed(name, error, _clock.monotonic_ms())
                away.add(name)
                failure = self._failure_of(error) or failure
                continue
            self._backoff.answered(name)
            found |= ends.by_queue
            copies |= ends.copies
        self._away = None if isinstance(failure, NameServersAway) else frozenset(away)
        self._tolerate(failure)
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
        """Look up the routes if DISCOVERY_MS has passed. Return the failure, or None."""
        if self._found_ms is not None and now_ms - self._found_ms < DISCOVERY_MS:
            return None
        earlier = self._backoff.error(_NAME_SERVERS, now_ms)
        if earlier is not None:
            return self._with_known_routes(earlier)
        access = self._options.access
        try:
            found = topics.find(self._options.topics, access)
            self._missing = missing_brokers(found, self._options, known)
        except AWAY as error:
            self._backoff.failed(_NAME_SERVERS, error, _clock.monotonic_ms())
            if not isinstance(error, NameServersAway):
                self._found, self._found_ms, self._missing = TopicQueues([], []), None, {}
            return self._with_known_routes(error)
        self._found, self._found_ms = found, now_ms
        if self._alone_since_ms is not None:
            log.warning("name_servers_recovered away_ms=%d", now_ms - self._alone_since_ms)
        self._alone_since_ms = self._alone_warned_ms = None
        failure = self._failure_of_missing()
        if failure is not None:
            self._backoff.failed(_NAME_SERVERS, failure, _clock.monotonic_ms())
            self._found_ms = None
            return failure
        self._backoff.answered(_NAME_SERVERS)
        if not found.unknown:
            return None
        # The topic was deleted or does not exist yet. With failOnDataLoss=false the query continues
        # without it.
        if self._options.fail_on_data_loss:
            unknown = cluster.unknown(found.unknown[0], access)
            self._backoff.failed(_NAME_SERVERS, unknown, _clock.monotonic_ms())
            self._found_ms = None
            return unknown
        if self._unknown_warned_ms is None or now_ms - self._unknown_warned_ms >= WARNING_MS:
            self._unknown_warned_ms = now_ms
            log.warning("topics_unknown topics=%s", ",".join(found.unknown))
        return None

    def _with_known_routes(self, error: ClientError) -> ClientError | None:
        """Return the failure of a lookup that ended with ``error``.

        If only the name servers are away and the queues are known, the lookup itself is no failure:
        the brokers answer without name servers.
        """
        if not isinstance(error, NameServersAway) or not self._found.queues:
            return error
        now_ms = _clock.monotonic_ms()
        if self._alone_since_ms is None:
            self._alone_since_ms = now_ms
        if self._alone_warned_ms is None or now_ms - self._alone_warned_ms >= OUTAGE_WARNING_MS:
            self._alone_warned_ms = now_ms
            away_ms = now_ms - self._alone_since_ms
            log.warning("reading_without_name_servers away_ms=%d error=%r", away_ms, str(error))
        return self._failure_of_missing()

    def _failure_of_missing(self) -> ClientError | None:
        for name, why in self._missing.items():
            failure = self._failure_of(BrokerMissing(name, why, self._options.access))
            if failure is not None:
                return failure
        return None

    def _failure_of(self, error: ClientError) -> ClientError | None:
        """Return ``error``, or log it and return None if the user chose to continue without a
        broker that is away."""
        if self._options.outage.rule is not MissingBroker.WARN:
            return error
        now_ms = _clock.monotonic_ms()
        if self._warned_ms is None or now_ms - self._warned_ms >= WARNING_MS:
            self._warned_ms = now_ms
            log.warning("broker_missing error=%r", str(error))
        return None

    def _tolerate(self, failure: ClientError | None) -> None:
        """Raise ``failure`` once failures have lasted too long. Until then log it, so that a query
        survives the restart of a broker."""
        now_ms = _clock.monotonic_ms()
        if failure is None:
            if self._away_since_ms is not None:
                log.warning("queue_discovery_recovered away_ms=%d", now_ms - self._away_since_ms)
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


class KnownBrokers:
    """The brokers that earlier plans recorded in a folder, for one set of name servers. Without a
    folder there are none."""

    def __init__(self, folder: str | None, access: Access) -> None:
        self._path: Path | None = None
        if folder is not None:
            name = hashlib.sha256(";".join(sorted(access.nameservers)).encode()).hexdigest()[:24]
            self._path = Path(folder) / f"brokers-{name}.json"

    def absent(self, choice: TopicChoice, there: Mapping[str, frozenset[str]]) -> dict[str, str]:
        """Return recorded brokers that held queues of the chosen topics and are not in ``there``
        (names by topic), each with the reason why it is expected."""
        found: dict[str, str] = {}
        for topic, brokers in self._chosen(choice).items():
            for name in brokers.keys() - there.get(topic, frozenset()):
                moment = datetime.fromtimestamp(brokers[name] // 1000, UTC).isoformat()
                found[name] = (
                    f"it had queues of {topic!r} when they were read at {moment} (recorded in "
                    f"{self._path}; option brokers overrides that)"
                )
        return found

    def keep(self, there: Mapping[str, Iterable[str]], gone: Mapping[str, Iterable[str]]) -> None:
        """Record that the brokers in ``there`` hold queues, and that those in ``gone`` no longer
        do. Both are names by topic."""
        now_ms = _clock.wall_ms()
        seen = self._read()
        changed = False
        for topic, names in there.items():
            of_topic = seen.setdefault(topic, {})
            for name in names:
                if now_ms - of_topic.get(name, 0) > RENEWED_MS:
                    of_topic[name], changed = now_ms, True
        for topic, names in gone.items():
            for name in names:
                changed |= seen.get(topic, {}).pop(name, None) is not None
        if changed:
            self._write(seen)

    def chosen(self, choice: TopicChoice) -> dict[str, frozenset[str]]:
        """Return the recorded brokers of each chosen topic."""
        return {topic: frozenset(brokers) for topic, brokers in self._chosen(choice).items()}

    def _chosen(self, choice: TopicChoice) -> Seen:
        if isinstance(choice, Assigned):
            return {}  # assigned queues name their brokers
        seen = self._read()
        if isinstance(choice, Pattern):
            names = matching(choice, seen, frozenset())
        else:
            names = [name for name in choice.names if name in seen]
        return {name: seen[name] for name in names}

    def _read(self) -> Seen:
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as opened:
                found = msgspec.json.decode(opened.read(FILE_BYTES_MAX), type=Seen)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeError) as error:
            log.warning("known_brokers_unreadable path=%s error=%r", self._path, str(error))
            return {}
        now_ms = _clock.wall_ms()
        return {
            topic: {name: at for name, at in names.items() if 0 <= now_ms - at < KEPT_MS}
            for topic, names in found.items()
        }

    def _write(self, seen: Seen) -> None:
        if self._path is None:
            return
        brokers_by_topic = {topic: names for topic, names in seen.items() if names}
        if sum(map(len, brokers_by_topic.values())) > PAIRS_MAX:
            log.warning("known_brokers_too_many path=%s", self._path)
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent)
            try:
                with os.fdopen(handle, "wb") as opened:
                    opened.write(msgspec.json.encode(brokers_by_topic))
                os.replace(name, self._path)
            except OSError:
                with suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            log.warning("known_brokers_not_written path=%s error=%r", self._path, str(error))
