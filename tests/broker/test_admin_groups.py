"""Administration of groups and their progress."""

from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    ConsumeOffset,
    ConsumerData,
    ConsumeStatsRead,
    Heartbeat,
    Subscription,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
)
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fastjson import encode_json, parse_json
from tests.broker.world import Parts, open_parts


async def progress(parts: Parts, topic: str | None = None) -> ConsumeStatsRead:
    reply = await parts.ask(Code.GET_CONSUME_STATS, h.GetConsumeStats("g", topic))
    return parse_json(reply.body, ConsumeStatsRead)


async def test_a_group_is_created_listed_and_deleted(tmp_path: Path) -> None:
    config = SubscriptionGroupConfig("g", retry_max_times=3)
    async with open_parts(tmp_path) as parts:
        await parts.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_json(config))
        assert b'"g":{' in (tmp_path / "config" / "subscriptionGroup.json").read_bytes()
        reply = await parts.ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = parse_json(reply.body, SubscriptionGroupTable)
        assert table.subscription_group_table["g"] == config
        parts.offsets.commit("g", "t", 0, 1)
        await parts.ask(Code.DELETE_SUBSCRIPTIONGROUP, h.GroupName("g"))
        assert parts.groups.get("g") is None
        assert parts.offsets.query("g", "t", 0) == 1
        await parts.ask(Code.DELETE_SUBSCRIPTIONGROUP, h.GroupName("g", "true"))
        assert parts.offsets.query("g", "t", 0) == -1


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"groupName":"a b"}', b'{"groupName":""}'])
async def test_a_bad_group_is_refused(tmp_path: Path, body: bytes) -> None:
    async with open_parts(tmp_path) as parts:
        with pytest.raises(BadRequest):
            await parts.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


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
        assert (await progress(parts)).consume_tps > 0


async def test_topics_that_an_online_group_left_are_not_shown(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        for topic in ("t", "u"):
            parts.topics.put(TopicConfig(topic, 1, 1))
            parts.offsets.commit("g", topic, 0, 0)
        data = ConsumerData("g", subscription_data_set=(Subscription("t"),))
        await parts.ask(Code.HEART_BEAT, body=encode_json(Heartbeat("c", (), (data,))))
        (key,) = (await progress(parts)).offset_table
        assert '"topic":"t"' in key


async def test_slaves_get_all_offsets(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        parts.offsets.commit("g", "t", 0, 1)
        reply = await parts.ask(Code.GET_ALL_CONSUMER_OFFSET)
        assert reply.body == b'{"offsetTable":{"t@g":{0:1}}}'
        reply = await parts.ask(Code.GET_ALL_DELAY_OFFSET)
        assert reply.body == b'{"offsetTable":{}}'
