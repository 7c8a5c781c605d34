"""Page of the brokers' stores: log, disk, flush, dispatch, replication, and all runtime facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from cometmq.dashboard.rendering import cluster_of, field, render
from cometmq.dashboard.watched import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.dashboard.watched import BrokerState

#: Runtime facts that the table leaves out, because the page shows them elsewhere.
_SHOWN: Final = frozenset(("brokerVersionDesc", "brokerVersion", "bootTimestamp", "runtime"))


@dataclass(frozen=True, slots=True)
class _Store:
    """The store of one broker process, from its runtime facts.

    ``log_disk`` and ``queue_disk`` are ratios, ``dispatch_behind`` and ``slave_behind`` bytes.
    """

    state: BrokerState
    log_bytes: float
    log_disk: float
    queue_disk: float
    capacity: str
    oldest_ms: float
    dispatch_behind: float
    unflushed: str
    uncommitted: str
    slave_behind: float | None
    p99_ms: str
    facts: Mapping[str, str]


async def show(request: Request) -> Response:
    """Show the store of each broker process."""
    cluster = cluster_of(request)
    if not cluster.brokers:
        await cluster.ask_brokers()
    wanted = field(request, "q").lower()
    masters = {
        each.broker.name: number(each.facts.get("commitLogMaxOffset", ""))
        for each in cluster.brokers.values()
        if each.is_master and each.facts
    }
    stores = [_store(each, masters, wanted) for each in cluster.brokers.values()]
    return render(request, "stores.html", title="Store", stores=stores)


def _store(state: BrokerState, masters: Mapping[str, float], wanted: str) -> _Store:
    facts = state.facts

    def of(key: str) -> float:
        return number(facts.get(key, ""))

    end = of("commitLogMaxOffset")
    master = masters.get(state.broker.name)
    behind = None if state.is_master or master is None or not facts else max(0.0, master - end)
    rest = {
        key: value
        for key, value in sorted(facts.items())
        if key not in _SHOWN and wanted in f"{key} {value}".lower()
    }
    return _Store(
        state,
        max(0.0, end - of("commitLogMinOffset")),
        of("commitLogDiskRatio"),
        of("consumeQueueDiskRatio"),
        facts.get("commitLogDirCapacity", "").rstrip(". ").replace(" :", ""),
        of("earliestMessageTimeStamp"),
        of("dispatchBehindBytes"),
        facts.get("remainHowManyDataToFlush", ""),
        facts.get("remainHowManyDataToCommit", ""),
        behind,
        facts.get("putLatency99", ""),
        rest,
    )


ROUTES = [Route("/store", show)]
