"""Answers that have a part for each queue."""

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from cometmq.broker.admin.offsets import LongAnswers
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.headers import AllTopics, GetConsumeStats, Topic
from tests.broker.world import open_parts

QUEUES = 1_500
#: The parts of one answer take a tenth of it, those of all at once twice as much.
PEAK_MAX_BYTES = 3 << 20


async def test_many_long_answers_are_made_one_at_a_time(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        parts.topics.put(TopicConfig("t", QUEUES, QUEUES))
        for queue_id in range(QUEUES):
            parts.offsets.commit("g", "t", queue_id, 1)

        async def ask(number: int) -> int:
            if number % 2:
                answer = await parts.ask(Code.GET_TOPIC_STATS_INFO, Topic("t"))
            else:
                answer = await parts.ask(Code.GET_CONSUME_STATS, GetConsumeStats("g", "t"))
            return len(answer.body)

        alone = [await ask(0), await ask(1)]
        tracemalloc.start()
        try:
            sizes = await asyncio.gather(*map(ask, range(24)))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sizes == alone * 12
        assert peak_bytes < PEAK_MAX_BYTES


async def test_whole_tables_are_made_one_at_a_time(tmp_path: Path) -> None:
    asked = (
        (Code.GET_ALL_TOPIC_CONFIG, AllTopics("true")),
        (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None),
        (Code.GET_ALL_CONSUMER_OFFSET, None),
    )
    async with open_parts(tmp_path) as parts:
        for number in range(QUEUES):
            parts.topics.put(TopicConfig(f"topic-{number}", 1, 1))
            parts.groups.put(SubscriptionGroupConfig(f"group-{number}"))
            parts.offsets.commit("g", f"topic-{number}", 0, 1)

        async def ask(number: int) -> int:
            return len((await parts.ask(*asked[number % len(asked)])).body)

        alone = [await ask(number) for number in range(len(asked))]
        tracemalloc.start()
        try:
            sizes = await asyncio.gather(*map(ask, range(len(asked) * 12)))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sizes == alone * 12
        assert peak_bytes < PEAK_MAX_BYTES


async def test_an_answer_longer_than_a_frame_is_refused() -> None:
    answers = LongAnswers(VirtualClock(), max_bytes=10)
    async with answers.one() as answer:
        await answer.add(b"1234")
        assert answer.take() == b"1234"
        await answer.add(b"5678")
        with pytest.raises(BadRequest, match="longer than 10 bytes"):
            await answer.add(b"9")
    async with answers.one() as answer:
        assert answer.take() == b""
