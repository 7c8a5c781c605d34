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
from cometmq.broker.dedup import Deduplicator, Stored
from cometmq.core.clock import Clock, SystemClock, VirtualClock
from cometmq.core.errors import SettingsError
from tests.broker.test_batches import TURN_MS_MAX, Turns
from tests.broker.world import SMALL_STORE, Parts, open_parts

HOUR_MS = 3_600_000
CONFIG = BrokerConfig(drop_repeated_ids_topics="t")


@asynccontextmanager
async def deduplicating(
    directory: Path, clock: Clock, config: BrokerConfig = CONFIG
) -> AsyncIterator[tuple[Parts, Deduplicator]]:
    """A broker's parts, whose own appends the deduplicator hears of, as after a start."""
    roomy = replace(SMALL_STORE, mapped_file_size_consume_queue=60_000)
    async with open_parts(directory, config, clock, store_config=roomy) as parts:
        deduplicator = Deduplicator(
            config=config, store=parts.store, topics=parts.topics, clock=clock
        )
        parts.appender.on_append = deduplicator.appended
        await deduplicator.recover()
        yield parts, deduplicator


async def test_only_the_same_id_of_the_same_topic_counts(tmp_path: Path) -> None:
    async with deduplicating(tmp_path, VirtualClock()) as (parts, deduplicator):
        result = await parts.put("t", UNIQ_KEY="a")
        assert deduplicator.first("t", "a") == Stored(0, 0, result.physical_offset)
        assert deduplicator.first("t", "b") is None
        assert deduplicator.first("other", "a") is None
        assert not deduplicator.covers("other")
        await parts.put("other", UNIQ_KEY="z")
        assert len(deduplicator.window) == 1


async def test_a_hash_that_leads_to_another_message_proves_nothing(tmp_path: Path) -> None:
    async with deduplicating(tmp_path, VirtualClock()) as (parts, deduplicator):
        result = await parts.put("t", UNIQ_KEY="a")
        wrong = hash(("t", "other id")) & (1 << 64) - 1
        for place in (result.physical_offset, result.physical_offset + 1, 1 << 40):
            deduplicator.window.add(wrong, place, parts.clock.wall_ms())
        deduplicator._young.clear()
        deduplicator._old.clear()
        assert await _first(deduplicator, "other id") is None
        assert await _first(deduplicator, "a") == Stored(0, 0, result.physical_offset)


async def _first(deduplicator: Deduplicator, unique: str) -> Stored | None:
    while (found := deduplicator.first("t", unique)) is not None and not isinstance(found, Stored):
        await deduplicator.read(found.place)
    return found


async def test_ids_count_until_the_window_ends_also_over_a_restart(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with deduplicating(tmp_path, clock) as (parts, deduplicator):
        await parts.put("t", UNIQ_KEY="old")
        clock.advance(HOUR_MS // 2)
        young = await parts.put("t", queue_id=1, UNIQ_KEY="young")
        await parts.put("t", b"no id")
    clock.advance(HOUR_MS // 4)
    async with deduplicating(tmp_path, clock) as (_, deduplicator):
        assert len(deduplicator.window) == 2
        clock.advance(HOUR_MS // 2)
        assert await _first(deduplicator, "old") is None
        assert await _first(deduplicator, "young") == Stored(1, 0, young.physical_offset)
    async with deduplicating(tmp_path, clock) as (_, deduplicator):
        assert len(deduplicator.window) == 1


async def test_a_rebuild_of_many_ids_lets_others_have_their_turn(tmp_path: Path) -> None:
    clock = SystemClock()
    count = 20_000
    async with deduplicating(tmp_path, clock) as (parts, _):
        puts = [parts.put("t", UNIQ_KEY=f"{number}") for number in range(count)]
        await asyncio.gather(*puts)
    async with open_parts(tmp_path, CONFIG, clock) as parts:
        deduplicator = Deduplicator(
            config=CONFIG, store=parts.store, topics=parts.topics, clock=clock
        )
        turns = Turns()
        async with turns.watched():
            await deduplicator.recover()
        assert 0 < turns.longest_ms < TURN_MS_MAX
        assert len(deduplicator.window) == count
        for number in random.Random(4).sample(range(count), 200):
            assert await _first(deduplicator, f"{number}") is not None


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
