"""Questions to consumers through the broker."""

import asyncio
from pathlib import Path

import pytest

from cometmq.broker.admin import clients
from cometmq.core.errors import BadRequest, NotConnected, RequestTimedOut
from cometmq.message.ids import encode_offset_id
from cometmq.message.record import decode_one
from cometmq.net.peer import Peer
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    ClientStatus,
    ConsumerStatusRead,
    QueueKey,
    TopicConfig,
    queue_table,
)
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fastjson import encode_json, object_map, parse_json
from cometmq.protocol.frame import Response
from tests.broker.world import STORE_HOST, Parts, open_parts, recorded
from tests.net.serving import until, until_still

KEY = QueueKey("t", "broker-a", 0)


def answer(code: int = 0, body: bytes = b"", remark: str | None = None) -> Response:
    return Response(code, 1, remark, {"kept": "yes"}, body)


def stands_at(peer: Peer, offset: int) -> None:
    """Have a consumer say where it stands."""
    body = encode_json(ClientStatus(object_map([(KEY, offset)])))
    recorded(peer).answers[221] = answer(body=body)


async def status(parts: Parts, client_id: str | None = None) -> dict[str, dict[QueueKey, int]]:
    header = h.GetConsumerStatus("t", "g", client_id)
    reply = await parts.ask(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    table = parse_json(reply.body, ConsumerStatusRead).consumer_table
    return {client: queue_table(queues) for client, queues in table.items()}


async def test_where_the_members_stand(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        one, two = [await parts.join("g", "t", client_id=name) for name in ("one", "two")]
        stands_at(one, 5)
        stands_at(two, 7)
        assert await status(parts) == {"one": {KEY: 5}, "two": {KEY: 7}}
        assert recorded(one).asked == [(221, h.GetConsumerStatus("t", "g"), b"")]
        assert await status(parts, "two") == {"two": {KEY: 7}}
        assert len(recorded(one).asked) == 1


@pytest.mark.parametrize(
    "bad",
    [
        NotConnected("a:1", "gone"),
        RequestTimedOut("a:1", 221, 4),
        answer(1, remark="no"),
        answer(body=b"{"),
        answer(body=b'{"messageQueueTable":{"x":1}}'),
    ],
)
async def test_a_member_that_gives_no_status_is_left_out(
    tmp_path: Path, bad: Response | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_parts(tmp_path) as parts:
        one, two = [await parts.join("g", "t", client_id=name) for name in ("one", "two")]
        stands_at(one, 5)
        recorded(two).answers[221] = bad
        assert await status(parts) == {"one": {KEY: 5}}
        assert "client=two" in caplog.text


async def test_few_members_are_asked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_ASKED", 2)
    async with open_parts(tmp_path) as parts:
        go = asyncio.Event()
        peers = [await parts.join("g", "t", client_id=f"c{number}") for number in range(5)]
        for number, peer in enumerate(peers):
            stands_at(peer, number)
            recorded(peer).stopped = go

        def asked() -> int:
            return sum(bool(recorded(peer).asked) for peer in peers)

        found = asyncio.ensure_future(status(parts))
        await until(lambda: asked() > 0)
        await until_still(asked)
        assert asked() == 2
        go.set()
        assert await found == {f"c{number}": {KEY: number} for number in range(5)}


async def test_members_together_have_a_time_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clients, "MAX_ASKED", 1)
    monkeypatch.setattr(clients, "STATUS_TOTAL_MS", 200)
    async with open_parts(tmp_path) as parts:
        peers = [await parts.join("g", "t", client_id=name) for name in ("one", "two", "three")]
        for peer in peers:
            stands_at(peer, 1)
        recorded(peers[1]).stopped = asyncio.Event()
        async with asyncio.timeout(60):
            assert await status(parts) == {"one": {KEY: 1}}
        assert "consumers=3 not_asked=1 answered=1" in caplog.text


async def test_a_question_that_finds_no_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_STATUSES", 1)
    async with open_parts(tmp_path) as parts:
        peer = await parts.join("g", "t", client_id="one")
        stands_at(peer, 1)
        go = recorded(peer).stopped = asyncio.Event()
        monkeypatch.setattr(clients, "STATUS_TOTAL_MS", 60_000)
        first = asyncio.ensure_future(status(parts))
        await until(lambda: bool(recorded(peer).asked))
        monkeypatch.setattr(clients, "STATUS_TOTAL_MS", 50)
        with pytest.raises(BadRequest, match="ask consumers already"):
            await status(parts)
        go.set()
        await first


async def test_a_group_that_is_not_there_has_no_status(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        with pytest.raises(BadRequest, match="No Any Consumer online"):
            await status(parts)


async def test_running_info_is_passed_on_as_it_is(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.join("g", "t", client_id="other")
        peer = await parts.join("g", "t", client_id="c")
        recorded(peer).answers[307] = answer(5, b"{anything", "said")
        header = h.GetConsumerRunningInfo("g", "c", "true")
        reply = await parts.ask(Code.GET_CONSUMER_RUNNING_INFO, header)
        assert (reply.code, reply.body, reply.remark) == (5, b"{anything", "said")
        assert reply.ext == {"kept": "yes"}
        assert recorded(peer).asked == [(307, header, b"")]


@pytest.mark.parametrize(
    ("problem", "code"), [(RequestTimedOut("a:1", 307, 4), 207), (NotConnected("a:1", "gone"), 1)]
)
async def test_a_consumer_that_does_not_answer(
    tmp_path: Path, problem: Exception, code: int
) -> None:
    async with open_parts(tmp_path) as parts:
        peer = await parts.join("g", "t")
        recorded(peer).answers[307] = problem
        with pytest.raises(BadRequest) as caught:
            await parts.ask(Code.GET_CONSUMER_RUNNING_INFO, h.GetConsumerRunningInfo("g", "c"))
        assert caught.value.code == code


@pytest.mark.parametrize(("group", "client_id"), [("g", "unknown"), ("unknown", "c")])
async def test_a_consumer_that_is_not_online(tmp_path: Path, group: str, client_id: str) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.join("g", "t")
        header = h.GetConsumerRunningInfo(group, client_id)
        with pytest.raises(BadRequest, match="not online") as caught:
            await parts.ask(Code.GET_CONSUMER_RUNNING_INFO, header)
        assert caught.value.code == 1


async def test_clients_that_are_too_old_are_not_asked(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.join("g", "t", version=62)
        with pytest.raises(BadRequest, match="too low"):
            await parts.ask(Code.GET_CONSUMER_RUNNING_INFO, h.GetConsumerRunningInfo("g", "c"))


async def test_a_stored_message_is_brought_to_a_consumer(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        parts.topics.put(TopicConfig("t", 1, 1))
        await parts.put("t", b"first")
        place = await parts.put("t", b"second", KEYS="k")
        (_, record) = parts.read("t")
        peer = await parts.join("g", "t")
        recorded(peer).answers[309] = answer(body=b"result")
        offset_id = encode_offset_id(STORE_HOST, record.physical_offset)
        assert place.message_id == offset_id
        header = h.ConsumeMessageDirectly("g", "c", offset_id)
        reply = await parts.ask(Code.CONSUME_MESSAGE_DIRECTLY, header)
        assert reply.body == b"result"
        ((code, asked, body),) = recorded(peer).asked
        assert code == 309
        assert asked == h.ConsumeMessageDirectly("g", "c", offset_id, "broker-a")
        assert decode_one(body) == record


@pytest.mark.parametrize("msg_id", [None, "", "x", "7F00000100002A9F00000000000FFFFF", "Z" * 32])
async def test_a_message_that_is_not_there(tmp_path: Path, msg_id: str | None) -> None:
    async with open_parts(tmp_path) as parts:
        peer = await parts.join("g", "t")
        header = h.ConsumeMessageDirectly("g", "c", msg_id)
        with pytest.raises(BadRequest) as caught:
            await parts.ask(Code.CONSUME_MESSAGE_DIRECTLY, header)
        assert caught.value.code == 1
        assert recorded(peer).asked == []
