"""Routing: lanes, hooks, refusals, and errors that cost only their own request."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest, StoreFull
from cometmq.net.eventloop import Watchdog
from cometmq.net.peer import Peer
from cometmq.net.router import Handler, Router, handlers_of
from cometmq.net.tasks import Tasks
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import BINARY, FLAG_ONEWAY, Reply, Request, decode_head, encode_head
from cometmq.protocol.registry import Side
from tests.net.serving import serving

BEAT = RequestCode.HEART_BEAT
INFO = RequestCode.GET_BROKER_RUNTIME_INFO
CONFIG = RequestCode.UPDATE_BROKER_CONFIG


class RecordingHook:
    def __init__(self, name: str, log: list[str], refuse: bool = False) -> None:
        self.name, self.log, self.refuse = name, log, refuse

    def before(self, peer: Peer, request: Request[Any]) -> None:
        self.log.append(f"{self.name} before {request.code}")
        if self.refuse:
            raise BadRequest(16, "not you")

    def after(self, peer: Peer, request: Request[Any], code: int) -> None:
        self.log.append(f"{self.name} after {request.code} {code}")


def beat(peer: Peer, request: Request[Any]) -> Reply | None:
    return Reply(body=b"loop")


async def info(peer: Peer, request: Request[Any]) -> Reply | None:
    await asyncio.sleep(0)
    return Reply(body=b"task")


async def test_both_lanes_answer_their_request() -> None:
    async with serving({BEAT: beat, INFO: info}) as served:
        client = await served.connect()
        client.send(INFO, opaque=7)
        client.send(BEAT, opaque=8)
        answers = {
            head.opaque: (head.code, body) for head, body in [await client.frame() for _ in "12"]
        }
    assert answers == {7: (0, b"task"), 8: (0, b"loop")}


async def test_unknown_code_says_which() -> None:
    async with serving({BEAT: beat}) as served:
        client = await served.connect()
        client.send(9999, opaque=1)
        head, _ = await client.frame()
        assert (head.code, head.remark) == (3, " request type 9999 not supported")
        client.send(BEAT, opaque=2)
        assert (await client.frame())[0].opaque == 2


async def test_errors_become_codes_and_leave_the_connection_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures: list[Exception] = [StoreFull("no room: free 1 GiB"), ValueError("a bug")]

    def fail(peer: Peer, request: Request[Any]) -> Reply | None:
        raise failures.pop(0)

    async def fail_later(peer: Peer, request: Request[Any]) -> Reply | None:
        raise BadRequest(ResponseCode.TOPIC_NOT_EXIST, "create it")

    with caplog.at_level(logging.ERROR, "cometmq.net.router"):
        async with serving({BEAT: fail, INFO: fail_later}) as served:
            client = await served.connect()
            for code in (BEAT, BEAT, INFO):
                client.send(code)
            heads = [(await client.frame())[0] for _ in range(3)]
    assert [(head.code, head.remark) for head in heads] == [
        (14, "no room: free 1 GiB"),
        (1, "ValueError: a bug"),
        (17, "create it"),
    ]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize(
    "unfit", [Reply(2**31 - 1), Reply(ext={"k" * 40_000: "v"})], ids=["code", "name"]
)
async def test_an_answer_that_the_codec_cannot_carry_is_an_error(unfit: Reply) -> None:
    """A consumer's answer in JSON, passed on to somebody who asked in binary."""

    async def pass_on(peer: Peer, request: Request[Any]) -> Reply:
        return unfit

    def pass_on_at_once(peer: Peer, request: Request[Any]) -> Reply:
        return unfit

    async with serving({INFO: pass_on, BEAT: pass_on_at_once}) as served:
        client = await served.connect()
        for code in (INFO, BEAT):
            request = encode_head(code=code, opaque=code, flag=0, ext={}, codec=BINARY)
            client.writer.write(request)
            head, body = await client.frame()
            assert (head.opaque, head.code, body) == (code, ResponseCode.SYSTEM_ERROR, b"")
            assert "does not fit the binary header" in (head.remark or "")


async def test_hooks_see_every_request_in_order_also_oneway_and_failed_ones() -> None:
    log: list[str] = []

    def fail(peer: Peer, request: Request[Any]) -> Reply | None:
        raise BadRequest(13, "no")

    async with serving({BEAT: fail, INFO: info}) as served:
        served.router.hooks += [RecordingHook("a", log), RecordingHook("b", log)]
        client = await served.connect()
        client.send(BEAT, flag=FLAG_ONEWAY)
        client.send(INFO, opaque=5)
        assert (await client.frame())[0].opaque == 5, "the one-way request got an answer"
    assert log == [
        "a before 34",
        "b before 34",
        "a after 34 13",
        "b after 34 13",
        "a before 28",
        "b before 28",
        "a after 28 0",
        "b after 28 0",
    ]


@pytest.mark.parametrize("hooked", [False, True])
async def test_a_request_may_be_acknowledged_later(hooked: bool) -> None:
    log: list[str] = []

    def later(peer: Peer, request: Request[Any]) -> Reply | None:
        asyncio.get_running_loop().call_soon(peer.router.acknowledge, peer, request)
        return None

    async with serving({BEAT: later}) as served:
        if hooked:
            served.router.hooks.append(RecordingHook("a", log))
        client = await served.connect()
        client.send(BEAT, flag=FLAG_ONEWAY)
        client.writer.write(encode_head(code=BEAT, opaque=6, flag=0, ext={}, codec=BINARY))
        client.send(BEAT, opaque=7)
        raw = await client.reader.readexactly(8)
        codec, size = raw[4], int.from_bytes(raw[:4], "big") - 4
        head = decode_head(codec, await client.reader.readexactly(size))
        assert (codec, head.opaque, head.code, head.ext) == (BINARY, 6, 0, {})
        last, _ = await client.frame()
    assert (last.opaque, last.code, last.ext) == (7, 0, {})
    assert sorted(log) == sorted(["a before 34", "a after 34 0"] * 3 * hooked)


async def test_hooks_also_see_requests_whose_fields_cannot_be_read() -> None:
    log: list[str] = []
    async with serving({RequestCode.GET_MAX_OFFSET: beat}) as served:
        served.router.hooks += [RecordingHook("a", log), RecordingHook("b", log, refuse=True)]
        client = await served.connect()
        client.send(RequestCode.GET_MAX_OFFSET, topic="t")
        head, _ = await client.frame()
    assert (head.code, head.remark) == (16, "not you")
    assert log == ["a before 30", "b before 30", "a after 30 16", "b after 30 16"]


async def test_a_hook_can_refuse() -> None:
    log: list[str] = []
    async with serving({BEAT: beat}) as served:
        served.router.hooks.append(RecordingHook("a", log, refuse=True))
        client = await served.connect()
        client.send(BEAT)
        head, body = await client.frame()
    assert (head.code, head.remark, body) == (16, "not you", b"")
    assert log == ["a before 34", "a after 34 16"]


@pytest.mark.parametrize(("remote_admin", "code"), [(False, 16), (True, 0)])
async def test_changes_from_another_machine_need_the_setting(remote_admin: bool, code: int) -> None:
    async with serving({CONFIG: info}, remote_admin=remote_admin) as served:
        client = await served.connect()
        client.send(CONFIG)
        assert (await client.frame())[0].code == 0, "this machine may"
        (peer,) = served.server.peers
        peer.is_local = False
        client.send(CONFIG)
        head, _ = await client.frame()
    assert head.code == code
    if code:
        assert "remoteAdminEnable" in (head.remark or "")


class Named(asyncio.Transport):
    """A transport that only knows its addresses."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


@pytest.mark.parametrize(
    ("peer_address", "own_address", "is_local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("::1", "::1", True),
        ("192.0.2.7", "192.0.2.7", True),  # a process of this machine, through another interface
        ("192.0.2.8", "192.0.2.7", False),
        ("fe80::2", "fe80::1", False),
    ],
)
async def test_which_senders_are_of_this_machine(
    peer_address: str, own_address: str, is_local: bool
) -> None:
    router, clock = Router(Side.BROKER, {}, tasks=Tasks()), VirtualClock()
    peer = Peer(router, clock=clock, watchdog=Watchdog(), peers={})
    peer.connection_made(Named({"peername": (peer_address, 1), "sockname": (own_address, 2)}))
    assert peer.is_local is is_local


async def test_slow_requests_of_one_connection_are_bounded() -> None:
    gate = asyncio.Event()

    async def wait(peer: Peer, request: Request[Any]) -> Reply | None:
        await gate.wait()
        return Reply()

    async with serving({INFO: wait}) as served:
        client = await served.connect()
        for opaque in range(257):
            client.send(INFO, opaque=opaque)
        head, _ = await client.frame()
        assert (head.opaque, head.code) == (256, ResponseCode.SYSTEM_BUSY)
        gate.set()
        assert {(await client.frame())[0].code for _ in range(256)} == {0}


async def test_a_missing_field_is_answered_by_name() -> None:
    async with serving({RequestCode.GET_MAX_OFFSET: beat}) as served:
        client = await served.connect()
        client.send(RequestCode.GET_MAX_OFFSET, opaque=3, topic="t")
        head, _ = await client.frame()
    assert (head.code, head.opaque) == (1, 3)
    assert "queueId" in (head.remark or "")


def test_a_handler_in_the_wrong_lane_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="does not match its entry"):
        Router(Side.BROKER, {BEAT: info}, tasks=Tasks())
    with pytest.raises(TypeError, match="does not match its entry"):
        Router(Side.BROKER, {INFO: beat}, tasks=Tasks())
    with pytest.raises(TypeError, match="does not match its entry"):
        Router(Side.NAMESRV, {BEAT: beat}, tasks=Tasks())


def test_a_code_without_a_row_is_refused() -> None:
    with pytest.raises(TypeError, match=r"without a row in protocol/registry\.py: \{4321\}"):
        Router(Side.BROKER, {4321: beat}, tasks=Tasks())


class Part:
    def handlers(self) -> dict[int, Handler]:
        return {BEAT: beat}


def test_two_handlers_of_one_code_are_refused() -> None:
    assert handlers_of([Part()]) == {BEAT: beat}
    with pytest.raises(TypeError, match=f"two handlers for request code {BEAT:d}"):
        handlers_of([Part(), Part()])
