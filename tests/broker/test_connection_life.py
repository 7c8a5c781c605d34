"""A connection dies with its last reference, whatever it did: frozen cycles would stay for ever
(net/collector.py)."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cometmq.net.peer import Peer
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.serving import PULL, BrokerClient, RunningBroker, pull_fields, running_broker

HEARTBEAT: Final = json.dumps(
    {
        "clientID": "c",
        "producerDataSet": [{"groupName": "producers"}],
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [],
                "unitMode": False,
            }
        ],
    }
).encode()


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def sends_and_pulls(client: BrokerClient) -> None:
    for _ in range(3):
        await client.send()
    _, records = await client.pull()
    assert records


async def leaves_with_a_held_pull(client: BrokerClient) -> None:
    client.post(PULL, **pull_fields(3, sysFlag="6", suspendTimeoutMillis="30000"))
    head, _ = await client.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId="1")
    assert head.ext["offset"] == "3"


async def joins_a_group(client: BrokerClient) -> None:
    client.post(RequestCode.HEART_BEAT, HEARTBEAT)
    codes = {(await client.frame())[0].code for _ in range(2)}
    assert codes == {ResponseCode.SUCCESS, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}


async def fails(client: BrokerClient) -> None:
    asked: list[tuple[int, dict[str, Any]]] = [
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "77"}),
        (RequestCode.QUERY_MESSAGE, {"topic": "t"}),
        (RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "x"}),
        (9_999, {}),
    ]
    for code, fields in asked:
        head, _ = await client.ask(code, **fields)
        assert head.code != ResponseCode.SUCCESS


async def sends_what_is_no_frame(client: BrokerClient) -> None:
    client.writer.write(b"\xff" * 64)
    assert await client.closed()


async def sends_a_header_that_is_no_json(client: BrokerClient) -> None:
    client.post(RequestCode.GET_MAX_OFFSET, topic="t", queueId="1")
    client.writer.write((12).to_bytes(4, "big") + (8).to_bytes(4, "big") + b"not json")
    await client.frame()
    assert await client.closed()


@pytest.mark.usefixtures("no_collector")
async def test_a_connection_dies_with_its_last_reference(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        lives = [
            sends_and_pulls,
            leaves_with_a_held_pull,
            joins_a_group,
            fails,
            sends_what_is_no_frame,
            sends_a_header_that_is_no_json,
        ]
        for life in lives:
            client = await running.connect()
            ref = await peer_of(running)
            await life(client)
            client.writer.close()
            assert await died(ref), life.__name__


async def peer_of(running: RunningBroker) -> weakref.ref[Peer]:
    async with asyncio.timeout(60):
        while not running.broker.server.peers:
            await asyncio.sleep(0.001)
    (peer,) = running.broker.server.peers
    return weakref.ref(peer)


async def died(ref: weakref.ref[Peer]) -> bool:
    for _ in range(1_000):
        if ref() is None:
            return True
        await asyncio.sleep(0.002)
    return False
