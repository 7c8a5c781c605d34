"""10 000 mutated frames on each port of a node; `tests.hostile.flood` sends more."""

from pathlib import Path

import pytest

from tests.hostile import flood

#: The machine is shared with other tests, and the flood itself takes one of its cores.
WAIT_MAX_MS = 10_000


@pytest.mark.operation
async def test_a_flood_of_mutated_frames_stops_nobody(tmp_path: Path) -> None:
    outcome = await flood.campaign(tmp_path, 10_000, seed=1)
    assert outcome.complaints(WAIT_MAX_MS) == []
    assert outcome.probes > 20


def test_what_is_over_its_bound_is_told() -> None:
    fine = flood.Outcome(1, 60.0, 1, 299.0, 1_000, 100_000, 2_000_000, [])
    assert fine.complaints() == []
    bad = flood.Outcome(1, 60.0, 1, 301.0, 1_000, 200_000, 3_000_000, ["task failed"])
    assert len(bad.complaints()) == 4
    assert len(bad.complaints(500)) == 3


def test_errors_of_the_node_itself_are_found_in_its_log() -> None:
    stamp = "2026-11-24T13:27:06.185"
    assert flood.is_error(f"{stamp} ERROR cometmq.net.tasks task failed name=x")
    assert flood.is_error("    Traceback (most recent call last):")
    assert not flood.is_error(
        f"{stamp} ERROR cometmq.broker.replication.promotion another_master name=x"
    )
    assert not flood.is_error(f"{stamp} WARNING cometmq.net.peer connection closed")
