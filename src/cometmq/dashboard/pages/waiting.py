"""Page of the messages that consumers cannot see yet: delayed ones and open transactions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from cometmq.core.errors import CometError
from cometmq.dashboard.rendering import PAGE_ROWS, cluster_of, render, whole
from cometmq.dashboard.sharing import NAMES_MS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.admin.messages import HalfMessage
    from cometmq.dashboard.watched import BrokerState, WatchedCluster

#: Prefix of the runtime facts of delay levels: ``<prefix>LEVEL = next offset,end offset``.
_LEVEL: Final = "scheduleMessageOffset_"
#: Longest time for which a page waits for the open transactions.
_SEARCH_S: Final = 4


@dataclass(frozen=True, slots=True)
class _Level:
    """One delay level of a broker: its delay, and the number of messages that wait in it."""

    broker: str
    level: int
    delay: str
    waiting: int


async def show(request: Request) -> Response:
    """Show delayed messages by level, the timer's facts, and open transactions."""
    cluster = cluster_of(request)
    if not cluster.brokers:
        await cluster.ask_brokers()
    settings = await cluster.calls.get(
        "settings", cluster.servers.broker_settings, fresh_ms=NAMES_MS
    )
    delays = {each.address: each.values.get("messageDelayLevel", "").split() for each in settings}
    masters = [each for each in cluster.brokers.values() if each.is_master]
    levels = [
        level for state in masters for level in _levels(state, delays.get(state.broker.address, []))
    ]
    timers = [
        (state.broker.name, key, value)
        for state in masters
        for key, value in sorted(state.facts.items())
        if key.startswith("timer")
    ]
    halves, problem = await _transactions(cluster)
    return render(
        request, "waiting.html", title="Waiting", levels=[each for each in levels if each.waiting],
        timers=timers, halves=halves[:PAGE_ROWS], transactions=len(halves), problem=problem,
    )  # fmt: skip


def _levels(state: BrokerState, delays: list[str]) -> list[_Level]:
    found = []
    for key, value in state.facts.items():
        level = whole(key.removeprefix(_LEVEL), 0) if key.startswith(_LEVEL) else 0
        at, _, end = value.partition(",")
        if level:
            delay = delays[level - 1] if level <= len(delays) else ""
            waiting = max(0, whole(end, 0) - whole(at, 0))
            found.append(_Level(state.broker.name, level, delay, waiting))
    return sorted(found, key=lambda each: each.level)


async def _transactions(cluster: WatchedCluster) -> tuple[list[HalfMessage], str]:
    """Return the half messages of open transactions, and the problem if they are not known."""
    try:
        async with asyncio.timeout(_SEARCH_S):
            found = await cluster.calls.get(
                "transactions", cluster.messages.open_transactions, fresh_ms=NAMES_MS
            )
    except TimeoutError:
        return [], "The transactions are still being read: reload the page."
    except CometError as error:
        return [], str(error)
    return found, ""


ROUTES = [Route("/waiting", show)]
