"""Brokers are remembered in a file, which is help and no truth."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cometmq.spark.read import discovery
from cometmq.spark.read.discovery import KnownBrokers
from cometmq.spark.read.options import default_known_brokers
from cometmq.spark.read.topics import Assigned, Pattern, Topics
from tests.spark.topics import access, options

T = Topics(("T",))
HERE = {"T": frozenset({"a"})}


def recorded(folder: Path, namesrv: str = "x:1;y:2") -> KnownBrokers:
    return KnownBrokers(str(folder), access(namesrv))


def test_who_was_seen_is_known_until_told_otherwise(tmp_path: Path) -> None:
    recorded(tmp_path).keep({"T": {"a", "b"}, "U": {"c"}}, {})
    (why,) = recorded(tmp_path, "y:2;x:1").absent(T, HERE).items()
    assert why[0] == "b"
    assert "option brokers" in why[1]
    assert recorded(tmp_path).absent(T, {"T": frozenset({"a", "b"})}) == {}
    assert set(recorded(tmp_path).absent(Pattern("."), {})) == {"a", "b", "c"}
    assert recorded(tmp_path).absent(Assigned(frozenset()), {}) == {}
    assert recorded(tmp_path, "other:1").absent(T, {}) == {}
    recorded(tmp_path).keep({}, {"T": {"b"}})
    assert set(recorded(tmp_path).absent(T, {})) == {"a"}


def test_who_was_not_seen_for_long_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 10**12

    class Clock:
        def wall_ms(self) -> int:
            return now_ms

    monkeypatch.setattr(discovery, "_clock", Clock())
    found = recorded(tmp_path)
    found.keep({"T": {"a", "b"}}, {})
    now_ms += discovery.KEPT_MS - 1
    assert set(found.absent(T, HERE)) == {"b"}
    found.keep(HERE, {})
    now_ms += 1
    assert set(found.absent(T, {})) == {"a"}


def test_nothing_is_written_without_news(tmp_path: Path) -> None:
    recorded(tmp_path).keep(HERE, {})
    (path,) = tmp_path.iterdir()
    before = path.stat()
    recorded(tmp_path).keep(HERE, {"T": {"c"}})
    assert path.stat().st_ino == before.st_ino


@pytest.mark.parametrize("text", ["", "[]", '{"T": {"a": "soon"}}', "\x00", '{"T": {"a": 1e99}}'])
def test_a_file_that_cannot_be_read_is_no_obstacle(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorded(tmp_path).keep(HERE, {})
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert recorded(tmp_path).absent(T, {}) == {}
    assert "known_brokers_unreadable" in caplog.text
    recorded(tmp_path).keep(HERE, {})
    assert set(recorded(tmp_path).absent(T, {})) == {"a"}


def test_a_folder_that_cannot_be_made_is_no_obstacle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        recorded(tmp_path / "file" / "folder").keep(HERE, {})
    assert "known_brokers_not_written" in caplog.text


def test_remembering_may_be_turned_off(tmp_path: Path) -> None:
    found = KnownBrokers(None, access("x:1"))
    found.keep(HERE, {})
    assert found.absent(T, {}) == {}
    assert options("a:1", "T", knownBrokers="none").outage.known_brokers is None
    assert options("a:1", "T", knownBrokers=str(tmp_path)).outage.known_brokers == str(tmp_path)
    assert options("a:1", "T").outage.known_brokers == default_known_brokers()
