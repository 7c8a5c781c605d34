"""What a log takes has a bound, whoever causes it."""

import logging
import sys

import pytest

from cometmq.cli.logs import (
    LINE_CHARACTERS,
    TABLE_SIZE,
    TRACEBACK_CHARACTERS,
    LogLimiter,
    indented_traceback,
    one_line,
)
from cometmq.core.clock import VirtualClock

REJECTED = "request rejected code=%d peer=%s reason=%s"


def event(template: str, *args: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("cometmq.net", level, "", 0, template, args, None)


def failed() -> logging.LogRecord:
    try:
        raise ValueError("broken")
    except ValueError:
        return logging.LogRecord("x", logging.ERROR, "", 0, "task failed", (), sys.exc_info())


def written(limiter: LogLimiter, *records: logging.LogRecord) -> list[str]:
    return [line.getMessage() for each in records for line in limiter.admit(each)]


def test_a_peer_writes_10_lines_of_a_kind_and_then_1_a_second() -> None:
    clock = VirtualClock()
    limiter = LogLimiter(clock)
    # A new connection has a new port, and is the same peer.
    lines = [event(REJECTED, 1, f"10.0.0.1:{port}", "x") for port in range(1000, 1100)]
    assert len(written(limiter, *lines)) == 10
    assert written(limiter, event(REJECTED, 1, "10.0.0.2:9", "x"))
    clock.advance(3_000)
    assert len(written(limiter, *lines)) == 3


def test_all_peers_write_50_lines_of_a_kind_and_then_5_a_second() -> None:
    clock = VirtualClock()
    limiter = LogLimiter(clock)
    lines = [event(REJECTED, 1, f"10.0.0.{host}:9", "x") for host in range(100)]
    assert len(written(limiter, *lines)) == 50
    assert written(limiter, event("another kind peer=%s", "10.0.0.1:9"))
    clock.advance(1_000)
    assert len(written(limiter, *lines)) == 5


def test_a_peer_that_floods_takes_nothing_from_others() -> None:
    limiter = LogLimiter(VirtualClock())
    written(limiter, *[event(REJECTED, 1, "10.0.0.1:9", "x")] * 1_000)
    assert written(limiter, event(REJECTED, 1, "10.0.0.2:9", "x"))


def test_a_level_writes_64_kb_and_then_4_kb_a_second() -> None:
    clock = VirtualClock()
    limiter = LogLimiter(clock)
    kinds = [event(f"kind {number} %s", "y" * 5_000) for number in range(500)]
    assert 25 <= len(written(limiter, *kinds)) <= 32  # of 2 000 characters each
    assert written(limiter, event("an error", level=logging.ERROR))
    clock.advance(1_000)
    assert 1 <= len(written(limiter, *kinds)) <= 2


def test_a_kind_writes_its_traceback_once_a_minute() -> None:
    clock = VirtualClock()
    limiter = LogLimiter(clock)
    records = [failed() for _ in range(3)]
    lines = [line for each in records for line in limiter.admit(each)]
    assert [line.exc_info is not None for line in lines] == [True, False, False]
    assert all(record.exc_info for record in records)  # other handlers see it
    clock.advance(60_000)
    assert limiter.admit(failed())[-1].exc_info


def test_a_summary_counts_what_was_left_out() -> None:
    clock = VirtualClock()
    limiter = LogLimiter(clock)
    assert not [line for line in written(limiter, *[event("e %d", 1)] * 80) if "left_out" in line]
    clock.advance(10_000)
    said = limiter.admit(event("quiet"))
    assert [line.getMessage() for line in said] == ["left_out=30 of=e %d", "quiet"]
    assert said[0].name == "cometmq.net"
    assert limiter.rest() == []
    written(limiter, *[event("e %d", 1)] * 60)
    assert [line.getMessage() for line in limiter.rest()] == ["left_out=10 of=e %d"]


def test_tables_are_bounded() -> None:
    limiter = LogLimiter(VirtualClock())
    for number in range(3 * TABLE_SIZE):
        limiter.admit(event(f"kind {number} peer=%s", f"h{number}:1"))
    assert len(limiter._kinds) == len(limiter._peers) == TABLE_SIZE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain, größer", "plain, größer"),
        ("a\r\n2026 forged", r"a\r\n2026 forged"),
        ("\x1b[2J\x07\x00\x7f\x9b", r"\x1b[2J\x07\x00\x7f\x9b"),
        ("\u202eabc\u2028", r"\u202eabc\u2028"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_control_characters_are_spelled_out(text: str, said: str) -> None:
    assert one_line(text) == said


def test_a_long_line_is_cut() -> None:
    assert one_line("x" * 5_000) == "x" * LINE_CHARACTERS + "... (5000 characters)"
    assert len(one_line("\x00" * LINE_CHARACTERS)) < LINE_CHARACTERS + 50


def test_a_traceback_is_indented_and_its_middle_cut() -> None:
    text = indented_traceback("first\n" + "middle\x1b\n" * 100_000 + "ValueError: a\n2026 forged")
    lines = text.split("\n")
    assert all(line.startswith("    ") for line in lines)
    assert (lines[0], lines[-1]) == ("    first", "    2026 forged")
    assert len(text) < 3 * TRACEBACK_CHARACTERS


def test_an_event_with_a_wrong_number_of_values_is_admitted() -> None:
    assert LogLimiter(VirtualClock()).admit(event("a=%s peer=%s", 1))
