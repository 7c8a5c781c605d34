"""The whole demo without Spark, small; and proof that its comparison can fail."""

import sqlite3
from pathlib import Path
from random import Random

import pytest

from cometmq.core.clock import SystemClock
from examples.demo.platform import Applied, Copy
from examples.demo.run import Demo, Options, prepare
from examples.demo.script import iso_regions
from examples.demo.tables import Change

REGIONS = iso_regions(Random(1))[:500]


def small_demo(tmp_path: Path) -> Demo:
    options = Options(tmp_path / "out", 600, 60, 3, changes_per_s=2_000, regions=REGIONS)
    return prepare(options, SystemClock())


async def test_all_copies_end_equal_and_a_planted_difference_is_found(tmp_path: Path) -> None:
    demo = small_demo(tmp_path)
    result = await demo.run()
    assert result.problems == []
    assert [party.comparison.name for party in result.parties] == ["social", "order"]
    for party in result.parties:
        assert party.comparison.differences == ()
        assert party.comparison.digest == result.base_digest
        assert dict(party.comparison.rows) == dict(result.base_rows)
    assert result.ok
    assert result.loaded == len(REGIONS) + 60
    assert result.published == demo.board.committed == demo.board.expected
    # The disturbances did happen.
    social, order = result.parties
    assert result.published_again > 0
    assert social.repeated is not None
    assert social.repeated + (social.stale or 0) > 0
    assert order.retried is not None
    assert order.retried > 0
    assert len(result.events) == 3
    assert all(path.exists() for path in result.files.values())

    # The same files with one number changed by hand: the comparison has to say so.
    with sqlite3.connect(demo.folder.copy("social")) as copy:
        copy.execute("UPDATE regions SET population = population + 1 WHERE code = 'US'")
        copy.execute("UPDATE users SET level = level + 1 WHERE id = (SELECT max(id) FROM users)")
        assert copy.total_changes > 0
    copy.close()
    again = demo.judge()
    assert not again.ok
    assert not again.parties[0].comparison.equal
    assert again.parties[1].comparison.equal


async def test_a_copy_that_ignores_change_numbers_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its safeguard the very same run must end unequal, or the run proves nothing."""
    apply = Copy.apply

    def forgetful(copy: Copy, change: Change) -> Applied:
        copy._connection.execute("DELETE FROM applied WHERE key = ?", (change.key,))
        return apply(copy, change)

    monkeypatch.setattr(Copy, "apply", forgetful)
    demo = small_demo(tmp_path)
    monkeypatch.setattr("examples.demo.run.FAILING_SHARE", 0.3)
    monkeypatch.setattr("examples.demo.run.CATCH_UP_MS", 4_000)
    result = await demo.run()
    assert all("order did not catch up" in problem for problem in result.problems)
    _, order = result.parties
    assert not order.comparison.equal
    assert not result.ok
