"""How values read, and that charts have coordinates only."""

import tracemalloc

import pytest

from cometmq.dashboard import shown
from cometmq.dashboard.drawing import DURATIONS, Line, bar, ceiling, chart, spark
from cometmq.dashboard.history import Sample
from cometmq.dashboard.watched import number


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (shown.count(None), "–"),
        (shown.count(1234567.0), "1,234,567"),
        (shown.rate(None), "–"),
        (shown.rate(0), "0"),
        (shown.rate(1.25), "1.2"),
        (shown.rate(812.4), "812"),
        (shown.rate(123_456), "123.5k"),
        (shown.short(9_999), "9,999"),
        (shown.short(71_053), "71.1k"),
        (shown.short(2_000_000), "2M"),
        (shown.short(3_500_000_000), "3.5G"),
        (shown.size(None), "–"),
        (shown.size(512), "512 B"),
        (shown.size(1 << 20), "1.0 MiB"),
        (shown.duration(None), "–"),
        (shown.duration(812), "812 ms"),
        (shown.duration(61_000), "1 min 1 s"),
        (shown.duration(90_061_000), "1 d 1 h"),
        (shown.at(0), "–"),
        (shown.at(1_000), "1970-01-01 00:00:01.000"),
        (shown.percent(0.254), "25 %"),
        (shown.percent(-1), "–"),
        (shown.body_text(b"\xff"), None),
        (shown.body_text("ä".encode()), "ä"),
        (shown.body_json(b'{"a":1}'), '{\n  "a": 1\n}'),
        (shown.body_json(b"{"), None),
        (shown.body_json(rb'{"a":"\ud800"}'), None),
        (shown.body_json(b"[" * 900 + b",".join([b"1"] * 2_000) + b"]" * 900), None),
        (shown.body_json(b"[" * 60_000), None),
        (shown.body_json(b"text"), None),
        (shown.body_hex(b"AB\x00"), "00000000  41 42 00" + " " * 39 + "  AB."),
    ],
)
def test_values_read_well(text: str | None, wanted: str | None) -> None:
    assert text == wanted


def test_a_long_body_is_cut_between_characters() -> None:
    text = shown.body_text("ä".encode() * shown.TEXT_BYTES_MAX)
    assert text == "ä" * (shown.TEXT_BYTES_MAX // 2)
    assert len(shown.body_hex(b"a" * 100_000).splitlines()) == shown.HEX_BYTES_MAX // 16


@pytest.mark.parametrize(
    ("value", "wanted"), [(0, 1), (1, 1), (1.2, 1.5), (7, 8), (71_000, 80_000), (100, 100)]
)
def test_an_axis_ends_at_a_round_number(value: float, wanted: float) -> None:
    assert ceiling(value) == wanted


def test_a_chart_has_lines_readings_and_gaps() -> None:
    samples = [Sample(at * 2_000, at) for at in range(30)]
    later = [Sample(500_000 + at * 2_000, 4.0) for at in range(5)]
    drawn = chart([Line("in", [*samples, *later])], 520_000)
    assert str(drawn.svg).count("<polyline") == 2, "what was not measured is not drawn"
    assert len(drawn.readings.splitlines()) == 35
    assert drawn.top == "30"
    assert not drawn.is_empty
    assert chart([Line("in", [])], 1).is_empty
    assert chart([Line("in", samples)], 60_000, steps=DURATIONS).top == "30"
    assert "<svg" in spark(samples)
    assert spark(samples[:1]) == ""
    assert "bad" in bar(0.9)
    assert "warn" in bar(0.8)
    assert 'width="100.0"' in bar(7.0)


def test_a_chart_of_a_cluster_that_is_asked_seldom_has_a_line() -> None:
    seldom = [Sample(at * 120_000, at) for at in range(6)]
    late = [Sample(2_000_000 + at * 120_000, 4.0) for at in range(3)]
    drawn = chart([Line("in", [*seldom, *late])], 2_300_000, span_ms=3_600_000)
    assert str(drawn.svg).count("<polyline") == 2


def test_readings_belong_to_their_time() -> None:
    one = [Sample(at * 1_000, at) for at in (1, 2, 3)]
    drawn = chart([Line("in", one), Line("out", one[1:])], 4_000)
    assert [row.split("|")[2:] for row in drawn.readings.splitlines()] == [
        ["1.0", "–"], ["2.0", "2.0"], ["3.0", "3.0"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", 0), ("1.5 2 3", 1.5), ("1,000", 1000), ("x", 0), ("nan", 0), ("1e300", 0), ("-1", -1)],
)
def test_facts_have_a_first_number(text: str, wanted: float) -> None:
    assert number(text) == wanted


def test_deep_json_takes_no_memory() -> None:
    deep = b"[" * 900 + b"]" * 900
    body = b"[" + b",".join([deep] * 36) + b"]"  # 58 MB when it is indented
    assert len(body) < shown.TEXT_BYTES_MAX
    tracemalloc.start()
    try:
        assert shown.body_json(body) is None
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
