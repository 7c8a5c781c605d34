"""Benchmarks' parts without a broker: what a generator printed, limits, curves, stalls, tools."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import curves, loading, tail
from benchmarks.figures import LIMIT, Row
from benchmarks.limits import held_rows
from benchmarks.loading import BenchmarkFailed, ToolMissing


async def program(code: str, limit_s: float = 30) -> dict[str, float]:
    return await loading.run_program([sys.executable, "-c", code], "a round", limit_s)


async def test_a_program_s_line_is_its_figures() -> None:
    assert await program('print(\'{"messages_per_s":5,"errors":0}\')') == {
        "messages_per_s": 5,
        "errors": 0,
    }


@pytest.mark.parametrize(
    ("code", "told"), [("raise SystemExit(3)", "ended with 3"), ("while True: pass", "in 0.3 s")]
)
async def test_a_program_that_fails_or_hangs_is_no_round(code: str, told: str) -> None:
    with pytest.raises(BenchmarkFailed, match=told):
        await program(code, 0.3 if "while" in code else 30)


async def test_a_line_that_is_no_json_is_no_round() -> None:
    with pytest.raises(BenchmarkFailed, match="printed"):
        await program("print('nothing')")


def test_a_missing_tool_is_named_with_the_command_that_gets_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="go is missing; `apt-get install golang-go` gets it"):
        loading.need_tools("go")
    with pytest.raises(ToolMissing, match="gcc"):
        loading.build_load(tmp_path)


def test_rows_are_held_against_limits_as_far_as_both_are_there() -> None:
    rows = [
        Row("single 128 B, 8 x 64", "messages/s", "more", 4.5, rounds={"cometmq": [80.0]}),
        Row("SYNC_FLUSH, 128 B, 8 x 64", "messages/s", "more", 4, rounds={"cometmq": [60.0]}),
        Row("single 1 KiB, 1 x 1, p50", "us", "less", 0.45, rounds={"cometmq": []}),
    ]
    found = {row.name: row for row in held_rows(rows, {"core": [100.0], "echo_p50_us": [9.0]})}
    assert set(found) == {
        "single 128 B, 8 x 64 / split, pack and answer alone",
        "SYNC_FLUSH / ASYNC_FLUSH, 8 x 64",
    }
    assert all(row.against == LIMIT for row in found.values())
    assert [row.ratio() for row in found.values()] == [0.8, 0.75]


def test_our_single_sends_are_held_against_kafka_s_batches() -> None:
    batches = "batch 96 x 128 B, 8 x 5, as Kafka's client"
    rows = [
        Row("single 128 B, 8 x 64", "messages/s", "more", 4.5, rounds={"cometmq": [80.0]}),
        Row(batches, "messages/s", "more", rounds={"cometmq": [500.0], "kafka": [160.0]}),
    ]
    (found,) = held_rows(rows, {})
    assert (found.against, found.ratio()) == ("kafka", 0.5)


def test_a_curve_s_points_are_medians_and_its_table_has_all_of_them() -> None:
    ours = curves.Series({"1": [5.0, 7.0, 6.0], "8": [20.0]})
    java = curves.Series({"1": [4.0]}, ["8: too slow"])
    assert curves.medians(ours) == [(1.0, 6.0), (8.0, 20.0)]
    found = curves.Found("window", "in flight", "messages/s", {"cometmq": ours, "java": java})
    lines = curves.table(found).splitlines()
    assert "| 1 | 6.00 | 4.00 |" in lines
    assert "| 8 | 20.0 |  |" in lines
    assert "- not counted: java 8: too slow" in lines


def test_a_backlog_goes_as_far_as_is_allowed() -> None:
    found = {curve.name: curve.xs for curve in curves.curves(1.0)}
    assert found["backlog"] == [0.125, 0.25, 0.5, 1]


def test_the_watchdog_s_lines_are_stalls() -> None:
    log = (
        "12:00 WARNING loop stalled handler=PULL_MESSAGE of 127.0.0.1:5 took_ms=31\n"
        "12:01 INFO rolled file=7 took_ms=99\n"
        "12:02 WARNING loop stalled handler=flush took_ms=120\n"
    )
    assert [(stall.took_ms, stall.handler) for stall in tail.stalls(log)] == [
        (120, "flush"),
        (31, "PULL_MESSAGE of 127.0.0.1:5"),
    ]
    waits = tail.Waits("busy", 2000, 1000, 0.5, 1, 8, 140, tail.stalls(log))
    text = tail.table({"cometmq": [waits]})
    assert "| cometmq | busy | 2 000 | 1 000 | 0.50 | 1.00 | 8.00 | 140 |" in text
    assert "busy, 2 000 a second: a turn of 120 ms in flush" in text
