"""How a store is going to be read."""

from pathlib import Path

import pytest

from cometmq.message.model import MessageQueue
from cometmq.spark.read.topics import Assigned, Pattern, Topics
from cometmq.spark.store import planning
from cometmq.spark.store.planning import LogPart, QueuePart, is_wanted
from tests.spark.store.reading import planned
from tests.store.stores import fill, opened, put, run_round


def test_what_is_wanted() -> None:
    assert is_wanted(Topics(("t",)), "b", "t")
    assert not is_wanted(Topics(("t",)), "b", "u")
    assert is_wanted(Pattern("t.*"), "b", "tea", 3)
    assert not is_wanted(Pattern(".*"), "b", "%RETRY%g")
    assert not is_wanted(Pattern(".*"), "b", "SCHEDULE_TOPIC_XXXX")
    chosen = Assigned(frozenset({MessageQueue("t", "b", 1)}))
    assert is_wanted(chosen, "b", "t")
    assert is_wanted(chosen, "b", "t", 1)
    assert not is_wanted(chosen, "b", "t", 2)


def test_few_messages_of_a_large_log_are_read_by_their_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LAST_MOMENTS_BYTES", 0)
    store = opened(tmp_path / "s")
    for number in range(3):
        put(store, "rare", 0, b"%d" % number)
        fill(store, 100, first=number * 100)
    store.commit()
    run_round(store, thorough=True)
    store.close()
    (parts,) = planned(tmp_path / "s", topic="rare")
    (part,) = parts
    assert isinstance(part, QueuePart)
    assert (part.topic, part.start, part.stop) == ("rare", 0, 3)
    (parts,) = planned(tmp_path / "s", topic="t")
    assert {type(part) for part in parts} == {LogPart}


def test_old_files_are_left_out_of_a_read_by_time(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    for number in range(10):
        fill(store, 50, first=number * 50)
        store.clock.advance(1_000)  # type: ignore[attr-defined]
    moment = store.clock.wall_ms() - 2_500
    store.close()
    whole = sum(part.size_bytes for each in planned(tmp_path / "s") for part in each)
    late = planned(tmp_path / "s", startingTimestamp=moment)
    assert sum(part.size_bytes for each in late for part in each) < whole / 2
