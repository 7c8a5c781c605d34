"""One connection: bad streams, fair turns, pushed requests, pile-ups, closing; bytes of many leave
together.
"""

from __future__ import annotations

import asyncio
import mmap
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import NotConnected, RequestTimedOut
from cometmq.net import eventloop
from cometmq.net import peer as peers
from cometmq.net.eventloop import STALL_NS, Watchdog
from cometmq.net.limits import Limit
from cometmq.net.peer import Peer, WriteCoalescer, describe_host
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import FLAG_ONEWAY, FLAG_RESPONSE, Reply, Request, encode_head
from tests.net.serving import RawClient, Served, serving, until_still

BEAT = RequestCode.HEART_BEAT
INFO = RequestCode.GET_BROKER_RUNTIME_INFO


def beat(peer: Peer, request: Request[Any]) -> Reply | None:
    return Reply()


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def only_peer(served: Served) -> Peer:
    await until(lambda: len(served.server.peers) == 1)
    (peer,) = served.server.peers
    return peer


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\xff" * 64,
        (3).to_bytes(4, "big") + bytes(4),
        (20).to_bytes(4, "big") + (2000).to_bytes(4, "big") + bytes(16),
        (12).to_bytes(4, "big") + (8).to_bytes(4, "big") + b"not json",
        (12).to_bytes(4, "big") + (7 << 24 | 8).to_bytes(4, "big") + b"codec 7!",
    ],
    ids=["http", "ones", "short", "header longer than frame", "no json", "unknown codec"],
)
async def test_a_bad_stream_costs_its_own_connection(data: bytes) -> None:
    async with serving({BEAT: beat}) as served:
        good, bad = await served.connect(), await served.connect()
        bad.writer.write(data)
        assert await bad.closed()
        good.send(BEAT, opaque=4)
        assert (await good.frame())[0].opaque == 4


async def test_a_held_connection_is_not_served_until_it_goes_on() -> None:
    order: list[int] = []

    def held(peer: Peer, request: Request[Any]) -> Reply | None:
        order.append(request.opaque)
        if request.opaque == 1:
            peer.hold()
            return None
        return Reply()

    async with serving({BEAT: held}) as served:
        client = await served.connect()
        peer = await only_peer(served)
        for opaque in range(4):
            client.send(BEAT, opaque=opaque)
        await until(lambda: 1 in order)
        for opaque in range(4, 200):
            client.send(BEAT, opaque=opaque, text="x" * 10_000)
        other = await served.connect()
        other.send(BEAT, opaque=1_000)
        assert (await other.frame())[0].opaque == 1_000
        peer.resume_writing()
        other.send(BEAT, opaque=1_001)
        assert (await other.frame())[0].opaque == 1_001
        assert [each for each in order if each < 1_000] == [0, 1]
        assert peer.buffered_bytes < 1_000_000
        peer.go_on()
        await until(lambda: len(order) == 202)
        assert [each for each in order if each < 1_000] == [*range(200)]
        client.send(BEAT, opaque=300)
        await until(lambda: order[-1] == 300)


async def test_good_frames_before_a_bad_one_are_answered() -> None:
    async with serving({BEAT: beat}) as served:
        client = await served.connect()
        frame = encode_head(code=BEAT, opaque=9, flag=0, ext={})
        client.writer.write(frame + b"\xff" * 32)
        assert (await client.frame())[0].opaque == 9
        assert await client.closed()


async def test_an_oversized_frame_is_told_before_the_connection_closes() -> None:
    async with serving({BEAT: beat}) as served:
        client = await served.connect()
        client.writer.write(
            encode_head(code=BEAT, opaque=3, flag=0, ext={}, body_bytes=17 << 20) + b"x" * 100
        )
        head, _ = await client.frame()
        assert (head.code, head.opaque) == (13, 3)
        assert "over the limit of 16777216" in (head.remark or "")
        assert await client.closed()  # and there is no second answer


@pytest.mark.parametrize("flag", [FLAG_ONEWAY, FLAG_RESPONSE])
async def test_an_oversized_frame_that_expects_no_answer_gets_none(flag: int) -> None:
    async with serving({BEAT: beat}) as served:
        client = await served.connect()
        client.writer.write(
            encode_head(code=BEAT, opaque=3, flag=flag, ext={}, body_bytes=17 << 20) + b"x" * 100
        )
        assert await client.closed()


def test_a_view_is_let_go_though_the_peer_does_not_read() -> None:
    whole = mmap.mmap(-1, 8 << 20)
    before_close: list[int] = []

    def show(peer: Peer, request: Request[Any]) -> Reply | None:
        with memoryview(whole) as view:
            peer.write(view[: 7 << 20])  # one piece, more than the sockets take
        return None

    async def main() -> None:
        async with serving({BEAT: show}) as served:
            client = await served.connect()
            client.send(BEAT)
            peer = await only_peer(served)
            await until(lambda: peer.buffered_bytes > 0)
            whole.close()  # BufferError while somebody has a view of it
            before_close.append(peer.buffered_bytes)

    eventloop.run(main())  # uvloop keeps what it cannot send, asyncio copies it
    assert before_close[0] > 0


async def test_a_pipelining_connection_does_not_hold_back_another() -> None:
    order: list[int] = []

    def note(peer: Peer, request: Request[Any]) -> Reply | None:
        order.append(request.opaque)
        return Reply()

    async with serving({BEAT: note}) as served:
        greedy, modest = await served.connect(), await served.connect()
        many = b"".join(encode_head(code=BEAT, opaque=n, flag=0, ext={}) for n in range(2000))
        greedy.writer.write(many)
        modest.send(BEAT, opaque=100_000)
        await until(lambda: len(order) == 2001)
    # Both sockets are readable in the same poll, so the modest one waits for one turn of the other.
    assert order.index(100_000) <= 2 * peers.FRAMES_PER_TURN
    assert [number for number in order if number < 2000] == list(range(2000))


async def test_the_server_asks_the_client() -> None:
    async with serving({BEAT: beat}) as served:
        client = await served.connect()
        peer = await only_peer(served)
        asked = asyncio.ensure_future(peer.request(307, None, b"ask", timeout_ms=5000))
        head, body = await client.frame()
        assert (head.code, body) == (307, b"ask")
        client.writer.write(
            encode_head(
                code=0, opaque=head.opaque, flag=FLAG_RESPONSE, ext={"a": "b"}, body_bytes=2
            )
            + b"ok"
        )
        response = await asked
        assert (response.code, response.ext, response.body) == (0, {"a": "b"}, b"ok")


async def test_a_client_that_does_not_answer_times_out_and_its_late_answer_is_dropped() -> None:
    async with serving({BEAT: beat}) as served:
        client = await served.connect()
        peer = await only_peer(served)
        with pytest.raises(RequestTimedOut):
            await peer.request(307, None, timeout_ms=20)
        head, _ = await client.frame()
        client.writer.write(encode_head(code=0, opaque=head.opaque, flag=FLAG_RESPONSE, ext={}))
        client.send(BEAT, opaque=77)
        assert (await client.frame())[0].opaque == 77


async def test_closing_fails_what_waits_and_calls_back_once() -> None:
    closed: list[Peer] = []
    async with serving({BEAT: beat}) as served:
        client = await served.connect()
        peer = await only_peer(served)
        peer.on_close.append(closed.append)
        asked = asyncio.ensure_future(peer.request(307, None, timeout_ms=5000))
        await client.frame()
        client.writer.close()
        with pytest.raises(NotConnected):
            await asked
        await until(lambda: closed == [peer])
        assert peer.closed
        with pytest.raises(NotConnected):
            await peer.request(307, None, timeout_ms=10)
        peer.write(b"to nobody")
        peer.flush()
        assert served.server.peers == set()


async def test_a_client_that_reads_nothing_becomes_congested_and_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "WRITE_HIGH_BYTES", 64 * 1024)
    monkeypatch.setattr(peers, "STALL_LIMIT_MS", 20)

    def large(peer: Peer, request: Request[Any]) -> Reply | None:
        return Reply(body=bytes(1 << 20))

    async with serving({BEAT: large}) as served:
        client = await served.connect()
        peer = await only_peer(served)
        for opaque in range(16):
            client.send(BEAT, opaque=opaque)
        await until(lambda: peer.congested)
        for opaque in range(16):
            assert (await client.frame())[0].opaque == opaque
        await until(lambda: not peer.congested)


async def test_who_asks_and_does_not_read_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it costs others nothing; once it reads it gets all answers."""
    monkeypatch.setattr(peers, "STALL_LIMIT_MS", 60_000)
    count = 0

    def large(peer: Peer, request: Request[Any]) -> Reply | None:
        nonlocal count
        count += 1
        return Reply(body=bytes(64 * 1024))

    async with serving({BEAT: large}) as served:
        client, other = await served.connect(), await served.connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        (peer, _) = served.server.peers
        for opaque in range(2_000):
            client.send(BEAT, opaque=opaque)
        await until(lambda: peer.is_behind)
        await until_still(lambda: count)
        unsent_bytes = peer.buffered_bytes - peer._connection.buffered_bytes
        assert unsent_bytes <= peers.WRITE_HIGH_BYTES + 64 * 1024 * peers.FRAMES_PER_TURN
        assert count < 500
        other.send(BEAT, opaque=7)
        assert (await other.frame())[0].opaque == 7
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for opaque in range(2_000):
            assert (await client.frame())[0].opaque == opaque
        assert not peer.is_behind
        assert not peer.congested


async def test_who_reads_nothing_is_served_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few requests in each period, in order, so that heartbeats are heard."""
    monkeypatch.setattr(peers, "WRITE_HIGH_BYTES", 64 * 1024)
    monkeypatch.setattr(peers, "STALL_LIMIT_MS", 10)
    monkeypatch.setattr(peers, "STALL_MAX_MS", 40)
    times: list[float] = []

    def answer(peer: Peer, request: Request[Any]) -> Reply | None:
        times.append(asyncio.get_running_loop().time())
        return Reply(body=bytes(15 << 20)) if not request.opaque else Reply()

    async with serving({BEAT: answer}) as served:
        client = await served.connect()
        peer = await only_peer(served)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(BEAT, opaque=0)
        await until(lambda: peer.congested)
        for opaque in range(1, 50):
            client.send(BEAT, opaque=opaque)
        await until(lambda: len(times) == 50)
        # 8 in each period; the last periods are the longest.
        assert times[-1] - times[2] > 0.030 * (49 // peers.FRAMES_STALLED - 2)
        assert served.server._limits.hits[Limit.CONGESTED] == 1
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for opaque in range(50):
            assert (await client.frame())[0].opaque == opaque


async def test_a_congested_client_is_read_on_after_a_burst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "WRITE_HIGH_BYTES", 64 * 1024)
    monkeypatch.setattr(peers, "STALL_LIMIT_MS", 20)
    monkeypatch.setattr(peers, "STALL_MAX_MS", 20)
    monkeypatch.setattr(peers, "READ_BOUND_BYTES", 1024)
    served_opaques: set[int] = set()

    def answer(peer: Peer, request: Request[Any]) -> Reply | None:
        served_opaques.add(request.opaque)
        return Reply(body=bytes(1 << 20)) if request.opaque < 16 else None

    async with serving({BEAT: answer}) as served:
        client = await served.connect()
        peer = await only_peer(served)
        for opaque in range(16):
            client.send(BEAT, opaque=opaque)
        await until(lambda: peer.congested)
        for opaque in range(100, 600):
            client.send(BEAT, opaque=opaque)
        await until(lambda: 599 in served_opaques)
        client.send(BEAT, opaque=1000)
        await until(lambda: 1000 in served_opaques)
        assert peer.congested


async def test_a_client_that_never_reads_is_cut_off_at_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "WRITE_HIGH_BYTES", 64 * 1024)
    monkeypatch.setattr(peers, "WRITE_BOUND_BYTES", 4 << 20)
    monkeypatch.setattr(peers, "STALL_LIMIT_MS", 1)

    def large(peer: Peer, request: Request[Any]) -> Reply | None:
        return Reply(body=bytes(1 << 20))

    async with serving({BEAT: large}) as served:
        client = await served.connect()
        peer = await only_peer(served)
        for opaque in range(64):
            client.send(BEAT, opaque=opaque)
        await until(lambda: peer.closed)


async def test_a_handler_that_answers_later() -> None:
    parked: list[tuple[Peer, Request[Any]]] = []

    def park(peer: Peer, request: Request[Any]) -> Reply | None:
        parked.append((peer, request))
        return None

    async with serving({BEAT: park}) as served:
        client: RawClient = await served.connect()
        client.send(BEAT, opaque=6)
        await until(lambda: parked)
        peer, request = parked[0]
        peer.reply(request, Reply(body=b"late"))
        head, body = await client.frame()
        assert (head.opaque, body) == (6, b"late")


@pytest.mark.parametrize(
    ("host", "text", "size", "loopback"),
    [
        ("127.0.0.1", "127.0.0.1:9", 8, True),
        ("10.1.2.3", "10.1.2.3:9", 8, False),
        ("::1", "[::1]:9", 20, True),
        ("::ffff:10.1.2.3", "10.1.2.3:9", 8, False),
        ("fe80::1%eth0", "[fe80::1]:9", 20, False),
    ],
)
def test_hosts_as_text_and_as_record_bytes(host: str, text: str, size: int, loopback: bool) -> None:
    described = describe_host(host, 9)
    assert (described[0], len(described[1]), described[2]) == (text, size, loopback)
    assert described[1][-4:] == b"\0\0\0\x09"


async def test_what_peers_have_leaves_after_the_round_in_their_order() -> None:
    departures = WriteCoalescer(Watchdog())
    left: list[str] = []
    asyncio.get_running_loop().call_soon(left.append, "what came in with them")
    departures.add(lambda: left.append("a"))
    departures.add(lambda: left.append("b"))
    assert left == []
    await asyncio.sleep(0)
    assert left == ["what came in with them", "a", "b"]
    await asyncio.sleep(0)
    assert len(left) == 3


async def test_who_comes_while_others_leave_goes_next() -> None:
    departures = WriteCoalescer(Watchdog())
    left: list[str] = []

    def leave() -> None:
        left.append("a")
        departures.add(lambda: left.append("b"))

    departures.add(leave)
    await asyncio.sleep(0)
    assert left == ["a"]
    await asyncio.sleep(0)
    assert left == ["a", "b"]


async def test_a_round_that_takes_long_is_noticed() -> None:
    clock = VirtualClock()
    watchdog = Watchdog(clock)
    departures = WriteCoalescer(watchdog)
    departures.add(lambda: clock.advance(STALL_NS // 1_000_000 + 1))
    await asyncio.sleep(0)
    assert watchdog.stalls == {"flush": 1}


async def test_one_that_fails_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    departures = WriteCoalescer(Watchdog())
    left: list[str] = []

    def fail() -> None:
        raise AttributeError("_write_appdata")

    departures.add(fail)
    departures.add(lambda: left.append("b"))
    await asyncio.sleep(0)
    assert left == ["b"]
    assert caplog.messages == ["flush failed"]
