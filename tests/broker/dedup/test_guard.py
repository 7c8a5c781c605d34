"""What is taken for a repeat: the same topic and id, proved by the log, within the window."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.dedup import RepeatGuard, Stored
from cometmq.core.clock import Clock, SystemClock, VirtualClock
from cometmq.core.errors import SettingsError
from tests.broker.test_batches import TURN_MS_MAX, Turns
from tests.broker.world import SMALL_STORE, Parts, open_parts

HOUR_MS = 3_600_000
CONFIG = BrokerConfig(drop_repeated_ids_topics="t")


@asynccontextmanager
async def guarded(
    directory: Path, clock: Clock, config: BrokerConfig = CONFIG
) -> AsyncIterator[tuple[Parts, RepeatGuard]]:
    """A broker's parts, whose own appends the guard hears of, as after a start."""
    roomy = replace(SMALL_STORE, mapped_file_size_consume_queue=60_000)
    async with open_parts(directory, config, clock, store_config=roomy) as parts:
        guard = RepeatGuard(config=config, store=parts.store, topics=parts.topics, clock=clock)
        parts.appender.on_append = guard.appended
        await guard.recover()
        yield parts, guard


async def test_only_the_same_id_of_the_same_topic_counts(tmp_path: Path) -> None:
    async with guarded(tmp_path, VirtualClock()) as (parts, guard):
        result = await parts.put("t", UNIQ_KEY="a")
        assert guard.first("t", "a") == Stored(0, 0, result.physical_offset)
        assert guard.first("t", "b") is None
        assert guard.first("other", "a") is None
        assert not guard.guards("other")
        await parts.put("other", UNIQ_KEY="z")
        assert len(guard.window) == 1


async def test_a_hash_that_leads_to_another_message_proves_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path, VirtualClock()) as (parts, guard):
        result = await parts.put("t", UNIQ_KEY="a")
        wrong = hash(("t", "other id")) & (1 << 64) - 1
        for place in (result.physical_offset, result.physical_offset + 1, 1 << 40):
            guard.window.add(wrong, place, parts.clock.wall_ms())
        guard._young.clear()
        guard._old.clear()
        assert await _first(guard, "other id") is None
        assert await _first(guard, "a") == Stored(0, 0, result.physical_offset)


async def _first(guard: RepeatGuard, unique: str) -> Stored | None:
    while (found := guard.first("t", unique)) is not None and not isinstance(found, Stored):
        await guard.read(found.place)
    return found


async def test_ids_count_until_the_window_ends_also_over_a_restart(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with guarded(tmp_path, clock) as (parts, guard):
        await parts.put("t", UNIQ_KEY="old")
        clock.advance(HOUR_MS // 2)
        young = await parts.put("t", queue_id=1, UNIQ_KEY="young")
        await parts.put("t", b"no id")
    clock.advance(HOUR_MS // 4)
    async with guarded(tmp_path, clock) as (_, guard):
        assert len(guard.window) == 2
        clock.advance(HOUR_MS // 2)
        assert await _first(guard, "old") is None
        assert await _first(guard, "young") == Stored(1, 0, young.physical_offset)
    async with guarded(tmp_path, clock) as (_, guard):
        assert len(guard.window) == 1


async def test_a_rebuild_of_many_ids_lets_others_have_their_turn(tmp_path: Path) -> None:
    clock = SystemClock()
    count = 20_000
    async with guarded(tmp_path, clock) as (parts, _):
        puts = [parts.put("t", UNIQ_KEY=f"{number}") for number in range(count)]
        await asyncio.gather(*puts)
    async with open_parts(tmp_path, CONFIG, clock) as parts:
        guard = RepeatGuard(config=CONFIG, store=parts.store, topics=parts.topics, clock=clock)
        turns = Turns()
        async with turns.watched():
            await guard.recover()
        assert 0 < turns.longest_ms < TURN_MS_MAX
        assert len(guard.window) == count
        for number in random.Random(4).sample(range(count), 200):
            assert await _first(guard, f"{number}") is not None


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"drop_repeated_ids_window_minutes": 0}, "dropRepeatedIdsWindowMinutes"),
        ({"drop_repeated_ids_window_minutes": 10_081}, "dropRepeatedIdsWindowMinutes"),
        ({"drop_repeated_ids_max": 0}, "dropRepeatedIdsMax"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, int], key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        BrokerConfig(**settings)  # type: ignore[arg-type]
