"""Administration of groups."""

from pathlib import Path

import pytest

from cometmq.core.errors import BadRequest
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fastjson import encode_json, parse_json
from tests.broker.world import open_parts


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


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"groupName":"a b"}',
        b'{"groupName":""}',
        b'{"groupName":"g","retryQueueNums":65537}',
    ],
)
async def test_a_bad_group_is_refused(tmp_path: Path, body: bytes) -> None:
    async with open_parts(tmp_path) as parts:
        with pytest.raises(BadRequest):
            await parts.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def test_slaves_get_all_offsets(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        parts.offsets.commit("g", "t", 0, 1)
        reply = await parts.ask(Code.GET_ALL_CONSUMER_OFFSET)
        assert reply.body == b'{"offsetTable":{"t@g":{0:1}}}'
        reply = await parts.ask(Code.GET_ALL_DELAY_OFFSET)
        assert reply.body == b'{"offsetTable":{}}'
