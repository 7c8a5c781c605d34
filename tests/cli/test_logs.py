"""A log event is one line, whatever it says."""

import io
import logging
import re

from cometmq.cli import logs


def logged(level: str, *events: tuple[int, str]) -> list[str]:
    stream = io.StringIO()
    logs.configure(level, stream)
    for number, event in events:
        logging.getLogger("cometmq.test").log(number, event)
    return stream.getvalue().splitlines()


def test_a_line_has_time_level_module_and_event() -> None:
    (line,) = logged("info", (logging.INFO, "ready port=1"))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} INFO cometmq\.test ready port=1", line
    )


def test_lower_levels_are_left_out() -> None:
    events = ((logging.DEBUG, "a"), (logging.INFO, "b"), (logging.WARNING, "c"))
    assert [line[-1] for line in logged("warning", *events)] == ["c"]
    assert [line[-1] for line in logged("debug", *events)] == ["a", "b", "c"]


def test_a_message_cannot_forge_a_line() -> None:
    (line,) = logged("info", (logging.INFO, "topic=a\r\n2026-01-01 forged"))
    assert line.endswith(r"topic=a\r\n2026-01-01 forged")


def test_a_traceback_follows_its_line() -> None:
    stream = io.StringIO()
    logs.configure("info", stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("cometmq.test").exception("task failed name=x")
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("ERROR cometmq.test task failed name=x")
    assert lines[-1] == "ValueError: broken"
