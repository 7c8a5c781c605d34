"""One cluster as one account sees it: its client, shared calls, and time series.

Two tasks poll the brokers:

    runtime information of all brokers   every 2 s
    progress of all groups               every 10 s

While nobody looks at a page both poll every 30 s, so that charts have a past. The pause after a
round is at least ten times the round's duration, so a large cluster is polled less often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from cometmq.admin.api import Admin, Unread
from cometmq.admin.deadletters import DeadLetters
from cometmq.admin.groups import Groups
from cometmq.admin.messages import Messages
from cometmq.admin.servers import Servers
from cometmq.admin.traces import Traces
from cometmq.client.routes import by_queue
from cometmq.core.errors import BrokerRefused, CometError, NotConnected
from cometmq.dashboard.history import History
from cometmq.dashboard.sharing import SharedCalls
from cometmq.message.names import RETRY_PREFIX, SYSTEM_GROUP_PREFIX
from cometmq.net.tasks import Tasks
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.admin.api import Broker
    from cometmq.client.client import Client
    from cometmq.core.clock import Clock
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.bodies import ConsumeOffset

log = logging.getLogger(__name__)

T = TypeVar("T")

BROKERS_MS: Final = 2_000
GROUPS_MS: Final = 10_000
IDLE_MS: Final = 30_000
#: Time since the last request of a page after which polling slows down to IDLE_MS.
LOOKED_MS: Final = 60_000
_PAUSE_FACTOR: Final = 10
#: Groups with a time series per queue: those whose pages were opened last.
FOLLOWED_GROUPS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker process and its runtime information, or the problem why there is none.

    ``in_per_second`` and ``out_per_second`` are messages received and delivered.
    """

    broker: Broker
    facts: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    in_per_second: float | None = None
    out_per_second: float | None = None

    @property
    def is_master(self) -> bool:
        """True for the master of its name."""
        return self.broker.broker_id == 0


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Progress of a group in all its topics, its retry topic included.

    ``lag`` are its waiting messages; ``behind_ms`` is the age of the oldest one, None if no broker
    knows it; ``per_second`` is the rate at which the group consumes.
    """

    group: str
    lag: int = 0
    behind_ms: int | None = None
    per_second: float = 0.0
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldSettings(Generic[T]):
    """Settings of topics or groups on all masters, and the masters that did not answer."""

    #: Settings by name of the topic or group, then by broker name.
    known: Mapping[str, Mapping[str, T]]
    #: Why a master did not answer, by broker name.
    unread: Mapping[str, str]

    def of(self, name: str) -> Mapping[str, T]:
        """Return the settings of a topic or group by broker name; empty if no broker has it."""
        return self.known.get(name, {})


class WatchedCluster:
    """The cluster of an open client. ``account`` is the access key of the client, or empty.

    :meth:`start` begins to poll; :meth:`close` ends polling and closes the client. ``history`` is
    the one whose bound the series of this cluster share.
    """

    def __init__(
        self, client: Client, clock: Clock, account: str = "", history: History | None = None
    ) -> None:
        self.client = client
        self.account = account
        self.clock = clock
        self.admin = Admin(client.session)
        self.groups = Groups(self.admin)
        self.messages = Messages(self.admin)
        self.dead_letters = DeadLetters(self.admin)
        self.servers = Servers(self.admin)
        self.traces = Traces(self.admin)
        self._tasks = Tasks()
        self.calls = SharedCalls(clock, self._tasks)
        self.history = History(shared=history)
        #: The last state of each broker process, by address.
        self.brokers: dict[str, BrokerState] = {}
        #: The last progress of each group, by group.
        self.lags: dict[str, GroupLag] = {}
        #: Why the last round found no brokers; empty if it found some.
        self.problem = ""
        #: True if a broker refused a request because of a missing or wrong account.
        self.is_refused = False
        #: True if all brokers that answered refused requests.
        self.is_shut_out = False
        self._looked_ms = clock.monotonic_ms()
        self._followed: dict[str, None] = {}
        self._awake = asyncio.Event()
        self._lags_known = asyncio.Event()

    def start(self) -> None:
        """Start to poll the brokers."""
        clock = self.clock
        self._tasks.keep(self._watch_brokers, name="dashboard brokers", clock=clock)
        self._tasks.keep(self._watch_groups, name="dashboard groups", clock=clock)

    async def close(self) -> None:
        """Stop polling, and close the client."""
        await self._tasks.close()
        await self.client.close()
        self.history.clear()

    def look(self) -> None:
        """Note that somebody looks at a page; polling speeds up if it was slow."""
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._looked_ms > LOOKED_MS:
            self._awake.set()
        self._looked_ms = now_ms

    def follow(self, group: str) -> None:
        """Keep a time series of each queue of a group from now on."""
        self._followed.pop(group, None)
        while len(self._followed) >= FOLLOWED_GROUPS_MAX:
            del self._followed[next(iter(self._followed))]
        self._followed[group] = None

    async def known_lags(self) -> Mapping[str, GroupLag]:
        """Return the progress of all groups; wait up to 2 s for the first round."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._lags_known.wait()
        return self.lags

    async def masters(self) -> list[Broker]:
        """Return the masters, without those that did not answer in the last round."""
        silent = {address for address, each in self.brokers.items() if each.problem}
        found = await self.admin.brokers(masters_only=True)
        return [each for each in found if each.address not in silent]

    async def settings(
        self, ask: Callable[[Broker], Awaitable[Mapping[str, T]]]
    ) -> ToldSettings[T]:
        """Return the settings of all masters; ``ask`` returns those of one master by name.

        A master that did not answer in the last round is not asked.
        """
        unread = {
            state.broker.name: state.problem
            for state in self.brokers.values()
            if state.is_master and state.problem
        }
        failed: list[Unread] = []
        tables = await self.admin.ask_together(await self.masters(), ask, failed)
        unread.update({each.broker.name: str(each.error) for each in failed})
        known: dict[str, dict[str, T]] = {}
        for broker, table in tables.items():
            for name, config in table.items():
                known.setdefault(name, {})[broker.name] = config
        return ToldSettings(known, unread)

    def silent(self) -> list[Unread]:
        """Return the masters that did not answer in the last round.

        Operations of ``admin`` with a parameter ``unread`` skip the brokers that are in it already,
        so that a page does not wait for them.
        """
        return [
            Unread(each.broker, NotConnected(each.broker.address, each.problem))
            for each in self.brokers.values()
            if each.is_master and each.problem not in ("", _REFUSED)
        ]

    # ------------------------------------------------------------------ rounds

    async def _watch_brokers(self) -> None:
        while True:
            begun_ms = self.clock.monotonic_ms()
            await self.ask_brokers()
            await self._pause(BROKERS_MS, begun_ms)

    async def _watch_groups(self) -> None:
        while True:
            begun_ms = self.clock.monotonic_ms()
            if not self.is_refused:
                await self.ask_groups()
            await self._pause(GROUPS_MS, begun_ms)

    async def _pause(self, interval_ms: int, begun_ms: int) -> None:
        now_ms = self.clock.monotonic_ms()
        pause_ms = max(interval_ms, _PAUSE_FACTOR * (now_ms - begun_ms))
        if now_ms - self._looked_ms <= LOOKED_MS:
            await self.clock.sleep_ms(pause_ms)
            return
        self._awake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(pause_ms, IDLE_MS) / 1000):
                await self._awake.wait()

    async def ask_brokers(self) -> None:
        """Poll the runtime information of all brokers; update ``brokers`` and the rates."""
        try:
            found = await self.admin.brokers()
        except (CometError, OSError) as error:
            self.problem = str(error)
            return
        states = await asyncio.gather(*map(self._state, found))
        self.problem = "" if found else "no broker is registered with the name servers"
        self.is_refused = any(each.problem == _REFUSED for each in states)
        answers = [each for each in states if each.problem in ("", _REFUSED)]
        self.is_shut_out = self.is_refused and all(each.problem for each in answers)
        self.brokers = {each.broker.address: each for each in states}
        now_ms = self.clock.wall_ms()
        masters = [each for each in states if each.is_master]
        for name in ("in", "out"):
            rates = [
                rate
                for each in masters
                if (rate := getattr(each, f"{name}_per_second")) is not None
            ]
            if rates:
                self.history.add(name, now_ms, sum(rates))

    async def _state(self, broker: Broker) -> BrokerState:
        """Poll one broker; its rates are those between this round and the last one."""
        try:
            facts = await self.admin.broker_runtime(broker.address)
        except (CometError, OSError) as error:
            return BrokerState(broker, problem=_REFUSED if is_refusal(error) else str(error))
        now_ms = self.clock.wall_ms()
        rates: list[float | None] = []
        for name, counter in (("in", "msgPutTotalTodayNow"), ("out", "msgGetTotalTodayNow")):
            key = name, broker.address
            rate = self.history.rate(key, now_ms, number(facts.get(counter, "")))
            if rate is not None:
                self.history.add(key, now_ms, rate)
            rates.append(rate if rate is not None else self.history.last(key))
        return BrokerState(broker, facts, "", *rates)

    async def ask_groups(self) -> None:
        """Poll the progress of all groups; update ``lags`` and the time series."""
        found: list[tuple[str, tuple[dict[MessageQueue, ConsumeOffset], float]]] = []
        try:
            for broker in await self.masters():
                found += await self._consumption(broker.address)
        except (CometError, OSError) as error:
            log.debug("groups_not_read error=%s", error)
            self._lags_known.set()
            return
        now_ms = self.clock.wall_ms()
        tables: dict[str, dict[MessageQueue, ConsumeOffset]] = {}
        rates: dict[str, float] = {}
        for group, (table, rate) in found:
            tables.setdefault(group, {}).update(table)
            rates[group] = rates.get(group, 0.0) + rate
        self.lags = {
            group: lag_of(group, table, rates[group], now_ms)
            for group, table in sorted(tables.items())
            if not group.startswith(SYSTEM_GROUP_PREFIX)
        }
        self._lags_known.set()
        self.history.add("lag", now_ms, sum(each.lag for each in self.lags.values()))
        for group, each in self.lags.items():
            self.history.add(("lag", group), now_ms, each.lag)
            self.history.add(("behind", group), now_ms, (each.behind_ms or 0) / 1000)
        for group in self._followed:
            for queue, at in tables.get(group, {}).items():
                waits = max(0, at.broker_offset - at.consumer_offset)
                self.history.add(("lag", group, queue), now_ms, waits)

    async def _consumption(
        self, address: str
    ) -> list[tuple[str, tuple[dict[MessageQueue, ConsumeOffset], float]]]:
        """Return offsets and rate of each group on a broker; empty if it does not answer."""
        try:
            rows = [
                row
                for ordered in (False, True)
                for row in await self.servers.consumption(address, ordered=ordered)
            ]
        except (CometError, OSError) as error:
            log.debug("groups_not_read address=%s error=%s", address, error)
            return []
        return [
            (row.group, (by_queue(row.stats.offset_table), row.stats.consume_tps)) for row in rows
        ]


_REFUSED: Final = "it serves accounts only"


def reasons(unread: Iterable[Unread]) -> dict[str, str]:
    """Return why brokers did not answer, by broker name."""
    return {
        each.broker.name: each.error.problem
        if isinstance(each.error, NotConnected)
        else str(each.error)
        for each in unread
    }


def is_refusal(error: Exception) -> bool:
    """Return whether a broker refused a request because of a missing account or permission.

    A broker of RocketMQ 4.9 answers with SYSTEM_ERROR and the name of its exception.
    """
    if not isinstance(error, BrokerRefused):
        return False
    return error.code == ResponseCode.NO_PERMISSION or any(
        word in error.broker_remark for word in ("AclException", "accessKey", "No acl config")
    )


def lag_of(
    group: str, table: Mapping[MessageQueue, ConsumeOffset], per_second: float, now_ms: int
) -> GroupLag:
    """Return the progress of a group from the offsets of its queues."""
    lag = 0
    oldest_ms: int | None = None
    for at in table.values():
        waits = at.broker_offset - at.consumer_offset
        if waits > 0:
            lag += waits
            if at.last_timestamp > 0:
                oldest_ms = min(at.last_timestamp, oldest_ms or at.last_timestamp)
    behind_ms = 0 if not lag else None if oldest_ms is None else max(0, now_ms - oldest_ms)
    topics = {queue.topic for queue in table if not queue.topic.startswith(RETRY_PREFIX)}
    return GroupLag(group, lag, behind_ms, per_second, tuple(sorted(topics)))


def number(text: str) -> float:
    """Return the number with which a runtime fact begins; 0 if there is none, or 1e18 or more."""
    word = text.split(maxsplit=1)[0] if text.strip() else ""
    try:
        found = float(word.replace(",", ""))
    except ValueError:
        return 0.0
    return found if abs(found) < 1e18 else 0.0
