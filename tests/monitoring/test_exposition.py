"""Metrics as text."""

from __future__ import annotations

from cometmq.core.histogram import Histogram
from cometmq.monitoring.exposition import PIECE_SERIES, text_pieces
from cometmq.monitoring.series import Kind, KnownFrom, Metric, Series
from tests.monitoring.scraping import Scrape

COUNT = Metric("things_total", Kind.COUNTER, "things", ("name",), KnownFrom.OURS)
TIMES = Metric("time_seconds", Kind.HISTOGRAM, "times", (), KnownFrom.OURS)


def test_pieces_together_are_one_metric() -> None:
    series = Series(COUNT, 1_000)
    for number in range(2 * PIECE_SERIES + 1):
        series.add(number, f"n{number}")
    pieces = [*text_pieces(series, {"node": "a"})]
    assert len(pieces) == 3
    text = b"".join(pieces).decode()
    assert text.count("# TYPE") == text.count("# HELP") == 1
    found = Scrape(text)
    assert found.kinds == {"things": "counter"}
    assert found.value("things_total", name=f"n{2 * PIECE_SERIES}", node="a") == 2 * PIECE_SERIES
    assert len([*found.find("things_total")]) == 2 * PIECE_SERIES + 1


def test_a_metric_without_series_keeps_its_type() -> None:
    text = b"".join(text_pieces(Series(COUNT, 1), {})).decode()
    assert text == "# HELP things_total things\n# TYPE things_total counter\n"


def test_a_gauge_keeps_a_name_that_ends_like_a_counter() -> None:
    gauge = Metric("sizes_total", Kind.GAUGE, "sizes", (), KnownFrom.EXPORTER)
    series = Series(gauge, 1)
    series.add(1)
    text = b"".join(text_pieces(series, {"node": "a"})).decode()
    assert text == "# HELP sizes_total sizes\n# TYPE sizes_total gauge\nsizes_total 1.0\n"


def test_series_beyond_the_bound_are_counted() -> None:
    series = Series(COUNT, 2)
    for number in range(5):
        series.add(number, str(number))
    assert (len(series.rows), series.left_out) == (2, 3)


def test_labels_are_escaped() -> None:
    series = Series(COUNT, 1)
    series.add(1, 'a"b\\c\nd')
    text = b"".join(text_pieces(series, {})).decode()
    assert Scrape(text).value("things_total", name='a"b\\c\nd') == 1


def test_a_histogram_has_cumulative_buckets() -> None:
    histogram = Histogram((0.001, 0.01))
    for value, count in ((0.0005, 2), (0.001, 1), (0.005, 3), (7.0, 1)):
        histogram.add(value, count)
    series = Series(TIMES, 1)
    series.add(histogram)
    found = Scrape(b"".join(text_pieces(series, {})).decode())
    buckets = [found.value("time_seconds_bucket", le=end) for end in ("0.001", "0.01", "+Inf")]
    assert buckets == [3, 6, 7]
    assert found.value("time_seconds_count") == 7
    assert found.value("time_seconds_sum") == 0.001 + 0.001 + 0.015 + 7.0
