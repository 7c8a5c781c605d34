"""A log event is one line, whatever it says, and a log has a bound."""

import asyncio
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.cli import logs, servers
from cometmq.cli.node import node_config, running_node
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import encode_head


@pytest.fixture(autouse=True)
def _root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


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
    assert line.endswith(r'topic="a\r\n2026-01-01 forged"')


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


class Colour(Enum):
    RED = 1


def fields_logged(template: str, *args: object, form: str = "text") -> str:
    stream = io.StringIO()
    logs.configure("info", stream, form=form)
    logging.getLogger("cometmq.test").info(template, *args)
    (line,) = stream.getvalue().splitlines()
    return line if form == "json" else line.partition("cometmq.test ")[2]


@pytest.mark.parametrize(
    ("template", "args", "expected"),
    [
        ("a b count=%d", (5,), "a b count=5"),
        ("a reason=%r", ("x y",), 'a reason="x y"'),
        ("a reason=%s", ('he said "no"',), r'a reason="he said \"no\""'),
        ("a path=%s", (r"c:\d",), r"a path=c:\d"),
        ("a path=%s", (r"c:\d e",), r'a path="c:\\d e"'),
        ("a text=%r", ("l1\nl2",), r'a text="l1\nl2"'),
        ("a empty=%s next=%s", ("", None), 'a empty="" next=none'),
        ("a query=%s", ("b=c",), 'a query="b=c"'),
        (
            "gone address=%s reason=silent for %d ms",
            ("h:1", 5),
            'gone address=h:1 reason="silent for 5 ms"',
        ),
        ("a share=%.1f%% of=%s", (2.25, "x"), "a share=2.2% of=x"),
        ("a error=%r", (ValueError("no good"),), 'a error="ValueError: no good"'),
        ("a names=%s on=%s", (["b", "c"], True), "a names=b,c on=true"),
        ("a colour=%s raw=%r", (Colour.RED, b"x\xff"), r"a colour=RED raw=x\xff"),
        ("a 100% sure", (), "a 100% sure"),
        ("a %s b=%s", ("x",), "<error>"),
    ],
)
def test_values_are_written_for_tools(
    template: str, args: tuple[object, ...], expected: str
) -> None:
    if expected == "<error>":
        # A bug of the caller: logging reports it on standard error.
        with pytest.raises(TypeError):
            logs.event_of(logging.LogRecord("x", 20, "", 0, template, args, None))
        return
    assert fields_logged(template, *args) == expected


@given(st.text(max_size=50), st.text(max_size=50))
def test_a_parser_finds_every_value_again(first: str, second: str) -> None:
    line = fields_logged("it happened first=%s second=%s", first, second)
    assert line.isprintable()
    found = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|[^ "=]*)(?: |$)', line)
    assert [key for key, _ in found] == ["first", "second"]
    if first.isprintable():
        shown = found[0][1]
        if shown[:1] == '"':
            shown = shown[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        assert shown == first


def test_json_has_the_fields_as_they_are() -> None:
    line = fields_logged("it happened count=%d share=%s event=%r", 5, 0.5, "l1\nl2", form="json")
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {
        "level": "INFO",
        "logger": "cometmq.test",
        "event": "it happened",
        "count": 5,
        "share": 0.5,
        "event_": "l1\nl2",
    }


def test_json_has_a_traceback_in_its_object() -> None:
    stream = io.StringIO()
    logs.configure("info", stream, form="json")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("cometmq.test").exception("task failed name=%s", "x")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["event"], found["name"]) == ("task failed", "x")
    assert found["exception"].endswith("ValueError: broken\n")


def test_journald_gets_a_priority() -> None:
    stream = io.StringIO()
    logs.configure("info", stream, form="journal")
    logging.getLogger("cometmq.test").warning("full share=%d", 90)
    assert stream.getvalue() == "<4>cometmq.test full share=90\n"


def test_a_log_file_is_opened_again_after_its_rotation(tmp_path: Path) -> None:
    path, rotated = tmp_path / "broker.log", tmp_path / "broker.log.1"
    logs.configure("info", path=path)
    logger = logging.getLogger("cometmq.test")
    logger.info("first")
    path.rename(rotated)
    logger.info("second")
    logs.reopen()
    logger.info("third")
    assert [line.split()[-1] for line in rotated.read_text().splitlines()] == ["first", "second"]
    assert [line.split()[-1] for line in path.read_text().splitlines()] == ["third"]


def test_a_log_file_may_be_truncated_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    logs.configure("info", path=path)
    logger = logging.getLogger("cometmq.test")
    logger.info("first")
    os.truncate(path, 0)
    logger.info("second")
    assert path.read_bytes().endswith(b"second\n")
    assert b"\0" not in path.read_bytes()


def test_a_log_that_cannot_be_opened_again_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "broker.log"
    path.parent.mkdir()
    logs.configure("info", path=path)
    moved = path.parent.rename(tmp_path / "moved")
    logs.reopen()
    assert "log_not_reopened" in (moved / "broker.log").read_text(encoding="utf-8")


def test_a_server_opens_its_log_again_on_a_hangup(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.log"
    command = [sys.executable, "-m", "cometmq.cli", "namesrv", "-p", "0", "--log-file", str(path)]
    command += ["--set", f"kvConfigPath={tmp_path / 'kv.json'}", "--log-format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        path.rename(tmp_path / "old.log")
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline, "the log was not opened again"
            time.sleep(0.02)
        process.terminate()
        assert process.wait(60) == 0
    events = [json.loads(line)["event"] for line in (tmp_path / "old.log").read_text().splitlines()]
    assert "name server started" in events


def test_a_log_file_that_cannot_be_opened_refuses_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert servers.main(["namesrv", "--log-file", str(tmp_path / "no" / "x.log")]) == 2
    assert "no/x.log: No such file or directory" in capsys.readouterr().err


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
        async with asyncio.timeout(60):
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
