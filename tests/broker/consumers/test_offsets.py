"""Progress of groups: its file, its questions, its bounds."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest, StoreCorrupt, StoreError
from cometmq.protocol.bodies import TopicConfig
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.headers import (
    QueryConsumerOffset,
    QueueOffsetResponse,
    UpdateConsumerOffset,
)
from tests.broker.consumers.test_members import beat, consumer
from tests.broker.world import Parts, connect, open_parts, open_tables


async def test_java_s_file_is_read_and_written_alike(tmp_path: Path) -> None:
    text = (
        b'{\n\t"offsetTable":{\n\t\t"%RETRY%g@g":{0:0\n\t\t},\n\t\t"t@g":{0:250,3:1\n\t\t}\n\t}\n}'
    )
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(text)
    async with open_tables(tmp_path) as tables:
        assert tables.offsets.query("g", "t", 0) == 250
        assert tables.offsets.query("g", "t", 1) == -1
        assert tables.offsets.query("h", "t", 0) == -1
        assert await tables.offsets.text() == (
            b'{"offsetTable":{"%RETRY%g@g":{0:0},"t@g":{0:250,3:1}}}'
        )
        tables.offsets.commit("g", "t", 3, 2)
    assert path.read_bytes() == text.replace(b"3:1", b"3:2")


async def test_a_broken_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_bytes(b'{"offsetTable":{"t@g":{"x":1}}}')
    with pytest.raises(StoreCorrupt, match="offsetTable"):
        async with open_tables(tmp_path):
            pass


async def test_progress_is_written_in_the_interval(tmp_path: Path) -> None:
    clock = VirtualClock()
    path = tmp_path / "consumerOffset.json"
    async with open_tables(tmp_path, clock=clock) as tables:
        tables.tasks.spawn(tables.offsets.persist_forever(), name="persist")
        tables.offsets.commit("g", "t", 0, 5)
        await asyncio.sleep(0)
        clock.advance(4_999)
        assert not path.exists()
        clock.advance(1)
        async with asyncio.timeout(60):
            while not path.exists():
                await asyncio.sleep(0.001)
        assert parse_json(path.read_bytes()) == {"offsetTable": {"t@g": {"0": 5}}}


async def test_progress_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    async with open_tables(tmp_path / "config") as tables:
        (tmp_path / "config").write_text("in the way of the directory")
        tables.offsets.commit("g", "t", 0, 5)
        with pytest.raises(StoreError):
            await tables.offsets.close()
        (tmp_path / "config").unlink()
        await tables.offsets.close()
    async with open_tables(tmp_path / "config") as again:
        assert again.offsets.query("g", "t", 0) == 5


async def test_topics_and_groups_are_forgotten(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        for group, topic in (("g", "t"), ("g", "u"), ("h", "t")):
            tables.offsets.commit(group, topic, 0, 1)
        assert sorted(tables.offsets.groups_of("t")) == ["g", "h"]
        assert sorted(tables.offsets.topics_of("g")) == ["t", "u"]
        tables.offsets.delete_topic("t")
        assert tables.offsets.topics_of("g") == ["u"]
        tables.offsets.delete_group("g")
        assert tables.offsets.topics_of("g") == []
        tables.offsets.commit("g", "t", 0, 1)
        tables.offsets.delete_topic("t")
    async with open_tables(tmp_path) as again:
        assert again.offsets.groups_of("t") == []


async def query(parts: Parts, topic: str = "t", queue_id: int = 0) -> int:
    reply = await parts.ask(Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffset("g", topic, queue_id))
    assert isinstance(reply.header, QueueOffsetResponse)
    return reply.header.offset


async def update(parts: Parts, topic: str, queue_id: int, offset: int) -> None:
    header = UpdateConsumerOffset("g", topic, queue_id, offset)
    await parts.ask(Code.UPDATE_CONSUMER_OFFSET, header)


async def test_offsets_are_kept_and_asked_for(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        parts.topics.put(TopicConfig("t", 2, 4))
        await update(parts, "t", 3, 7)
        assert await query(parts, "t", 3) == 7
        await update(parts, "t", 3, 2)
        assert await query(parts, "t", 3) == 2


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset"), [("none", 0, 1), ("t", 4, 1), ("t", 0, -1)]
)
async def test_offsets_of_nothing_are_refused(
    tmp_path: Path, topic: str, queue_id: int, offset: int
) -> None:
    async with open_parts(tmp_path) as parts:
        parts.topics.put(TopicConfig("t", 2, 4))
        with pytest.raises(BadRequest, match=topic):
            await update(parts, topic, queue_id, offset)


@pytest.mark.parametrize("group", ["", "no such name!", "g" * 128, "g" * 60_000])
async def test_offsets_of_a_name_that_no_group_has_are_refused(tmp_path: Path, group: str) -> None:
    async with open_parts(tmp_path) as parts:
        parts.topics.put(TopicConfig("t", 2, 4))
        with pytest.raises(BadRequest, match="is illegal") as error:
            await parts.ask(Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(group, "t", 0, 1))
        assert len(error.value.remark) < 300


async def test_invented_groups_do_not_fill_the_table(tmp_path: Path) -> None:
    """Groups that have offsets in a topic go on."""
    async with open_parts(tmp_path, BrokerConfig(max_subscription_groups=1)) as parts:
        parts.topics.put(TopicConfig("t", 2, 4))
        await update(parts, "t", 0, 1)
        for number in range(3):
            header = UpdateConsumerOffset(f"invented{number}", "t", 0, 1)
            await parts.ask(Code.UPDATE_CONSUMER_OFFSET, header)
        header = UpdateConsumerOffset("invented3", "t", 0, 1)
        with pytest.raises(BadRequest, match="raise maxSubscriptionGroups"):
            await parts.ask(Code.UPDATE_CONSUMER_OFFSET, header)
        assert not parts.offsets.commit_of_client("invented4", "t", 0, 1)
        assert len(parts.offsets.groups_of("t")) == 4
        await update(parts, "t", 3, 7)
        assert await query(parts, "t", 3) == 7


async def is_unknown(parts: Parts, **fields: Any) -> bool:
    header = QueryConsumerOffset("g", "t", 0, **fields)
    try:
        reply = await parts.ask(Code.QUERY_CONSUMER_OFFSET, header)
    except BadRequest as error:
        return error.code == ResponseCode.QUERY_NOT_FOUND
    assert reply.header == QueueOffsetResponse(0)
    return False


EXACT = BrokerConfig(young_queue_from_start=False)


async def test_a_new_group_starts_at_the_beginning_of_a_young_queue(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        assert not await is_unknown(parts)
        await parts.put("t")
        assert not await is_unknown(parts)
        assert await is_unknown(parts, set_zero_if_not_found="false")


async def test_a_new_group_on_a_young_queue_may_decide_itself(tmp_path: Path) -> None:
    async with open_parts(tmp_path, EXACT) as parts:
        assert not await is_unknown(parts)  # there is nothing before 0
        await parts.put("t")
        assert await is_unknown(parts)
        assert await is_unknown(parts, set_zero_if_not_found="false")
        assert not await is_unknown(parts, set_zero_if_not_found="true")


async def test_a_queue_that_began_after_its_group_is_read_from_its_start(tmp_path: Path) -> None:
    async with open_parts(tmp_path, EXACT) as parts:
        parts.members.log_end = lambda: parts.store.written_offset
        await beat(parts.members, connect(1), "c1", [consumer("g", "t")])
        await parts.put("t")
        assert not await is_unknown(parts)
        assert not await is_unknown(parts, set_zero_if_not_found="false")


async def test_a_group_that_came_after_a_queue_s_first_message_decides_itself(
    tmp_path: Path,
) -> None:
    async with open_parts(tmp_path, EXACT) as parts:
        parts.members.log_end = lambda: parts.store.written_offset
        await parts.put("t")
        await beat(parts.members, connect(1), "c1", [consumer("g", "t")])
        assert await is_unknown(parts)


async def test_on_an_old_queue_the_client_s_policy_decides(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        for _ in range(3):
            await parts.put("t")
        parts.store.queue("t", 0).min_offset = 2
        with pytest.raises(BadRequest, match="first time") as error:
            await query(parts)
        assert error.value.code == ResponseCode.QUERY_NOT_FOUND


async def test_offsets_beyond_a_crashed_queue_are_brought_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_parts(tmp_path) as parts:
        for _ in range(3):
            await parts.put("t")
        parts.offsets.commit("g", "t", 0, 3)
        parts.offsets.commit("g", "t", 1, 9)
        parts.offsets.commit("g", "lost", 0, 9)
        parts.offsets.clamp(parts.store)
        assert parts.offsets.query("g", "t", 1) == 9  # after a clean stop nothing is looked at
        parts.store.report = cast("Any", SimpleNamespace(shrunk=True))
        parts.offsets.clamp(parts.store)
        assert parts.offsets.query("g", "t", 0) == 3
        assert parts.offsets.query("g", "t", 1) == 0
        assert parts.offsets.query("g", "lost", 0) == 0
        assert "consumer offset clamped group=g topic=t queue=1 from=9 to=0" in caplog.text
        # Members that live on tell of what they had read.
        for queue_id, told, known in ((0, 2, 2), (0, 4, 3), (1, 9, 0)):
            parts.offsets.commit("g", "t", queue_id, told)
            assert parts.offsets.query("g", "t", queue_id) == known
        # The next start takes care, too, if this is over before they have.
        assert parts.store.maintenance.shrunk


async def test_members_that_never_tell_are_forgotten(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        parts.store.report = cast("Any", SimpleNamespace(shrunk=True))
        parts.offsets.clamp(parts.store)
        persisting = asyncio.create_task(parts.offsets.persist_forever())
        for expected in (True, False):
            await asyncio.sleep(0)
            assert parts.store.maintenance.shrunk == expected
            clock.advance(200_000)
            await asyncio.sleep(0)
        persisting.cancel()
