"""Metrics as text for Prometheus, made piece by piece with prometheus_client.

A piece has at most 25 series, so that a scrape never holds the event loop for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import Metric as Family
from prometheus_client import generate_latest

from cometmq.core.histogram import Histogram
from cometmq.monitoring.series import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cometmq.monitoring.series import Metric, Series

#: Series that are turned into text at once; it takes a quarter of a millisecond.
PIECE_SERIES: Final = 25
#: Version of the text format.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def text_pieces(series: Series, shared: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the text of a metric's series in pieces, with the ``shared`` labels if it has them."""
    metric = series.metric
    if not metric.has_shared_labels:
        shared = {}
    for begin in range(0, len(series.rows) or 1, PIECE_SERIES):
        family = _family(metric)
        for labels, value in series.rows[begin : begin + PIECE_SERIES]:
            named = {**shared, **dict(zip(metric.labels, labels, strict=True))}
            _add(family, metric, named, value)
        text = generate_latest(_Single(family))
        # Only the first piece begins with the lines HELP and TYPE.
        yield text if not begin else text.split(b"\n", 2)[2]


def _family(metric: Metric) -> Family:
    # prometheus_client appends the suffix to the names of counters, and only theirs.
    is_counter = metric.kind is Kind.COUNTER
    name = metric.name.removesuffix("_total") if is_counter else metric.name
    return Family(name, metric.meaning, metric.kind.value)


def _encodable(text: str) -> str:
    """Return a text with lone surrogates replaced; names that clients sent may have some."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _add(family: Family, metric: Metric, labels: dict[str, str], value: float | Histogram) -> None:
    labels = {name: _encodable(text) for name, text in labels.items()}
    if not isinstance(value, Histogram):
        family.add_sample(metric.name, labels, value)
        return
    count = 0
    ends = [*map(str, value.bounds), "+Inf"]
    for end, here in zip(ends, value.counts, strict=True):
        count += here
        family.add_sample(f"{metric.name}_bucket", {**labels, "le": end}, count)
    family.add_sample(f"{metric.name}_count", labels, count)
    family.add_sample(f"{metric.name}_sum", labels, value.total)


class _Single:
    """A collector for prometheus_client that has one metric."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Family]:
        """Return the metric."""
        return (self._family,)
