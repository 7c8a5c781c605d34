"""Sending back: later again, then among the dead letters."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest, StoreFull
from cometmq.message import properties as props
from cometmq.message.ids import encode_offset_id, pack_host
from cometmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import ConsumerSendMsgBack
from tests.broker.world import STORE_HOST, Parts, open_parts

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
RETRY, DLQ = "%RETRY%g", "%DLQ%g"


async def send_back(
    parts: Parts,
    offset: int,
    level: int = 0,
    group: str = "g",
    *,
    allowed: int | None = None,
    version: int = 407,
) -> None:
    header = ConsumerSendMsgBack(offset, group, level, max_reconsume_times=allowed)
    reply = await parts.ask(Code.CONSUMER_SEND_MSG_BACK, header, version=version)
    assert reply.code == ResponseCode.SUCCESS


async def test_a_message_comes_again_later_each_time_and_dies_at_last(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        parts.groups.put(SubscriptionGroupConfig("g", retry_max_times=2))
        parts.topics.put(TopicConfig("t", 1, 1, 6))
        first = await parts.put("t", b"body", TAGS="red", DELAY="1", user="u")
        offset = first.physical_offset
        for tried, delay_ms in enumerate((10_000, 30_000)):
            await send_back(parts, offset)
            clock.advance(delay_ms - 1)
            assert await parts.delivery.deliver_due() == 0
            clock.advance(1)
            assert await parts.delivery.deliver_due() == 1
            record = parts.read(RETRY)[tried]
            assert record.reconsume_times == tried + 1
            offset = record.physical_offset
        await send_back(parts, offset)
        (dead,) = parts.read(DLQ)
        assert (dead.body, dead.reconsume_times) == (b"body", 3)
        found = props.decode(dead.properties)
        assert found["RETRY_TOPIC"] == "t"
        assert found["ORIGIN_MESSAGE_ID"] == encode_offset_id(STORE_HOST, first.physical_offset)
        assert (found["TAGS"], found["user"], found["WAIT"]) == ("red", "u", "false")
        assert "DELAY" not in found
        assert parts.topics.get(DLQ) == TopicConfig(DLQ, 1, 1, 6)
        assert parts.stats.send_backs["g", "t"].count == 3


async def test_a_topic_that_only_a_property_names_is_not_counted(tmp_path: Path) -> None:
    """Such names would stay in memory: they are text of any sender."""
    async with open_parts(tmp_path) as parts:
        first = await parts.put("t", RETRY_TOPIC="made up")
        await send_back(parts, first.physical_offset)
        assert [*parts.stats.send_backs] == [("g", "t")]


async def test_the_client_chooses_the_delay(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        first = await parts.put("t")
        await send_back(parts, first.physical_offset, 1)
        clock.advance(1_000)
        assert await parts.delivery.deliver_due() == 1
        assert parts.stats.send_backs["g", "t"].count == 1


async def test_a_negative_delay_goes_to_the_dead_at_once(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        first = await parts.put("t")
        await send_back(parts, first.physical_offset, -1)
        assert len(parts.read(DLQ)) == 1


async def test_new_clients_bring_their_own_limit(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        first = await parts.put("t")
        await send_back(parts, first.physical_offset, allowed=0)
        assert len(parts.read(DLQ)) == 1
        await send_back(parts, first.physical_offset, allowed=0, version=100)
        assert len(parts.read(DLQ)) == 1  # too old to be believed: the group's limit holds
        assert len(parts.read(SCHEDULE, 2)) == 1


async def test_a_group_without_retry_queues_forgets(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        parts.groups.put(SubscriptionGroupConfig("g", retry_queue_nums=0))
        await send_back(parts, 12_345)
        assert parts.topics.get(RETRY) is None


async def test_retries_spread_over_the_group_s_queues(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        parts.groups.put(SubscriptionGroupConfig("g", retry_queue_nums=4))
        first = await parts.put("t")
        for _ in range(40):
            await send_back(parts, first.physical_offset, 1)
        found = [props.decode(record.properties) for record in parts.read(SCHEDULE, 0)]
        assert {one["REAL_TOPIC"] for one in found} == {RETRY}
        assert {one["REAL_QID"] for one in found} == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("offset", "group", "code", "remark"),
    [
        (99_999, "g", ResponseCode.SYSTEM_ERROR, "look message by offset failed, 99999"),
        (-1, "g", ResponseCode.SYSTEM_ERROR, "look message by offset failed"),
        (7, "g", ResponseCode.SYSTEM_ERROR, "look message by offset failed"),
        (0, "bad name", ResponseCode.SYSTEM_ERROR, "illegal"),
        (0, "g" * 125, ResponseCode.SYSTEM_ERROR, "illegal"),
    ],
)
async def test_what_cannot_be_sent_back_is_refused(
    tmp_path: Path, offset: int, group: str, code: int, remark: str
) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.put("t")
        with pytest.raises(BadRequest, match=remark) as error:
            await send_back(parts, offset, group=group)
        assert error.value.code == code


async def test_an_unknown_group_is_refused(tmp_path: Path) -> None:
    config = BrokerConfig(auto_create_subscription_group=False)
    async with open_parts(tmp_path, config) as parts:
        with pytest.raises(BadRequest, match="not exist") as error:
            await send_back(parts, 0)
        assert error.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_permissions_hold(tmp_path: Path) -> None:
    config = BrokerConfig()
    async with open_parts(tmp_path, config) as parts:
        first = await parts.put("t")
        parts.topics.put(TopicConfig(RETRY, 1, 1, 4))
        with pytest.raises(BadRequest, match="forbidden") as error:
            await send_back(parts, first.physical_offset)
        assert error.value.code == ResponseCode.NO_PERMISSION
        config.broker_permission = 4
        with pytest.raises(BadRequest, match="the broker"):
            await send_back(parts, first.physical_offset)


class Slaves:
    """Those of a SYNC_MASTER; they never have anything."""

    reached = 0

    def __init__(self, *, has_enough: bool) -> None:
        self.has_enough = has_enough
        self.on_reached: list[Callable[[int], None]] = []


async def test_without_slaves_a_sync_master_keeps_nothing(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        stored = await parts.put("t")
        parts.appender.wait_for_slaves(Slaves(has_enough=False), BrokerConfig(slave_timeout=1_000))
        with pytest.raises(BadRequest) as refused:
            await send_back(parts, stored.physical_offset)
        assert refused.value.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert parts.read(SCHEDULE, 2) == []


async def test_what_slaves_do_not_have_in_time_is_to_be_sent_back_again(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        stored = await parts.put("t")
        parts.appender.wait_for_slaves(Slaves(has_enough=True), BrokerConfig(slave_timeout=100))
        header = ConsumerSendMsgBack(stored.physical_offset, "g", 0)
        expiring = asyncio.create_task(parts.appender.expire_forever())
        reply = await parts.ask(Code.CONSUMER_SEND_MSG_BACK, header)
        expiring.cancel()
        assert reply.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert len(parts.read(SCHEDULE, 2)) == 1


async def test_a_full_store_says_so(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        first = await parts.put("t")
        parts.store.state.refusal = StoreFull("full")
        with pytest.raises(StoreFull):
            await send_back(parts, first.physical_offset)
        parts.store.state.refusal = None


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("0A0B", True),
        ("0a0b", True),
        ("", True),
        ("place", True),
        ("place by another address", True),
        ("place by an IPv6 address", True),
        ("another place", False),
        ("0A0C", False),
    ],
)
async def test_a_message_in_the_place_of_the_one_that_is_meant_is_not_sent_back(
    tmp_path: Path, name: str, is_known: bool
) -> None:
    async with open_parts(tmp_path) as parts:
        first = await parts.put("t", UNIQ_KEY="0A0B")
        places = {
            "place": (STORE_HOST, first.physical_offset),
            "place by another address": (pack_host("192.0.2.7", 40_000), first.physical_offset),
            "place by an IPv6 address": (pack_host("2001:db8::7", 40_000), first.physical_offset),
            "another place": (STORE_HOST, first.physical_offset + 1),
        }
        if name in places:
            name = encode_offset_id(*places[name])
        header = ConsumerSendMsgBack(first.physical_offset, "g", 0, origin_msg_id=name)
        if is_known:
            reply = await parts.ask(Code.CONSUMER_SEND_MSG_BACK, header, version=407)
            assert reply.code == ResponseCode.SUCCESS
        else:
            with pytest.raises(BadRequest, match="look message by offset failed"):
                await parts.ask(Code.CONSUMER_SEND_MSG_BACK, header, version=407)
        assert len(parts.read(SCHEDULE, 2)) == is_known
