"""Questions for messages, offsets and times."""

from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.message.record import iter_decode
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.codes import ResponseCode
from cometmq.store.layout import index_hash, topic_prefix
from tests.broker.world import Parts, open_parts

pytestmark = pytest.mark.core

MAX_MS = 2**63 - 1


async def by_key(
    parts: Parts, key: str, wanted: int = 32, unique: str | None = None
) -> list[bytes]:
    header = h.QueryMessage("t", key, wanted, 0, MAX_MS, unique)
    reply = await parts.ask(Code.QUERY_MESSAGE, header)
    assert isinstance(reply.header, h.QueryMessageResponse)
    return [record.body for record in iter_decode(reply.body)]


async def number(parts: Parts, code: Code, header: h.Header) -> int:
    answer = (await parts.ask(code, header)).header
    if isinstance(answer, h.EarliestStoreTimeResponse):
        return answer.timestamp
    assert isinstance(answer, h.QueueOffsetResponse)
    return answer.offset


async def test_messages_are_found_by_their_keys(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        for body in (b"a", b"b"):
            await parts.put("t", body, KEYS=f"k {body.decode()}", UNIQ_KEY="u" + body.decode())
        await parts.put("other", b"c", KEYS="k")
        assert await by_key(parts, "k") == [b"a", b"b"]
        assert await by_key(parts, "b") == [b"b"]
        assert await by_key(parts, "ua", 1, "true") == [b"a"]
        assert len(await by_key(parts, "k", 1)) == 1


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.put("t", KEYS="k")
        with pytest.raises(BadRequest, match="no key 'x'") as error:
            await by_key(parts, "x")
        assert error.value.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_message_of_another_topic_with_the_same_hash_is_not_shown(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.put("BB", b"other", KEYS="k")
        assert index_hash(topic_prefix("BB"), "k") == index_hash(topic_prefix("Aa"), "k")
        query = h.QueryMessage("Aa", "k", 32, 0, MAX_MS, None)
        with pytest.raises(BadRequest) as error:
            await parts.ask(Code.QUERY_MESSAGE, query)
        assert error.value.code == ResponseCode.QUERY_NOT_FOUND
        await parts.put("Aa", b"own", KEYS="k")
        reply = await parts.ask(Code.QUERY_MESSAGE, query)
        assert [record.body for record in iter_decode(reply.body)] == [b"own"]


async def test_a_message_is_found_by_its_offset(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.put("t", b"a")
        second = await parts.put("t", b"b")
        reply = await parts.ask(Code.VIEW_MESSAGE_BY_ID, h.ViewMessage(second.physical_offset))
        (record,) = iter_decode(reply.body)
        assert record.body == b"b"


@pytest.mark.parametrize("offset", [-1, 1, 10**9, 2**63 - 1, -(2**63)])
async def test_made_up_offsets_find_nothing(tmp_path: Path, offset: int) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.put("t")
        with pytest.raises(BadRequest, match="can not find message by the offset"):
            await parts.ask(Code.VIEW_MESSAGE_BY_ID, h.ViewMessage(offset))


async def test_a_queue_has_ends_and_times(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        started_ms = clock.wall_ms()
        for _ in range(5):
            await parts.put("t")
            clock.advance(1_000)
        queue = h.TopicQueue("t", 0)
        assert await number(parts, Code.GET_MAX_OFFSET, queue) == 5
        assert await number(parts, Code.GET_MIN_OFFSET, queue) == 0
        assert await number(parts, Code.GET_EARLIEST_MSG_STORETIME, queue) == started_ms

        async def at(offset_ms: int, boundary: str | None = None) -> int:
            header = h.SearchOffset("t", 0, started_ms + offset_ms, boundary)
            return await number(parts, Code.SEARCH_OFFSET_BY_TIMESTAMP, header)

        assert await at(2_000) == 2
        assert await at(1_500, "LOWER") == 2
        assert await at(1_500, "UPPER") == 1
        assert await at(-5_000) == 0


async def test_queues_that_do_not_exist_are_empty_and_stay_unknown(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        queue = h.TopicQueue("none", 7)
        assert await number(parts, Code.GET_MAX_OFFSET, queue) == 0
        assert await number(parts, Code.GET_MIN_OFFSET, queue) == 0
        assert await number(parts, Code.GET_EARLIEST_MSG_STORETIME, queue) == -1
        search = h.SearchOffset("none", 7, 0)
        assert await number(parts, Code.SEARCH_OFFSET_BY_TIMESTAMP, search) == 0
        assert "none" not in parts.store.topics()
