"""Where sends go at one look: what is known, and what voids it."""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.send.admission import Destinations
from cometmq.protocol.bodies import TopicConfig
from cometmq.protocol.codes import RequestCode
from tests.broker.serving import running_broker
from tests.broker.world import open_parts


async def test_queues_are_known_by_topic_and_number(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        found = Destinations(parts.topics, parts.store.queues)
        config = TopicConfig("t", read_queue_nums=3, write_queue_nums=2)
        first, last = (parts.store.queue("t", number) for number in (0, 2))
        assert found.get("t") is None
        found.learn(config, last, plain=True)
        assert found.get("t") == [None, None, last]
        found.learn(config, first, plain=True)
        assert found.get("t") == [first, None, last]
        assert [found.plain.get(b"t", number) for number in range(3)] == [first, None, last]


async def test_topics_whose_checks_look_further_stay_unknown(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        found = Destinations(parts.topics, parts.store.queues)
        queue = parts.store.queue("t", 0)
        found.learn(TopicConfig("t", order=True), queue, plain=True)
        assert found.get("t") is None
        assert not found.plain
        found.learn(TopicConfig("t", read_queue_nums=1_024), queue, plain=False)
        assert found.get("t") == [queue, *[None] * 1_023]
        assert not found.plain


async def test_a_change_of_topics_voids_all_and_a_queue_that_goes_its_topic(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        found = Destinations(parts.topics, parts.store.queues)

        def learn() -> None:
            for topic in "tu":
                found.learn(TopicConfig(topic, 1, 1), parts.store.queue(topic, 0), plain=True)

        learn()
        parts.topics.put(TopicConfig("v"))
        assert found.get("t") is found.get("u") is None
        assert not found.plain
        learn()
        parts.store.deletions.delete("t")
        assert found.get("t") is None
        assert found.get("u") == [parts.store.queue("u", 0)]
        assert len(found.plain) == 1
        assert found.plain.get(b"u", 0) is parts.store.queue("u", 0)
        learn()
        assert found.get("t") == [parts.store.queue("t", 0)]


async def test_sends_see_at_once_what_becomes_of_their_topic(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        topics = running.broker.topics.table
        assert [(await client.send()).ext["queueOffset"] for _ in range(2)] == ["0", "1"]
        topics.put(TopicConfig("t", 4, 4, perm=4))
        assert (await client.send()).code == 16
        topics.put(TopicConfig("t", 4, 1))
        assert [(await client.send()).ext["queueOffset"] for _ in range(2)] == ["2", "3"]
        topics.put(TopicConfig("t", 1, 1))
        assert "1 write queues" in ((await client.send()).remark or "")
        topics.put(TopicConfig("t", 4, 4))
        assert [(await client.send()).ext["queueOffset"] for _ in range(2)] == ["4", "5"]
        deleted, _ = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
        assert deleted.code == 0
        assert [(await client.send(b"anew")).ext["queueOffset"] for _ in range(2)] == ["0", "1"]
        _, records = await client.pull()
        assert [record.body for record in records] == [b"anew"] * 2


async def test_messages_that_are_stored_elsewhere_go_there_from_a_known_topic(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        for _ in range(2):
            assert (await client.send()).code == 0
        delayed = await client.send(i="DELAY\x013")
        assert (delayed.code, delayed.ext["queueId"], delayed.ext["queueOffset"]) == (0, "2", "0")
        assert (await client.send(e="3", i="DELAY\x013")).ext["queueOffset"] == "1"
        assert running.broker.store.find_queue("t", 3) is None
        assert (await client.send()).ext["queueOffset"] == "2"
