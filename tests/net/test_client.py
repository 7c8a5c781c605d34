"""Remoting: answers find their requests, time-outs and lost connections are told, bounds hold."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.core.clock import SystemClock
from cometmq.core.errors import (
    BadRequest,
    BrokerRefused,
    LocalProtocolError,
    NotConnected,
    RequestTimedOut,
)
from cometmq.net.client import Remoting, split_address
from cometmq.net.outgoing import ConnectOptions
from cometmq.net.tasks import Tasks
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import BINARY, Reply, Request
from cometmq.protocol.headers import ConsumerGroup, GetConsumerRunningInfo, Topic
from tests.client.scripted import Answer, ScriptedPeer, eventually, scripted_peer

CODE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
async def peer() -> AsyncIterator[ScriptedPeer]:
    async with scripted_peer() as peer:
        yield peer


@pytest.fixture
async def remoting() -> AsyncIterator[Remoting]:
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    yield remoting
    await remoting.close()
    await tasks.close()


def echo(request: Request[Any]) -> Answer:
    return Answer(ext={"topic": request.header.topic}, body=request.body)


async def test_answers_in_any_order_find_their_requests(
    peer: ScriptedPeer, remoting: Remoting
) -> None:
    peer.on(CODE, None)
    asking = [
        asyncio.create_task(
            remoting.request(peer.address, CODE, Topic(topic=f"t{at}"), b"x" * at, timeout_ms=5000)
        )
        for at in range(50)
    ]
    await eventually(lambda: len(peer.requests) == 50)
    peer.on(CODE, echo)
    for request in reversed(peer.requests):
        peer.connections[0].answer(request)
    answers = await asyncio.gather(*asking)
    assert [answer.ext["topic"] for answer in answers] == [f"t{at}" for at in range(50)]
    assert [len(answer.body) for answer in answers] == list(range(50))
    assert len(peer.connections) == 1
    assert repr(remoting) == f"<Remoting in flight {{{peer.address}: 0}}, opening []>"


async def test_requests_of_one_turn_leave_in_one_write(
    peer: ScriptedPeer, remoting: Remoting
) -> None:
    peer.on(CODE, echo)
    await remoting.request(peer.address, CODE, Topic(topic="first"), timeout_ms=5000)
    transport = remoting._links[peer.address]._transport
    assert transport is not None
    writes: list[int] = []
    write = transport.write

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(transport, name)

        def write(self, data: bytes) -> None:
            writes.append(len(data))
            write(data)

    remoting._links[peer.address]._transport = Counting()  # type: ignore[assignment]
    await asyncio.gather(
        *(
            remoting.request(peer.address, CODE, Topic(topic="t"), b"body", timeout_ms=5000)
            for _ in range(100)
        )
    )
    assert len(writes) == 1


def topic_of(value: Any) -> Topic:
    return Topic(topic=value)


@pytest.mark.parametrize("oneway", [False, True])
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"body": "text"}, "its body is str; use bytes"),
        ({"body": 5}, "its body is int"),
        ({"body": None}, "its body is NoneType"),
        ({"body": ["a", "b"]}, "its body is list"),
        ({"body": bytes(17 << 20)}, "the limit for both is 16777216"),
        ({"header": Topic(topic="\ud800")}, "surrogates not allowed"),
        ({"header": topic_of(b"t")}, "header field topic is bytes"),
        ({"header": topic_of([1])}, "header field topic is list"),
        ({"header": topic_of(1.5)}, "header field topic is float"),
        ({"header": topic_of(10**5000)}, "ValueError"),
        ({"header": {"topic": "t"}}, "TypeError"),
        ({"header": Topic(topic="t" * (17 << 20))}, "the limit for both is 16777216"),
        ({"header": Topic(topic="\udfff"), "codec": BINARY}, "surrogates not allowed"),
        ({"code": 40_000, "codec": BINARY}, "does not fit the binary header"),
        ({"code": "105"}, "a code is a 32-bit integer"),
        ({"code": 1 << 31}, "a code is a 32-bit integer"),
    ],
)
async def test_what_cannot_be_encoded_fails_alone_and_at_once(
    peer: ScriptedPeer, remoting: Remoting, wrong: dict[str, Any], problem: str, oneway: bool
) -> None:
    peer.on(CODE, echo)
    await remoting.request(peer.address, CODE, Topic(topic="first"), timeout_ms=5000)

    def good(at: int) -> Any:
        return remoting.request(peer.address, CODE, Topic(topic=f"t{at}"), b"b", timeout_ms=5000)

    def bad() -> Any:
        given = {"code": CODE, "header": Topic(topic="bad"), "body": b"", **wrong}
        send = remoting.oneway if oneway else remoting.request
        return send(peer.address, timeout_ms=5000, **given)

    answers = await asyncio.gather(
        *(good(at) for at in range(10)),
        bad(),
        *(good(at) for at in range(10, 20)),
        return_exceptions=True,
    )
    failure = answers.pop(10)
    assert [answer.ext["topic"] for answer in answers] == [f"t{at}" for at in range(20)]  # type: ignore[union-attr]
    assert isinstance(failure, LocalProtocolError)
    assert problem in str(failure)
    assert (len(peer.connections), remoting.losses) == (1, 0)
    assert remoting._links[peer.address].connection.in_flight == 0


@pytest.mark.parametrize("body", [bytearray(b"1234"), memoryview(b"12345678")[::2]])
async def test_a_body_is_sent_as_it_was_when_it_was_given(
    peer: ScriptedPeer, remoting: Remoting, body: Any
) -> None:
    peer.on(CODE, echo)
    await remoting.request(peer.address, CODE, Topic(topic="first"), timeout_ms=5000)
    asking = asyncio.create_task(
        remoting.request(peer.address, CODE, Topic(topic="t"), body, timeout_ms=5000)
    )
    expected = bytes(body)
    asyncio.get_running_loop().call_soon(getattr(body, "clear", lambda: None))
    assert (await asking).body == expected


async def test_a_binary_request_is_answered(peer: ScriptedPeer, remoting: Remoting) -> None:
    peer.on(CODE, echo)
    answer = await remoting.request(
        peer.address, CODE, Topic(topic="bin"), timeout_ms=5000, codec=BINARY
    )
    assert answer.ext == {"topic": "bin"}
    assert peer.requests[0].codec == BINARY


async def test_call_raises_what_the_other_side_refuses(
    peer: ScriptedPeer, remoting: Remoting
) -> None:
    peer.on(CODE, Answer(17, remark="no such topic"))
    with pytest.raises(BrokerRefused) as caught:
        await remoting.call(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    assert (caught.value.code, caught.value.broker_remark) == (17, "no such topic")
    response = await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    assert response.code == 17


async def test_silence_ends_in_a_time_out_and_the_connection_lives(
    peer: ScriptedPeer, remoting: Remoting
) -> None:
    peer.on(CODE, None)
    late = asyncio.create_task(
        remoting.request(peer.address, CODE, Topic(topic="slow"), timeout_ms=9000)
    )
    await eventually(lambda: peer.requests)
    with pytest.raises(RequestTimedOut) as caught:
        await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=30)
    assert (caught.value.address, caught.value.timeout_ms) == (peer.address, 30)
    peer.on(CODE, echo)
    # The answer that comes too late goes nowhere; the other request gets its own.
    for request in list(peer.requests):
        peer.connections[0].answer(request)
    assert (await late).ext == {"topic": "slow"}
    assert len(peer.connections) == 1


async def test_a_cancelled_request_is_forgotten(peer: ScriptedPeer, remoting: Remoting) -> None:
    peer.on(CODE, None)
    asking = asyncio.create_task(
        remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=9000)
    )
    await eventually(lambda: peer.requests)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert remoting._links[peer.address].connection.in_flight == 0


async def test_nobody_listening(remoting: Remoting) -> None:
    async with scripted_peer() as peer:
        address = peer.address
    with pytest.raises(NotConnected, match=r"nothing listens .* start the server, or correct"):
        await remoting.request(address, CODE, Topic(topic="t"), timeout_ms=5000)
    assert not remoting.is_connected(address)


async def test_a_lost_connection_is_told_and_opened_again(
    peer: ScriptedPeer, remoting: Remoting
) -> None:
    gone: list[str] = []
    remoting.on_close.append(gone.append)
    peer.on(CODE, None)
    asking = [
        asyncio.create_task(remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=9000))
        for _ in range(3)
    ]
    await eventually(lambda: len(peer.requests) == 3)
    assert remoting.is_connected(peer.address)
    peer.break_off()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotConnected] * 3
    assert gone == [peer.address]
    peer.on(CODE, echo)
    again = await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    assert again.code == 0


async def test_many_callers_share_one_attempt_to_connect(
    peer: ScriptedPeer, remoting: Remoting
) -> None:
    peer.on(CODE, echo)
    first = asyncio.create_task(
        remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    )
    others = [
        remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000) for _ in range(20)
    ]
    await asyncio.sleep(0)
    first.cancel()  # it began the attempt, and the others still want it
    await asyncio.gather(*others)
    assert len(peer.connections) == 1


async def test_bytes_that_are_no_frame_cost_the_connection(
    peer: ScriptedPeer, remoting: Remoting, caplog: pytest.LogCaptureFixture
) -> None:
    def garbage(_: Request[Any]) -> None:
        peer.connections[0].transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    peer.on(CODE, garbage)
    with caplog.at_level(logging.WARNING), pytest.raises(NotConnected, match="not a frame"):
        await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    assert "bad_frame" in caplog.text


async def test_one_way_requests_arrive(peer: ScriptedPeer, remoting: Remoting) -> None:
    await remoting.oneway(peer.address, CODE, Topic(topic="t"), b"body")
    await eventually(lambda: peer.requests)
    assert peer.requests[0].oneway
    assert peer.requests[0].body == b"body"


async def test_requests_in_flight_are_bounded(peer: ScriptedPeer) -> None:
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks, options=ConnectOptions(max_in_flight=4))
    peer.on(CODE, None)
    asking = [
        asyncio.create_task(
            remoting.request(peer.address, CODE, Topic(topic=f"t{at}"), timeout_ms=9000)
        )
        for at in range(20)
    ]
    await eventually(lambda: len(peer.requests) == 4)
    with pytest.raises(RequestTimedOut):
        await remoting.request(peer.address, CODE, Topic(topic="no room"), timeout_ms=30)
    assert len(peer.requests) == 4
    peer.on(CODE, echo)
    for request in list(peer.requests):
        peer.connections[0].answer(request)
    answers = await asyncio.gather(*asking)
    assert sorted(answer.ext["topic"] for answer in answers) == sorted(f"t{at}" for at in range(20))
    await remoting.close()
    await tasks.close()


async def test_a_peer_that_does_not_read_holds_callers_back(
    peer: ScriptedPeer, remoting: Remoting
) -> None:
    peer.on(CODE, echo)
    await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    peer.connections[0].transport.pause_reading()
    body = b"x" * 1_000_000

    async def fill() -> None:
        for _ in range(100):
            await remoting.oneway(peer.address, CODE, Topic(topic="t"), body, timeout_ms=50)

    with pytest.raises(RequestTimedOut):
        await fill()
    waiting = asyncio.create_task(
        remoting.request(peer.address, CODE, Topic(topic="last"), timeout_ms=9000)
    )
    peer.connections[0].transport.resume_reading()
    assert (await waiting).ext == {"topic": "last"}


async def test_close_tells_those_who_wait(peer: ScriptedPeer, remoting: Remoting) -> None:
    peer.on(CODE, None)
    asking = asyncio.create_task(
        remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=9000)
    )
    await eventually(lambda: peer.requests)
    await remoting.close()
    with pytest.raises(NotConnected, match="closed by this side"):
        await asking
    with pytest.raises(NotConnected, match="this client is closed"):
        await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=1000)


async def test_an_idle_connection_is_closed(peer: ScriptedPeer) -> None:
    tasks = Tasks()
    remoting = Remoting(
        clock=SystemClock(), tasks=tasks, options=ConnectOptions(idle_timeout_ms=50)
    )
    peer.on(CODE, echo)
    await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    await eventually(lambda: not remoting.is_connected(peer.address))
    await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    await remoting.close()
    await tasks.close()


async def test_a_connection_without_a_sign_of_life_is_given_up(peer: ScriptedPeer) -> None:
    tasks = Tasks()
    remoting = Remoting(
        clock=SystemClock(), tasks=tasks, options=ConnectOptions(silence_timeout_ms=4_000)
    )
    peer.on(CODE, None)
    waiting = asyncio.create_task(
        remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=60_000)
    )
    with pytest.raises(RequestTimedOut):
        await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=20)
    assert remoting.is_connected(peer.address)  # one slow answer is no reason
    with pytest.raises(RequestTimedOut):
        await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=4_020)
    with pytest.raises(NotConnected, match="nothing was received"):
        await waiting
    assert not remoting.is_connected(peer.address)
    await remoting.close()
    await tasks.close()


async def test_a_connection_that_cannot_be_opened_in_time(peer: ScriptedPeer) -> None:
    tasks = Tasks()
    remoting = Remoting(
        clock=SystemClock(), tasks=tasks, options=ConnectOptions(connect_timeout_ms=0)
    )
    with pytest.raises(NotConnected, match="no connection within 0 ms"):
        await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    await remoting.close()
    await tasks.close()


async def test_close_ends_attempts_to_connect(remoting: Remoting) -> None:
    # A backlog of one that nobody accepts from: further connections hang.
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with socket.create_connection(listening.getsockname()):
            asking = asyncio.create_task(
                remoting.request(address, CODE, Topic(topic="t"), timeout_ms=9000)
            )
            await eventually(lambda: remoting._opening)
            await remoting.close()
            with pytest.raises(NotConnected, match="closed"):
                await asking


async def test_close_does_not_wait_for_a_peer_that_does_not_read(
    peer: ScriptedPeer, remoting: Remoting
) -> None:
    peer.on(CODE, echo)
    await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    peer.connections[0].transport.pause_reading()
    for _ in range(12):
        await remoting.oneway(peer.address, CODE, Topic(topic="t"), b"x" * 1_000_000)
        if remoting._links[peer.address].blocked:
            break
    await asyncio.wait_for(remoting.close(), 5)


async def test_a_request_on_a_connection_that_just_broke(
    peer: ScriptedPeer, remoting: Remoting
) -> None:
    peer.on(CODE, echo)
    await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    link = remoting._links[peer.address]
    peer.break_off()
    await eventually(lambda: link.lost)
    outcome = await link.request(CODE, Topic(topic="t"), b"", 1 << 62, 0)
    assert isinstance(outcome, NotConnected)
    with pytest.raises(NotConnected):
        link.send_oneway(CODE, Topic(topic="t"), b"", 0)


class Inbound:
    """Serves requests that the peer starts."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def notified(self, address: str, request: Request[Any]) -> Reply | None:
        self.groups.append(request.header.consumer_group)
        return None

    async def info(self, address: str, request: Request[Any]) -> Reply:
        await self.go_on.wait()
        if request.header.client_id == "bad":
            raise BadRequest(206, "not here")
        if request.header.client_id == "broken":
            raise KeyError("oops")
        if request.header.client_id == "text":
            return Reply(body="text")  # type: ignore[arg-type]
        if request.header.client_id == "half":
            return Reply(ext={"x": "\ud800"})
        if request.header.client_id == "half an error":
            raise KeyError("\ud800")
        return Reply(body=request.header.client_id.encode())


@pytest.fixture
async def inbound(peer: ScriptedPeer) -> AsyncIterator[Inbound]:
    tasks = Tasks()
    inbound = Inbound()
    remoting = Remoting(
        clock=SystemClock(),
        tasks=tasks,
        on_request={
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: inbound.notified,
            RequestCode.GET_CONSUMER_RUNNING_INFO: inbound.info,
        },
    )
    peer.on(CODE, echo)
    await remoting.request(peer.address, CODE, Topic(topic="t"), timeout_ms=5000)
    yield inbound
    await remoting.close()
    await tasks.close()


async def test_requests_of_the_other_side_are_served(peer: ScriptedPeer, inbound: Inbound) -> None:
    connection = peer.connections[0]
    connection.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroup(consumer_group="g"))
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    answer = await connection.ask(code, GetConsumerRunningInfo(consumer_group="g", client_id="me"))
    assert (answer.code, answer.body) == (0, b"me")
    assert inbound.groups == ["g"]


@pytest.mark.parametrize(
    ("client_id", "code", "remark"),
    [("bad", 206, "not here"), ("broken", 1, "handler failed: KeyError('oops')")],
)
async def test_a_handler_that_raises_is_answered(
    peer: ScriptedPeer, inbound: Inbound, client_id: str, code: int, remark: str
) -> None:
    header = GetConsumerRunningInfo(consumer_group="g", client_id=client_id)
    answer = await peer.connections[0].ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert (answer.code, answer.remark) == (code, remark)


@pytest.mark.parametrize("client_id", ["text", "half", "half an error"])
async def test_an_answer_that_cannot_be_encoded_is_told(
    peer: ScriptedPeer, inbound: Inbound, client_id: str
) -> None:
    connection, code = peer.connections[0], RequestCode.GET_CONSUMER_RUNNING_INFO
    header = GetConsumerRunningInfo(consumer_group="g", client_id=client_id)
    good = GetConsumerRunningInfo(consumer_group="g", client_id="me")
    answers = await asyncio.gather(*(connection.ask(code, each) for each in (good, header, good)))
    assert [answer.code for answer in answers] == [0, 1, 0]


async def test_what_is_not_served_is_refused(peer: ScriptedPeer, inbound: Inbound) -> None:
    connection = peer.connections[0]
    header = ConsumerGroup(consumer_group="g")
    answer = await connection.ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
    assert answer.code == 1  # a field is missing
    extra = {"topic": "t", "group": "g"}
    answer = await connection.ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header, extra=extra)
    assert (answer.code, answer.remark) == (3, " request type 221 not supported")


async def test_requests_of_the_other_side_are_bounded(peer: ScriptedPeer, inbound: Inbound) -> None:
    inbound.go_on.clear()
    header = GetConsumerRunningInfo(consumer_group="g", client_id="me")
    asked = [
        asyncio.create_task(peer.connections[0].ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
        for _ in range(300)
    ]
    await eventually(lambda: any(task.done() for task in asked))
    inbound.go_on.set()
    codes = [(await task).code for task in asked]
    assert sorted(set(codes)) == [0, 2]
    assert codes.count(0) == 256


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a:1", ("a", 1)), ("[::1]:9876", ("::1", 9876)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


async def test_a_host_that_cannot_be_a_name(remoting: Remoting) -> None:
    with pytest.raises(NotConnected, match="cannot connect"):
        await remoting.request("x" * 64 + ".y:1", CODE, None, timeout_ms=5000)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:port", "host:65536", "host:-1"])
async def test_bad_addresses_are_told(text: str, remoting: Remoting) -> None:
    with pytest.raises(NotConnected, match="host:port"):
        await remoting.request(text, CODE, None, timeout_ms=1000)


async def test_a_request_that_cannot_be_encoded_lets_the_next_one_in(peer: ScriptedPeer) -> None:
    peer.on(CODE, echo)
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks, options=ConnectOptions(max_in_flight=1))

    def ask(topic: str) -> Any:
        return remoting.request(peer.address, CODE, Topic(topic=topic), timeout_ms=5000)

    outcomes = await asyncio.gather(
        *(ask(topic) for topic in ("a", "\ud800", "b", "\ud800", "c")), return_exceptions=True
    )
    await remoting.close()
    await tasks.close()
    assert [type(each).__name__ for each in outcomes] == [
        "Response",
        "LocalProtocolError",
        "Response",
        "LocalProtocolError",
        "Response",
    ]
