"""Files of what was put aside."""

import json
from base64 import b64decode
from pathlib import Path

import pytest

from cometmq.message.model import MessageQueue
from cometmq.spark.read.corrupt import file_name, quarantine
from cometmq.spark.read.planning import Range

PARTS = [Range(MessageQueue("a%b", "broker-a", 3), 10, 20), Range(MessageQueue("c", "b", 0), 0, 9)]


def put_aside(folder: Path, *, fails: bool = False) -> None:
    with quarantine(str(folder), file_name(PARTS)) as aside:
        assert aside is not None
        aside.add("a%b", "broker-a", 3, 12, "no UTF-8: \xff", b"\0\1\2")
        aside.add("", "broker-a", 3, 13, "why", b"")
        if fails:
            raise RuntimeError


def test_a_line_a_message(tmp_path: Path) -> None:
    put_aside(tmp_path / "bad")
    (path,) = (tmp_path / "bad").iterdir()
    assert path.name == file_name(PARTS)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert b64decode(lines[0].pop("record")) == b"\0\1\2"
    assert lines[0] == {
        "topic": "a%b",
        "broker": "broker-a",
        "queue": 3,
        "offset": 12,
        "reason": "no UTF-8: \xff",
    }
    assert [line["offset"] for line in lines] == [12, 13]


def test_a_task_that_runs_again_counts_once(tmp_path: Path) -> None:
    put_aside(tmp_path)
    put_aside(tmp_path)
    (path,) = tmp_path.iterdir()
    assert len(path.read_text().splitlines()) == 2


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        put_aside(tmp_path, fails=True)
    assert list(tmp_path.iterdir()) == []


def test_no_message_no_file(tmp_path: Path) -> None:
    with quarantine(str(tmp_path / "bad"), file_name(PARTS)):
        pass
    assert list(tmp_path.iterdir()) == []
    with quarantine(None, file_name(PARTS)) as aside:
        assert aside is None
    with quarantine(str(tmp_path), file_name([])) as aside:
        assert aside is None


def test_names_are_safe_and_say_what_was_read() -> None:
    name = file_name(PARTS)
    assert name.startswith("a_b-broker-a-3-10-")
    assert name.endswith(".jsonl")
    assert name != file_name(PARTS[:1])
    assert name == file_name(list(PARTS))
