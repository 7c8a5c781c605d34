"""A log event is one line, whatever it says, and a log has a bound."""

import asyncio
import io
import logging
import re
from pathlib import Path

import pytest

from cometmq.cli import logs
from cometmq.cli.node import node_config, running_node
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import encode_head


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
    assert lines[-1] == "    ValueError: broken"
    assert all(line.startswith("    ") for line in lines[1:])


#: What each second of a flood brings; 100 bytes of log for each would be 2 MB in a minute.
REJECTED_A_SECOND = 300


def rejected_frames() -> bytes:
    """Requests that are refused with a line in the log; their reasons hold control characters."""
    ext = {"topic": "t", "queueId": "x\x1b[2J" + "y" * 200}
    code = int(RequestCode.PULL_MESSAGE)
    heads = [
        encode_head(code=code, opaque=number, flag=0, ext=ext)
        for number in range(REJECTED_A_SECOND)
    ]
    return b"".join(heads)


async def flood(address: str) -> None:
    """Send garbage that ends its connection, and frames that are refused and answered."""
    host, _, port = address.rpartition(":")
    for data in (b"\x00\x00\x00\x08\xff\x1b\x1b\x1b\x1b\x1b\x1b\x1b", rejected_frames()):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        async with asyncio.timeout(20):
            for _ in range(REJECTED_A_SECOND if len(data) > 20 else 0):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            if len(data) <= 20:
                await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_a_minute_of_garbage_writes_less_than_1_mb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    stream, clock = io.StringIO(), VirtualClock()
    async with running_node(node_config(tmp_path, {}), SystemClock()) as node:
        logs.configure("info", stream, clock)
        for _ in range(60):
            await flood(node.broker)
            clock.advance(1_000)
        for handler in root.handlers:
            handler.close()
    text = stream.getvalue()
    assert "request rejected" in text
    assert "left_out=" in text
    assert len(text) < 200_000
    assert text.replace("\n", "").isprintable()
