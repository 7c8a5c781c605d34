"""The first page: brokers, message rates, lag, and failed health checks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from cometmq.admin.health import check_health
from cometmq.core.errors import CometError
from cometmq.dashboard import shown
from cometmq.dashboard.drawing import Line, chart
from cometmq.dashboard.pages.topics import kind_of
from cometmq.dashboard.rendering import cluster_of, render
from cometmq.dashboard.sharing import NAMES_MS
from cometmq.dashboard.watched import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.admin.health import HealthReport
    from cometmq.dashboard.history import Sample
    from cometmq.dashboard.watched import BrokerState, WatchedCluster

#: Time for which results of health checks count as current.
CHECKS_MS: Final = 10_000
#: Longest time for which a page waits for them.
_CHECKS_WAIT_S: Final = 0.8


@dataclass(frozen=True, slots=True)
class _BrokerCard:
    """A broker process as the map shows it.

    ``disk`` is the fuller of the log's and the queues' disk, as a ratio. ``behind_bytes`` are log
    bytes not yet dispatched to consume queues. ``received`` is the series of its send rate.
    """

    state: BrokerState
    version: str
    up_ms: float | None
    disk: float
    behind_bytes: float
    received: Sequence[Sample]


async def show(request: Request) -> Response:
    """Show the cluster."""
    cluster = cluster_of(request)
    if not cluster.brokers:
        await cluster.ask_brokers()
    names, report, lags = await asyncio.gather(
        _topics(cluster), _health(cluster), cluster.known_lags()
    )
    history, now_ms = cluster.history, cluster.clock.wall_ms()
    cards = [_card(cluster, each, now_ms) for each in cluster.brokers.values()]
    by_cluster: dict[str, dict[str, list[_BrokerCard]]] = {}
    for card in cards:
        broker = card.state.broker
        by_cluster.setdefault(broker.cluster, {}).setdefault(broker.name, []).append(card)
    flow = [
        Line("in", history.series("in"), 1),
        Line("out", history.series("out"), 2),
    ]
    return render(
        request,
        "cluster.html",
        title="Cluster",
        clusters=by_cluster,
        flow=chart(flow, now_ms),
        waiting=chart([Line("waiting", history.series("lag"), 3)], now_ms, form=shown.count),
        received=history.last("in"),
        delivered=history.last("out"),
        lag=sum(each.lag for each in lags.values()),
        slowest=sorted(lags.values(), key=lambda each: -each.lag)[:5],
        groups=len(lags),
        topics=None if names is None else sum(kind_of(cluster, name) == "own" for name in names),
        masters=sum(card.state.is_master for card in cards),
        slaves=sum(not card.state.is_master for card in cards),
        report=report,
    )


def _card(cluster: WatchedCluster, state: BrokerState, now_ms: int) -> _BrokerCard:
    facts = state.facts
    booted_ms = number(facts.get("bootTimestamp", ""))
    return _BrokerCard(
        state,
        facts.get("brokerVersionDesc", "").removeprefix("V").replace("_", "."),
        now_ms - booted_ms if booted_ms else None,
        max(number(facts.get(f"{name}DiskRatio", "")) for name in ("commitLog", "consumeQueue")),
        number(facts.get("dispatchBehindBytes", "")),
        cluster.history.series(("in", state.broker.address)),
    )


async def _topics(cluster: WatchedCluster) -> Sequence[str] | None:
    """Return the names of all topics; None if they cannot be read."""
    try:
        return await cluster.calls.get("topics", cluster.admin.list_topics, fresh_ms=NAMES_MS)
    except CometError:
        return None


async def _health(cluster: WatchedCluster) -> HealthReport | None:
    """Return the results of the health checks; None if they fail or take too long."""
    with suppress(CometError, TimeoutError):
        async with asyncio.timeout(_CHECKS_WAIT_S):
            return await cluster.calls.get(
                "health", lambda: check_health(cluster.admin), fresh_ms=CHECKS_MS
            )
    return None


ROUTES = [Route("/", show)]
