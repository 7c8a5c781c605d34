"""The file of brokers that were seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.cli import seenbrokers

DAY_MS = 24 * 3_600_000
NOW_MS = 1_800_000_000_000
HERE = ["b:1", "a:1"]


def test_each_cluster_has_its_own() -> None:
    assert seenbrokers.load(HERE, NOW_MS) == {}
    seenbrokers.save(HERE, {"broker-a": NOW_MS, "broker-b": NOW_MS - 31 * DAY_MS})
    seenbrokers.save(["c:1"], {"broker-c": NOW_MS})
    assert seenbrokers.load(reversed(HERE), NOW_MS) == {"broker-a": NOW_MS}
    seenbrokers.save(HERE, {})
    assert seenbrokers.load(HERE, NOW_MS) == {}
    assert seenbrokers.load(["c:1"], NOW_MS) == {"broker-c": NOW_MS}


def test_the_file_is_bounded() -> None:
    for number in range(seenbrokers.CLUSTERS_MAX + 5):
        seenbrokers.save([f"h:{number}"], {"b": NOW_MS + number})
    assert seenbrokers.load(["h:4"], NOW_MS) == {}
    assert seenbrokers.load(["h:5"], NOW_MS) != {}


@pytest.mark.parametrize("text", ["", "[]", '{"a:1;b:1": {"x": "y"}}', '{"a:1;b:1": 5}', "{"])
def test_a_file_that_cannot_be_read_is_replaced(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = seenbrokers.path()
    assert target is not None
    target.parent.mkdir(parents=True)
    target.write_text(text)
    assert seenbrokers.load(HERE, NOW_MS) == {}
    assert "seen_brokers_not_read" in caplog.text
    seenbrokers.save(HERE, {"b": NOW_MS})
    assert seenbrokers.load(HERE, NOW_MS) == {"b": NOW_MS}


def test_a_file_that_cannot_be_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    seenbrokers.save(HERE, {"b": NOW_MS})
    assert "seen_brokers_not_saved" in caplog.text
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert seenbrokers.path() is None
    seenbrokers.save(HERE, {"b": NOW_MS})
    assert seenbrokers.load(HERE, NOW_MS) == {}
