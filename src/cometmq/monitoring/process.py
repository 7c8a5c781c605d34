"""Metrics of the process and of its HTTP port. Those named ``process_`` are prometheus_client's."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector, generate_latest

from cometmq.monitoring.exposition import text_pieces
from cometmq.monitoring.series import Kind, KnownFrom, Metric, Series
from cometmq.speedups import CORE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.monitoring.http import HttpConnections

BUILD: Final = Metric(
    "cometmq_build_info", Kind.GAUGE,
    "always 1; `core` is `compiled`, or `plain` without the compiled core", ("version", "core"),
    KnownFrom.OURS,
)  # fmt: skip
REQUESTS: Final = Metric(
    "cometmq_http_requests_total", Kind.COUNTER, "requests to the HTTP port", ("status",),
    KnownFrom.OURS,
)  # fmt: skip
REFUSALS: Final = Metric(
    "cometmq_http_refusals_total", Kind.COUNTER,
    "connections to the HTTP port that were closed for a limit", ("limit",), KnownFrom.OURS,
)  # fmt: skip

METRICS: Final = (BUILD, REQUESTS, REFUSALS)

_COLLECTOR: Final = ProcessCollector(registry=None)


def process_text(connections: HttpConnections) -> Iterator[bytes]:
    """Yield the text of these metrics in pieces."""
    build, requests, refusals = (Series(metric, 100) for metric in METRICS)
    build.add(1, version("cometmq"), CORE)
    for status, count in [*connections.requests.items()]:
        requests.add(count, str(status))
    for limit, count in [*connections.refusals.items()]:
        refusals.add(count, limit)
    for series in (build, requests, refusals):
        yield from text_pieces(series, {})
    yield generate_latest(_COLLECTOR)
