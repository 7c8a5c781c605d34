"""Who produces, as administrators see it."""

from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import Heartbeat, ProducerConnections, ProducerData, ProducerTable
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fastjson import encode_json, parse_json
from tests.broker.world import connect, open_parts


async def test_producers_of_one_group_and_of_all(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        clock.advance(5_000)
        seen_ms = clock.wall_ms()
        for number, group in enumerate(("p", "p", "q")):
            body = encode_json(Heartbeat(f"c{number}", (ProducerData(group),)))
            peer = connect(40_000 + number)
            await parts.ask(Code.HEART_BEAT, body=body, peer=peer, version=401, language="GO")
        clock.advance(7_000)
        reply = await parts.ask(Code.GET_PRODUCER_CONNECTION_LIST, h.ProducerGroup("p"))
        found = parse_json(reply.body, ProducerConnections).connection_set
        assert [(one.client_id, one.client_addr, one.language, one.version) for one in found] == [
            ("c0", "127.0.0.1:40000", "GO", 401),
            ("c1", "127.0.0.1:40001", "GO", 401),
        ]
        data = parse_json((await parts.ask(Code.GET_ALL_PRODUCER_INFO)).body, ProducerTable).data
        assert {group: len(each) for group, each in data.items()} == {"p": 2, "q": 1}
        (one,) = data["q"]
        assert (one.client_id, one.remote_ip) == ("c2", "127.0.0.1:40002")
        assert one.last_update_timestamp == seen_ms


async def test_a_group_without_producers_is_refused(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        with pytest.raises(BadRequest, match="not exist"):
            await parts.ask(Code.GET_PRODUCER_CONNECTION_LIST, h.ProducerGroup("nobody"))
