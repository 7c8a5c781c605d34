"""How far groups have read: in messages, in time, compared and copied."""

import asyncio
import gc
import sys
import time
from pathlib import Path

import pytest

from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    ConsumeOffset,
    ConsumeStatsRead,
    ConsumeTimeSpans,
    CorrectionOffsets,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    TopicConfig,
)
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fastjson import parse_json
from tests.broker.world import Parts, open_parts
from tests.pace import slowness

_NO_CORRECTION = 2**63 - 1


async def progress(parts: Parts, topic: str | None = None) -> ConsumeStatsRead:
    reply = await parts.ask(Code.GET_CONSUME_STATS, h.GetConsumeStats("g", topic))
    return parse_json(reply.body, ConsumeStatsRead)


async def test_progress_of_a_group(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        for topic in ("t", "u"):
            parts.topics.put(TopicConfig(topic, 2, 2))
        first_ms = clock.wall_ms()
        await parts.put("t")
        clock.advance(1_000)
        await parts.put("t")
        parts.offsets.commit("g", "t", 0, 1)
        parts.offsets.commit("g", "u", 0, 0)
        parts.offsets.commit("g", "deleted", 0, 5)
        found = await progress(parts)
        assert list(found.offset_table.values()) == [
            ConsumeOffset(2, 1, first_ms),
            ConsumeOffset(0, 0, 0),
            ConsumeOffset(0, 0, 0),
            ConsumeOffset(0, 0, 0),
        ]
        assert len((await progress(parts, "t")).offset_table) == 2
        parts.stats.on_pull("g", "t", 60, 1)
        await parts.stats.sample_step()
        assert (await progress(parts)).consume_tps > 0


async def test_topics_that_an_online_group_left_are_not_shown(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        for topic in ("t", "u"):
            parts.topics.put(TopicConfig(topic, 1, 1))
            parts.offsets.commit("g", topic, 0, 0)
        await parts.join("g", "t")
        (key,) = (await progress(parts)).offset_table
        assert '"topic":"t"' in key


async def test_progress_of_all_groups(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        for topic, order in (("t", False), ("o", True)):
            parts.topics.put(TopicConfig(topic, 1, 1, order=order))
            await parts.put(topic)
            for group in ("g", "h"):
                parts.groups.put(SubscriptionGroupConfig(group))
                parts.offsets.commit(group, topic, 0, int(group == "h"))
        parts.offsets.commit("g", "deleted", 0, 7)
        reply = await parts.ask(Code.GET_BROKER_CONSUME_STATS, h.BrokerConsumeStats("false"))
        body = parse_json(reply.body)
        assert (body["brokerAddr"], body["totalDiff"]) == ("127.0.0.1:10911", 2)
        groups = {name: each for row in body["consumeStatsList"] for name, each in row.items()}
        assert [len(each["offsetTable"]) for each in groups["g"]] == [1, 1]
        ((key, row),) = groups["h"][0]["offsetTable"].items()
        assert key == '{"brokerName":"broker-a","queueId":0,"topic":"o"}'
        assert (row["brokerOffset"], row["consumerOffset"]) == (1, 1)
        reply = await parts.ask(Code.GET_BROKER_CONSUME_STATS, h.BrokerConsumeStats("true"))
        rows = parse_json(reply.body)["consumeStatsList"]
        assert {len(each) for row in rows for each in row.values()} == {0, 1}


async def test_time_spans_of_queues(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        parts.topics.put(TopicConfig("t", 2, 2))
        times: list[int] = []
        for _ in range(3):
            clock.advance(1_000)
            await parts.put("t")
            times.append(clock.wall_ms())
        clock.advance(5_000)
        parts.offsets.commit("g", "t", 0, 2)

        async def spans(group: str) -> list[QueueTimeSpan]:
            reply = await parts.ask(Code.QUERY_CONSUME_TIME_SPAN, h.ConsumeTimeSpan("t", group))
            return parse_json(reply.body, ConsumeTimeSpans).consume_time_span_set

        first, empty = await spans("g")
        assert (first.min_time_stamp, first.max_time_stamp) == (times[0], times[2])
        assert (first.consume_time_stamp, first.delay_time) == (times[1], 5_000)
        assert (empty.min_time_stamp, empty.max_time_stamp, empty.delay_time) == (-1, -1, 0)
        (never, _) = await spans("other")
        assert (never.consume_time_stamp, never.delay_time) == (times[0], 7_000)
        parts.offsets.commit("g", "t", 0, 3)
        (done, _) = await spans("g")
        assert (done.consume_time_stamp, done.delay_time) == (times[2], 0)
        with pytest.raises(BadRequest, match="not exist") as caught:
            await parts.ask(Code.QUERY_CONSUME_TIME_SPAN, h.ConsumeTimeSpan("no", "g"))
        assert caught.value.code == 17


async def test_corrections_are_the_least_progress_of_others(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        for group, offsets in (("a", (5, 9)), ("b", (3, 8)), ("left-out", (1, 1))):
            for queue_id, offset in enumerate(offsets):
                parts.offsets.commit(group, "t", queue_id, offset)
        parts.offsets.commit("ahead", "t", 0, 4)
        parts.offsets.commit("ahead", "t", 1, 7)
        parts.offsets.commit("ahead", "t", 2, 7)

        async def corrections(filtered: str | None) -> dict[int, int]:
            header = h.QueryCorrectionOffset("ahead", "t", filtered)
            reply = await parts.ask(Code.QUERY_CORRECTION_OFFSET, header)
            return parse_json(reply.body, CorrectionOffsets).correction_offsets

        assert await corrections("left-out,ahead") == {0: 3, 1: _NO_CORRECTION, 2: _NO_CORRECTION}
        assert await corrections(None) == {0: 1, 1: 1, 2: 7}


async def test_a_group_gets_the_progress_of_another(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        for topic in ("t", "u", "left"):
            parts.topics.put(TopicConfig(topic, 2, 2))
            for queue_id in range(2):
                parts.offsets.commit("g", topic, queue_id, 5 + queue_id)
        parts.offsets.commit("g", "deleted", 0, 5)
        await parts.ask(Code.CLONE_GROUP_OFFSET, h.CloneGroupOffset("g", "one", "t"))
        assert parts.offsets.topics_of("one") == ["t"]
        assert parts.offsets.queues_of("one", "t") == {0: 5, 1: 6}
        assert b'"t@one":{0:5' in (tmp_path / "config" / "consumerOffset.json").read_bytes()
        await parts.ask(Code.CLONE_GROUP_OFFSET, h.CloneGroupOffset("g", "all"))
        assert sorted(parts.offsets.topics_of("all")) == ["left", "t", "u"]
        await parts.join("g", "t")
        await parts.ask(Code.CLONE_GROUP_OFFSET, h.CloneGroupOffset("g", "online"))
        assert parts.offsets.topics_of("online") == ["t"]
        await parts.ask(Code.CLONE_GROUP_OFFSET, h.CloneGroupOffset("g", "off", None, "true"))
        assert sorted(parts.offsets.topics_of("off")) == ["left", "t", "u"]


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (Code.GET_CONSUME_STATS, h.GetConsumeStats("g", "wide")),
        (Code.GET_BROKER_CONSUME_STATS, h.BrokerConsumeStats("false")),
        (Code.QUERY_CONSUME_TIME_SPAN, h.ConsumeTimeSpan("wide", "g")),
        (Code.GET_TOPIC_STATS_INFO, h.Topic("wide")),
    ],
)
async def test_a_topic_of_very_many_queues_is_told_of_in_slices(
    tmp_path: Path, code: Code, header: h.Header
) -> None:
    """One turn that made all of the answer held everybody else up for 85 ms."""
    async with open_parts(tmp_path, clock=SystemClock()) as parts:
        parts.topics.put(TopicConfig("wide", 32_768, 32_768))
        parts.groups.put(SubscriptionGroupConfig("g"))
        parts.offsets.commit("g", "wide", 0, 0)
        asked = asyncio.create_task(parts.ask(code, header))
        longest_s = 0.0
        # A look for garbage takes the longer, the more other tests left in the process.
        gc.disable()
        try:
            while not asked.done():
                before_s = time.process_time()
                await asyncio.sleep(0)
                longest_s = max(longest_s, time.process_time() - before_s)
        finally:
            gc.enable()
        assert b"wide" in (await asked).body
        assert longest_s < (0.04 if sys.gettrace() is None else 0.16) * slowness()
