"""Promotion: an operator makes a slave the master; the answer says what could be lost by that.

    judge      turns the known facts into findings: ok, a warning, or a refusal that only ``force``
               overrides
    promote    looks for other masters, calls judge, answers, and asks for a restart as the master
               (supervisor.py)

Other masters with the same broker name are found through the name servers.

Two masters with the same name each store messages that the other never gets. That happens if an
old master is started again after its slave was promoted, or if a slave is promoted by force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.config import BrokerRole
from cometmq.broker.replication.roles import SlavePart
from cometmq.core.errors import BadRequest, CometError
from cometmq.protocol.bodies import ClusterInfo, Finding, Promote, Promotion
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.frame import Reply

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.replication.roles import MasterPart
    from cometmq.broker.topics.registration import Registration
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

#: Interval of the search for other masters, and the time that a name server has to answer.
INTERVAL_MS: Final = 30_000
_TIMEOUT_MS: Final = 3_000


async def master_at(remoting: Remoting, server: str, broker_name: str) -> str | None:
    """Return the address of the master that a name server lists under a name.

    Return "" if it lists none, and None if it does not answer.
    """
    try:
        response = await remoting.call(
            server, RequestCode.GET_BROKER_CLUSTER_INFO, None, timeout_ms=_TIMEOUT_MS
        )
        known = parse_json(response.body, ClusterInfo).broker_addr_table.get(broker_name)
    except (CometError, ValueError):
        return None
    return "" if known is None else known.broker_addrs.get("0", "")


class Rivals:
    """Looks for other masters of ``broker_name``; ``own`` are this broker's own addresses."""

    def __init__(
        self,
        broker_name: str,
        own: Set[str],
        registration: Registration,
        *,
        remoting: Remoting,
        clock: Clock,
    ) -> None:
        self._name = broker_name
        self.own = set(own)
        self._registration = registration
        self._remoting = remoting
        self._clock = clock
        self.found: list[str] = []

    async def run_forever(self) -> None:
        """Look at once, and then every INTERVAL_MS, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep_ms(INTERVAL_MS)

    async def look(self) -> None:
        """Ask all name servers once, and log newly found masters."""
        servers = self._registration.name_servers
        answers = await asyncio.gather(
            *(master_at(self._remoting, server, self._name) for server in servers)
        )
        found = sorted({at for at in answers if at and at not in self.own})
        for address in set(found) - set(self.found):
            log.error(
                "another_master name=%s address=%s reason=%r",
                self._name, address,
                "two brokers accept sends under one name, and each lacks what the other stores: "
                "stop one of them, and start it as a slave with haRejoin=truncate",
            )  # fmt: skip
        self.found = found


#: Age from which copied tables are reported as old; they are copied every 10 s.
OLD_TABLES_MS: Final = 30_000
_TABLES_TIMEOUT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts that a slave knows before its promotion.

    ``registered`` are name servers with the address that they list as the master; ``unheard`` are
    name servers that do not answer. ``end`` is the end of the slave's log. ``reported_end`` is
    the end of the master's log, reported ``reported_age_ms`` ago; -1 if it was never reported.
    ``tables_age_ms`` is -1 if the tables were never copied.
    """

    master: str
    is_connected: bool
    problem: str
    registered: tuple[tuple[str, str], ...]
    unheard: tuple[str, ...]
    end: int
    undispatched_bytes: int
    reported_end: int
    reported_age_ms: int
    tables_age_ms: int


def judge(seen: Situation) -> list[Finding]:
    """Return the findings for and against a promotion."""
    return [*_master(seen), _log(seen), _tables(seen), *_rest(seen)]


def _fine(text: str) -> Finding:
    return Finding("ok", text)


def _warning(text: str) -> Finding:
    return Finding("warning", text)


def _refusal(text: str) -> Finding:
    return Finding("refused", text)


def _master(seen: Situation) -> list[Finding]:
    found = [
        _refusal(f"name server {server} lists {address} as the master: stop that broker first")
        for server, address in seen.registered
    ]
    if seen.is_connected:
        found.append(_refusal(f"the master {seen.master} is connected: stop it first"))
    found += [
        _warning(f"name server {server} does not answer: it may list another master")
        for server in seen.unheard
    ]
    return found or [_fine("the master is gone: it is not connected, and no name server lists it")]


def _log(seen: Situation) -> Finding:
    if seen.problem:
        return _refusal(f"its log differs from the master's: {seen.problem}")
    if seen.reported_end < 0:
        return _warning(
            "the master never reported the end of its log: it is unknown how much this slave lacks"
        )
    lacks = seen.reported_end - seen.end
    ago = _ago(seen.reported_age_ms)
    if lacks > 0:
        return _warning(
            f"it lacks {lacks:,} of the {seen.reported_end:,} bytes that the master reported "
            f"{ago}: they are lost unless the master returns before the promotion"
        )
    return _fine(
        f"its log is complete up to the end that the master reported {ago}: "
        f"{seen.reported_end:,} bytes"
    )


def _tables(seen: Situation) -> Finding:
    if seen.tables_age_ms < 0:
        return _warning("topics, groups and offsets were never copied from the master")
    text = f"topics, groups and offsets were copied {_ago(seen.tables_age_ms)}"
    if seen.tables_age_ms > OLD_TABLES_MS:
        return _warning(f"{text}: consumers may receive again what they have read since")
    return _fine(text)


def _rest(seen: Situation) -> list[Finding]:
    found = []
    if seen.undispatched_bytes:
        text = (
            f"{seen.undispatched_bytes:,} bytes are not in the queues yet: they are dispatched at "
            "the start as a master"
        )
        found.append(_fine(text))
    return found


def _ago(age_ms: int) -> str:
    return f"{age_ms / 1000:.1f} s ago"


class PromotionAdmin:
    """Serves the request that makes a slave the master.

    ``promote`` asks for a restart in that role; it is None if nothing can restart the broker.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        part: MasterPart | SlavePart,
        promote: Callable[[BrokerRole], None] | None,
        registration: Registration,
        remoting: Remoting,
        clock: Clock,
    ) -> None:
        self._config = config
        self._registration = registration
        self._part = part
        self._promote = promote
        self._remoting = remoting
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.PROMOTE_BROKER: self.promote}

    async def promote(self, peer: Peer, request: Request[Any]) -> Reply:
        """Judge the promotion, answer with the findings, and restart as the master.

        Do not restart if only a check was requested, or if a finding refuses and the request does
        not force the promotion.
        """
        wanted = parse_json(request.body, Promote)
        part, restart = self._part, self._promote
        if wanted.role not in ("SYNC_MASTER", "ASYNC_MASTER"):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"{wanted.role!r} is neither SYNC_MASTER nor ASYNC_MASTER",
            )
        if not isinstance(part, SlavePart):
            role = self._config.broker_role.name
            raise BadRequest(ResponseCode.ILLEGAL_OPERATION, f"this broker is {role}, not a slave")
        if restart is None:
            raise BadRequest(
                ResponseCode.ILLEGAL_OPERATION,
                "this process cannot restart its broker: stop it, and start it with "
                f"brokerRole={wanted.role} and brokerId=0",
            )
        if part.where():
            # Copy the tables once more. If that fails, the findings report the age of the copies.
            with suppress(CometError, ValueError, TimeoutError):
                async with asyncio.timeout(_TABLES_TIMEOUT_MS / 1000):
                    await part.tables.copy(part.where())
        findings = judge(await self._look(part))
        refused = any(finding.refuses for finding in findings)
        begins = not wanted.check and (wanted.force or not refused)
        for finding in findings:
            level = logging.INFO if finding.weight == "ok" else logging.WARNING
            log.log(level, "promotion_finding weight=%s text=%r", finding.weight, finding.text)
        if begins:
            log.warning("promoted by=%s role=%s force=%s", peer.address, wanted.role, wanted.force)
            restart(BrokerRole[wanted.role])
        return Reply(body=encode_json(Promotion(begins, self._config.broker_name, findings)))

    async def _look(self, part: SlavePart) -> Situation:
        """Collect the facts for :func:`judge`; ask all name servers for a master."""
        config, store, tables = self._config, part.slave.store, part.tables
        servers = self._registration.name_servers
        name, remoting = config.broker_name, self._remoting
        answers = await asyncio.gather(*(master_at(remoting, server, name) for server in servers))
        now_ms = self._clock.monotonic_ms()
        pairs = list(zip(servers, answers, strict=True))
        return Situation(
            master=part.where() or part.ha_address,
            is_connected=part.slave.is_connected,
            problem="" if part.slave.problem is None else str(part.slave.problem),
            registered=tuple((server, found) for server, found in pairs if found),
            unheard=tuple(server for server, found in pairs if found is None),
            end=store.written_offset,
            undispatched_bytes=store.written_offset - store.dispatched_offset,
            reported_end=tables.master_end,
            reported_age_ms=now_ms - tables.master_end_ms,
            tables_age_ms=tables.age_ms,
        )
