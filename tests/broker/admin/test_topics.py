"""Administration of topics."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.filter.tags import tag_code
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    ConsumerData,
    GroupList,
    Heartbeat,
    QueueEntries,
    SubscriptionData,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicStatsRead,
)
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import encode_json, parse_json
from tests.broker.world import Parts, open_parts


def creation(topic: str = "t", **changes: object) -> h.CreateTopic:
    values: dict[str, object] = {
        "topic": topic,
        "default_topic": "TBW102",
        "read_queue_nums": 4,
        "write_queue_nums": 3,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
        "topic_sys_flag": 0,
        "order": "false",
        **changes,
    }
    return h.CreateTopic(**values)  # type: ignore[arg-type]


async def create(parts: Parts, header: h.CreateTopic) -> None:
    assert (await parts.ask(Code.UPDATE_AND_CREATE_TOPIC, header)).code == 0


async def test_a_topic_is_created_and_changed_on_disk(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await create(parts, creation())
        assert b'"t":{' in (tmp_path / "config" / "topics.json").read_bytes()
        await create(parts, creation(read_queue_nums=8, order="true", topic_sys_flag=None))
        assert parts.topics.get("t") == TopicConfig("t", 8, 3, 6, "SINGLE_TAG", 0, True)


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"topic": "TBW102"}, "conflict with system topic"),
        ({"topic": ""}, "blank"),
        ({"topic": "a/b"}, "illegal"),
        ({"read_queue_nums": -1}, "readQueueNums -1"),
        ({"write_queue_nums": 10**6}, "writeQueueNums 1000000"),
        ({"perm": 99}, "perm 99"),
        ({"topic_filter_type": "X"}, "topicFilterType 'X'"),
    ],
)
async def test_a_topic_that_makes_no_sense_is_refused(
    tmp_path: Path, changes: dict[str, object], remark: str
) -> None:
    async with open_parts(tmp_path) as parts:
        with pytest.raises(BadRequest, match=remark) as error:
            await create(parts, creation(**changes))  # type: ignore[arg-type]
        assert error.value.code == ResponseCode.SYSTEM_ERROR


async def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await create(parts, creation())
        await parts.put("t")
        parts.offsets.commit("g", "t", 0, 1)
        reply = await parts.ask(Code.DELETE_TOPIC_IN_BROKER, h.Topic("t"))
        assert reply.code == 0
        assert parts.topics.get("t") is None
        assert parts.store.find_queue("t", 0) is None
        assert parts.offsets.query("g", "t", 0) == -1
        await create(parts, creation())
        assert (await parts.put("t")).queue_offset == 0
        with pytest.raises(BadRequest, match="system topic"):
            await parts.ask(Code.DELETE_TOPIC_IN_BROKER, h.Topic("TBW102"))


async def test_a_deletion_is_on_disk_before_its_answer(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await create(parts, creation())
        await create(parts, creation("empty"))
        await parts.put("t")
        parts.offsets.commit("g", "t", 0, 1)
        await parts.offsets.saved()
        end = parts.store.written_offset
        await parts.ask(Code.DELETE_TOPIC_IN_BROKER, h.Topic("t"))
        written = parse_json((tmp_path / "config" / "topics.json").read_bytes())
        assert "t" not in written["topicConfigTable"]
        assert written["cometmqDeleted"] == {"t": end}
        assert b"t@g" not in (tmp_path / "config" / "consumerOffset.json").read_bytes()
        await parts.ask(Code.DELETE_TOPIC_IN_BROKER, h.Topic("empty"))
        written = parse_json((tmp_path / "config" / "topics.json").read_bytes())
        assert written["cometmqDeleted"] == {"t": end}  # nothing is left to remember


async def test_a_send_in_the_turn_of_a_deletion_is_of_one_life_only(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await create(parts, creation())
        former = asyncio.create_task(parts.put("t", b"former"))
        deleting = asyncio.create_task(parts.ask(Code.DELETE_TOPIC_IN_BROKER, h.Topic("t")))
        await asyncio.gather(former, deleting)
        assert parts.topics.get("t") is None
        assert "t" not in parts.store.topics()
        await create(parts, creation())
        assert (await parts.put("t", b"new")).queue_offset == 0
        assert [record.body for record in parts.read("t")] == [b"new"]


async def test_all_topics_are_listed(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await create(parts, creation())
        reply = await parts.ask(Code.GET_ALL_TOPIC_CONFIG, h.AllTopics())
        table = parse_json(reply.body, TopicConfigTable)
        assert table.topic_config_table["t"].write_queue_nums == 3
        assert table.data_version == parts.topics.data_version
        system = parse_json(
            (await parts.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body, TopicList
        ).topic_list
        assert {"TBW102", "broker-a", "DefaultCluster"} <= set(system)
        assert "t" not in system


async def test_a_slave_is_told_what_a_fenced_broker_s_topics_may(tmp_path: Path) -> None:
    async with open_parts(tmp_path, BrokerConfig(broker_permission=4)) as parts:
        await create(parts, creation())
        reply = await parts.ask(Code.GET_ALL_TOPIC_CONFIG, h.AllTopics())
        listed = parse_json(reply.body, TopicConfigTable)
        assert listed.topic_config_table["t"].perm == 6
        assert parts.topics.registered()["t"].perm == 4


async def test_one_topic_is_described(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await create(parts, creation())
        reply = await parts.ask(Code.GET_TOPIC_CONFIG, h.Topic("t"))
        assert parse_json(reply.body, TopicConfig) == TopicConfig("t", 4, 3)
        with pytest.raises(BadRequest, match="not exist") as error:
            await parts.ask(Code.GET_TOPIC_CONFIG, h.Topic("none"))
        assert error.value.code == ResponseCode.TOPIC_NOT_EXIST


async def test_the_state_of_a_topic_s_queues(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        parts.topics.put(TopicConfig("t", 2, 2))
        await parts.put("t", queue_id=1)
        clock.advance(5_000)
        await parts.put("t", queue_id=1)
        reply = await parts.ask(Code.GET_TOPIC_STATS_INFO, h.Topic("t"))
        assert reply.body.startswith(
            b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:'
        )
        rows = [
            (one.min_offset, one.max_offset, one.last_update_timestamp)
            for one in parse_json(reply.body, TopicStatsRead).offset_table.values()
        ]
        assert rows == [(0, 0, 0), (0, 2, clock.wall_ms())]
        with pytest.raises(BadRequest, match="not exist") as error:
            await parts.ask(Code.GET_TOPIC_STATS_INFO, h.Topic("none"))
        assert error.value.code == ResponseCode.TOPIC_NOT_EXIST


async def test_groups_of_a_topic_are_those_online_and_those_that_read(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        parts.offsets.commit("reader", "t", 0, 1)
        data = ConsumerData("online", subscription_data_set=(SubscriptionData("t"),))
        await parts.ask(Code.HEART_BEAT, body=encode_json(Heartbeat("c", (), (data,))))
        reply = await parts.ask(Code.QUERY_TOPIC_CONSUME_BY_WHO, h.Topic("t"))
        assert parse_json(reply.body, GroupList).group_list == ["online", "reader"]


async def test_queues_of_topics_that_the_table_lacks_are_deleted(tmp_path: Path) -> None:
    """With the groups' offsets in them; other topics and those of the broker itself stay."""
    async with open_parts(tmp_path) as parts:
        for topic in ("lost", "kept", "SCHEDULE_TOPIC_XXXX"):
            await parts.put(topic)
        await create(parts, creation("kept"))
        parts.topics.delete("lost")
        parts.offsets.commit("g", "lost", 0, 1)
        assert (await parts.ask(Code.CLEAN_UNUSED_TOPIC)).code == 0
        assert set(parts.store.topics()) == {"kept", "SCHEDULE_TOPIC_XXXX"}
        assert not parts.offsets.topics_of("g")
        await create(parts, creation("lost"))
        assert (await parts.put("lost")).queue_offset == 0


async def test_a_topic_that_a_send_creates_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.put("lost")
        between_turns = parts.appender.between_turns

        async def later(action: Callable[[], None]) -> None:
            await create(parts, creation("lost"))
            await parts.put("lost", b"acknowledged")
            await between_turns(action)

        monkeypatch.setattr(parts.appender, "between_turns", later)
        assert (await parts.ask(Code.CLEAN_UNUSED_TOPIC)).code == 0
        assert [each.body for each in parts.read("lost")] == [b"x", b"acknowledged"]


async def entries(parts: Parts, **asked: object) -> QueueEntries:
    header = h.QueryConsumeQueue(**{"topic": "t", "queue_id": 0, **asked})  # type: ignore[arg-type]
    return parse_json((await parts.ask(Code.QUERY_CONSUME_QUEUE, header)).body, QueueEntries)


async def test_entries_of_a_queue_are_shown(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        stored = [await parts.put("t", b"body", 0, TAGS=tag) for tag in ("red", "blue", "green")]
        found = await entries(parts, index=1, count=10)
        assert (found.min_queue_index, found.max_queue_index) == (0, 3)
        assert [each.physic_offset for each in found.queue_data] == [
            each.physical_offset for each in stored[1:]
        ]
        assert [each.tags_code for each in found.queue_data] == [
            tag_code("blue"),
            tag_code("green"),
        ]
        assert len((await entries(parts, index=0, count=2)).queue_data) == 2
        for outside in ({"index": 3}, {"index": -1}, {"index": 1 << 62}, {"count": -1}):
            assert (await entries(parts, **{"count": 5, **outside})).queue_data == []
        assert found.filter_data is None
        with pytest.raises(BadRequest, match="7@t is not exist!"):
            await entries(parts, queue_id=7, count=1)
        with pytest.raises(BadRequest, match="0@no is not exist!"):
            await entries(parts, topic="no", count=1)
        assert "no" not in parts.store.topics()


async def test_with_a_group_its_subscription_is_shown(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.put("t")
        found = await entries(parts, consumer_group="g", count=1)
        assert found.filter_data == "g@t is not online!"
        data = ConsumerData("g", subscription_data_set=(SubscriptionData("t", "red", 3),))
        await parts.ask(Code.HEART_BEAT, body=encode_json(Heartbeat("c", (), (data,))))
        found = await entries(parts, consumer_group="g", count=1)
        assert found.subscription_data is not None
        assert (found.subscription_data.sub_string, found.filter_data) == ("red", "null")
