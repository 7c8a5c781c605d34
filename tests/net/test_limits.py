"""Limits of a server: late frames, silent clients, places of an address, request rates, counts."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from cometmq.core.allowance import Allowance
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import AclDenied, BadRequest, SettingsError
from cometmq.core.settings import check_ranges
from cometmq.net import limits as limits_module
from cometmq.net import peer as peers
from cometmq.net import server as server_module
from cometmq.net.limits import (
    SLOWEST_BYTES_PER_MS,
    UNSENT_BYTES,
    FrameTimer,
    Limit,
    LimitSettings,
    RequestRates,
    ServerLimits,
)
from cometmq.net.peer import Peer, RequestAccess
from cometmq.net.resources import Connections
from cometmq.net.router import Handler, Router
from cometmq.net.server import IDLE_SCAN_MS, SHED_SCAN_MS, Server
from cometmq.net.tasks import Tasks
from cometmq.net.tls import ServerTls
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply, Request, encode_head
from cometmq.protocol.registry import Side
from tests.net.serving import RawClient, Served, serving, tls_settings, until

BEAT = RequestCode.HEART_BEAT
MAX = RequestCode.GET_MAX_OFFSET


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of other tests in this process do not count."""
    monkeypatch.setattr(server_module, "PROCESS", Connections())


def answer(peer: Peer, request: Request[Any]) -> Reply | None:
    return Reply()


@asynccontextmanager
async def limited(
    settings: LimitSettings | None = None,
    *,
    clock: VirtualClock | None = None,
    handlers: dict[int, Handler] | None = None,
    access: RequestAccess | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Served, ServerLimits, VirtualClock]]:
    """A server with limits, whose time stands still."""
    clock = clock or VirtualClock()
    tasks, limits = Tasks(), ServerLimits(settings, clock)
    handlers = handlers or {BEAT: answer, MAX: answer}
    router = Router(Side.BROKER, handlers, tasks=tasks, access=access, limits=limits)
    server = Server(router, clock=clock, tasks=tasks, **options)
    served = Served(server, router, tasks, await server.listen("127.0.0.1", 0))
    try:
        yield served, limits, clock
    finally:
        await served.close()


async def pass_time(clock: VirtualClock, duration_ms: int, step_ms: int = SHED_SCAN_MS) -> None:
    """Let time pass in steps, each with the work that is due in it."""
    for _ in range(duration_ms // step_ms):
        clock.advance(step_ms)
        await asyncio.sleep(0.002)


# ------------------------------------------------------------------------------- frames that linger


def test_the_time_of_a_frame_grows_with_what_arrives() -> None:
    timer = FrameTimer()
    assert not timer.is_late(0, 100, 0, 1_000)
    assert not timer.is_late(0, 100, 1_000 + 100 // SLOWEST_BYTES_PER_MS, 1_000)
    assert timer.is_late(0, 100, 1_007, 1_000)
    million = 1_000_000
    assert not timer.is_late(0, million, 1_000 + million // SLOWEST_BYTES_PER_MS, 1_000)
    assert timer.is_late(0, million, 1_001 + million // SLOWEST_BYTES_PER_MS, 1_000)


def test_another_frame_has_its_own_time() -> None:
    timer = FrameTimer()
    assert not timer.is_late(0, 10, 0, 1_000)
    assert not timer.is_late(500, 10, 2_000, 1_000)
    assert not timer.is_late(500, 10, 2_900, 1_000)
    timer.reset()
    assert not timer.is_late(500, 10, 9_000, 1_000)
    assert timer.is_late(500, 10, 10_001, 1_000)


@pytest.mark.parametrize("sent", ["a byte", "half a header", "half a body"])
async def test_a_frame_that_does_not_end_is_cut_off(sent: str) -> None:
    head = encode_head(code=BEAT, opaque=7, flag=0, ext={}, body_bytes=1_000)
    part = {"a byte": head[:1], "half a header": head[:40], "half a body": head + bytes(500)}[sent]
    async with limited() as (served, limits, clock):
        slow, other = await served.connect(), await served.connect()
        slow.writer.write(part)
        await until(lambda: any(peer.is_receiving for peer in served.server.peers))
        await pass_time(clock, 29_000)
        assert len(served.server.peers) == 2
        await pass_time(clock, 3_000)
        if sent == "half a body":
            got, _ = await slow.frame()
            assert (got.code, got.opaque) == (ResponseCode.SYSTEM_BUSY, 7)
            assert "[TIMEOUT]" in (got.remark or "")
        assert await slow.closed()
        assert limits.hits[Limit.FRAME_TIME] == 1
        other.send(BEAT, opaque=1)
        assert (await other.frame())[0].opaque == 1


async def test_a_byte_a_second_is_a_frame_that_does_not_end() -> None:
    head = encode_head(code=BEAT, opaque=7, flag=0, ext={"text": "x" * 200})
    async with limited() as (served, limits, clock):
        slow = await served.connect()
        for number in range(40):
            slow.writer.write(head[number : number + 1])
            await pass_time(clock, 1_000)
            if limits.hits[Limit.FRAME_TIME]:
                break
        assert 30 <= number < 40
        assert await slow.closed()


async def test_slow_but_steady_frames_are_not_cut_off() -> None:
    """Always within a frame, though each one ends in time."""
    frame = encode_head(code=BEAT, opaque=7, flag=0, ext={"text": "x" * 200})
    async with limited() as (served, limits, clock):
        client = await served.connect()
        half = len(frame) // 2
        client.writer.write(frame[:half])
        for _ in range(60):
            client.writer.write(frame[half:] + frame[:half])
            await client.frame()
            await pass_time(clock, 1_000)
        assert limits.hits[Limit.FRAME_TIME] == 0
        assert len(served.server.peers) == 1


async def test_a_connection_that_the_server_does_not_read_is_not_late() -> None:
    async with limited() as (served, limits, clock):
        client = await served.connect()
        client.writer.write(encode_head(code=BEAT, opaque=7, flag=0, ext={}, body_bytes=10))
        await until(lambda: any(peer.is_receiving for peer in served.server.peers))
        (peer,) = served.server.peers
        peer.hold()
        await pass_time(clock, 60_000)
        assert limits.hits[Limit.FRAME_TIME] == 0
        peer.go_on()
        await pass_time(clock, 29_000)
        assert limits.hits[Limit.FRAME_TIME] == 0
        await pass_time(clock, 4_000)
        assert limits.hits[Limit.FRAME_TIME] == 1


async def test_without_a_time_frames_may_take_any() -> None:
    async with limited(LimitSettings(frame_receive_timeout=0)) as (served, _limits, clock):
        client = await served.connect()
        client.writer.write(b"\0")
        await until(lambda: any(peer.is_receiving for peer in served.server.peers))
        await pass_time(clock, 60_000)
        assert len(served.server.peers) == 1


# --------------------------------------------------------------------------------- silent clients


async def test_the_idle_time_is_a_setting_that_may_change() -> None:
    settings = LimitSettings(server_channel_max_idle_time_seconds=0)
    async with limited(settings) as (served, limits, clock):
        await served.connect()
        await until(lambda: len(served.server.peers) == 1)
        await pass_time(clock, 600_000, IDLE_SCAN_MS)
        assert len(served.server.peers) == 1
        settings.server_channel_max_idle_time_seconds = 20
        await pass_time(clock, IDLE_SCAN_MS, IDLE_SCAN_MS)
        await until(lambda: not served.server.peers)
        assert limits.hits[Limit.IDLE_TIME] == 1


async def test_the_system_learns_of_a_changed_idle_time() -> None:
    """For open connections, and for those that come later."""
    settings = LimitSettings(server_channel_max_idle_time_seconds=100)

    def told(served: Served) -> set[tuple[int, int]]:
        found = set()
        for peer in served.server.peers:
            assert peer._transport is not None
            accepted = peer._transport.get_extra_info("socket")
            found.add(
                (
                    accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                    accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                )
            )
        return found

    async with limited(settings) as (served, _limits, clock):
        for idle_s in (100, 40, 0, 60):
            settings.server_channel_max_idle_time_seconds = idle_s
            await pass_time(clock, IDLE_SCAN_MS, IDLE_SCAN_MS)
            await served.connect()
            await until(lambda: told(served) == {(int(idle_s > 0), idle_s * 1000)})  # noqa: B023


async def test_a_client_that_drains_a_little_does_not_keep_its_place() -> None:
    """It would keep its answers, too, and would be counted at each scan."""

    def large(peer: Peer, request: Request[Any]) -> Reply | None:
        return Reply(body=bytes(16 << 20))

    async with limited(handlers={BEAT: large}) as (served, limits, clock):
        client = await served.connect()
        client.send(BEAT)
        await until(lambda: any(peer.buffered_bytes > 8 << 20 for peer in served.server.peers))
        (peer,) = served.server.peers
        peer.close_if_idle(clock.monotonic_ms() + 120_001, 120_000)
        peer.close_if_idle(clock.monotonic_ms() + 130_001, 120_000)
        assert limits.hits[Limit.IDLE_TIME] == 1
        assert not peer.closed
        await pass_time(clock, 2 * SHED_SCAN_MS)
        await until(lambda: peer.closed)
        assert not served.server.peers


async def test_accepted_connections_have_the_systems_keepalive() -> None:
    async with limited() as (served, _, _clock):
        await served.connect()
        await until(lambda: len(served.server.peers) == 1)
        (peer,) = served.server.peers
        assert peer._transport is not None
        accepted = peer._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        wanted = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_USER_TIMEOUT": 120_000}
        for name, value in wanted.items():
            assert accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


async def test_a_connection_that_the_system_gives_up_is_counted() -> None:
    async with limited() as (served, limits, _clock):
        await served.connect()
        await until(lambda: len(served.server.peers) == 1)
        (peer,) = served.server.peers
        peer.connection_lost(TimeoutError(110, "Connection timed out"))
        assert limits.hits[Limit.HALF_OPEN] == 1
        assert limits.facts()["openConnections"] == "0"


# --------------------------------------------------------------------------------- connections


@pytest.mark.parametrize("over_tls", [False, True])
async def test_an_address_has_so_many_connections(over_tls: bool, tmp_path: Path) -> None:
    tls = ServerTls(tls_settings(tmp_path, trustme.CA())) if over_tls else None
    settings = LimitSettings(max_connections_per_address=2)
    async with limited(settings, tls=tls) as (served, limits, _clock):
        clients = [await served.connect() for _ in range(2)]
        for client in clients:
            client.send(BEAT)
            await client.frame()
        assert await (await served.connect()).closed()
        assert limits.hits[Limit.CONNECTIONS_PER_ADDRESS] == 1
        clients[0].writer.close()
        await until(lambda: limits.facts()["openConnections"] == "1")
        again = await served.connect()
        again.send(BEAT, opaque=3)
        assert (await again.frame())[0].opaque == 3


async def test_connections_in_all_are_a_setting() -> None:
    settings = LimitSettings(max_connections=1)
    async with limited(settings) as (served, limits, _clock):
        client = await served.connect()
        client.send(BEAT)
        await client.frame()
        assert await (await served.connect()).closed()
        settings.max_connections = 2
        more = await served.connect()
        more.send(BEAT, opaque=3)
        assert (await more.frame())[0].opaque == 3
        assert limits.hits[Limit.CONNECTIONS] == 1


def test_addresses_have_places_of_their_own() -> None:
    limits = ServerLimits(LimitSettings(max_connections_per_address=1))
    limits.entered("10.0.0.1")
    refusal = limits.refusal("10.0.0.1", 1, 100)
    assert refusal is not None
    assert refusal[0] is Limit.CONNECTIONS_PER_ADDRESS
    assert limits.refusal("10.0.0.2", 1, 100) is None
    limits.left("10.0.0.1")
    assert limits.refusal("10.0.0.1", 0, 100) is None


# ------------------------------------------------------------------------------------- requests


def test_an_allowance_depends_on_the_time_alone() -> None:
    allowance = Allowance(2, 10, 0)
    assert [allowance.take(1, 0) for _ in range(3)] == [True, True, False]
    assert [allowance.take(1, 100), allowance.take(1, 100)] == [True, False]
    assert [allowance.take(1, 10_000) for _ in range(3)] == [True, True, False]


async def test_an_address_may_send_so_many_requests_a_second() -> None:
    settings = LimitSettings(max_requests_per_second_per_address=5)
    async with limited(settings) as (served, limits, clock):
        client = await served.connect()

        async def asked(code: int, count: int) -> list[int]:
            codes = []
            for _ in range(count):
                client.send(code, topic="t", queueId="0")
                codes.append((await client.frame())[0].code)
            return codes

        assert await asked(MAX, 6) == [0] * 5 + [ResponseCode.SYSTEM_BUSY]
        # Urgent requests have an allowance of their own.
        assert await asked(BEAT, 6) == [0] * 5 + [ResponseCode.SYSTEM_BUSY]
        clock.advance(200)
        assert await asked(MAX, 2) == [0, ResponseCode.SYSTEM_BUSY]
        assert limits.hits[Limit.REQUEST_RATE] == 3


class Gate:
    """Access control that knows an account by its signature, and refuses what has the text "no"."""

    def check(self, peer: Peer, request: Request[Any]) -> str | None:
        fields = request.fields or {}
        if "no" in fields:
            raise AclDenied("not you")
        return fields.get("Signature") or None

    rules = None

    def check_reader(self, peer: Peer, request: Request[Any], topic: str) -> None:
        pass

    def cache(self, peer: Peer) -> None:
        return None


async def test_what_access_control_refuses_counts_for_its_address() -> None:
    settings = LimitSettings(max_requests_per_second_per_address=2)
    async with limited(settings, access=Gate()) as (served, limits, _clock):
        client = await served.connect()
        codes = []
        for _ in range(3):
            client.send(MAX, topic="t", queueId="0", no="")
            codes.append((await client.frame())[0].code)
        # A request whose header is wrong is refused by the protocol.
        client.send(MAX, topic="t", queueId="none")
        codes.append((await client.frame())[0].code)
        busy = ResponseCode.SYSTEM_BUSY
        denied = AclDenied("").code
        assert codes == [denied, denied, busy, busy]
        assert limits.hits[Limit.REQUEST_RATE] == 2


async def test_an_account_counts_only_if_it_is_proved() -> None:
    """A text that names another account takes nothing of its allowance, and is not kept."""
    settings = LimitSettings(max_requests_per_second_per_account=1)
    async with limited(settings, access=Gate()) as (served, limits, _clock):
        client = await served.connect()

        async def asked(key: str, proof: str = "") -> tuple[int, str]:
            client.send(MAX, topic="t", queueId="0", AccessKey=key, Signature=proof)
            head, _ = await client.frame()
            return head.code, head.remark or ""

        for _ in range(3):
            assert await asked("alice") == (0, "")
        assert await asked("other", "alice") == (0, "")
        code, remark = await asked("other", "alice")
        assert code == ResponseCode.SYSTEM_BUSY
        assert "alice sends more than 1 requests" in remark
        assert limits.hits[Limit.REQUEST_RATE] == 1


def sender_at(host: str) -> Any:
    """What the limits look at of a connection from an address."""
    return SimpleNamespace(address=f"{host}:5", host_bytes=ip_address(host).packed + bytes(4))


A_REQUEST: Any = SimpleNamespace(code=MAX)


def test_all_addresses_of_an_ipv6_network_have_one_allowance() -> None:
    rates = RequestRates(ServerLimits(clock=VirtualClock()), 1)
    rates.take_of_address(sender_at("2001:db8:1:2::1"), A_REQUEST)
    rates.take_of_address(sender_at("2001:db8:1:3::1"), A_REQUEST)
    rates.take_of_address(sender_at("10.0.0.1"), A_REQUEST)
    rates.take_of_address(sender_at("10.0.0.2"), A_REQUEST)
    with pytest.raises(BadRequest, match=r"2001:db8:1:2::/64 sends more than 1 requests a second"):
        rates.take_of_address(sender_at("2001:db8:1:2:ffff::9"), A_REQUEST)
    with pytest.raises(BadRequest, match=r"10\.0\.0\.2 sends more"):
        rates.take_of_address(sender_at("10.0.0.2"), A_REQUEST)


def test_a_used_allowance_is_not_lost_to_new_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_KEYS_MAX", 3)
    clock = VirtualClock()
    rates = RequestRates(ServerLimits(clock=clock), 10)
    for _ in range(10):
        rates.take_of_account(sender_at("10.0.0.1"), A_REQUEST, "greedy")
    clock.advance(100)  # one request of ten
    rates.take_of_account(sender_at("10.0.0.1"), A_REQUEST, "greedy")
    for number in range(100):
        rates.take_of_account(sender_at("10.0.0.1"), A_REQUEST, f"account {number}")
    with pytest.raises(BadRequest):
        rates.take_of_account(sender_at("10.0.0.1"), A_REQUEST, "greedy")
    assert len(rates._allowances) == 3


# ----------------------------------------------------------------------------------- what is told


def test_each_limit_is_counted_and_logged_at_a_bounded_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    limits = ServerLimits(clock=clock)
    with caplog.at_level(logging.WARNING):
        for limit in Limit:
            for _ in range(1_000):
                limits.hit(limit, "1.2.3.4:5", "because")
            clock.advance(1_000)
            limits.hit(limit, "1.2.3.4:5", "because")
    lines = [record.getMessage() for record in caplog.records]
    for limit in Limit:
        assert limits.hits[limit] == 1_001
        assert limits.facts()[f"limitHits_{limit.value}"] == "1001"
        mine = [line for line in lines if f"limit={limit.value} " in line]
        assert len(mine) == 11
        assert "peer=1.2.3.4:5 hits=1001 reason='because'" in mine[-1]


async def test_frames_and_headers_over_their_size_are_counted() -> None:
    async with limited() as (served, limits, _clock):
        for head in (
            encode_head(code=BEAT, opaque=3, flag=0, ext={}, body_bytes=17 << 20),
            (2 << 20).to_bytes(4, "big") + (1_100_000).to_bytes(4, "big"),
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            client = await served.connect()
            client.writer.write(head)
            while not await client.closed():
                pass
        for limit in (Limit.FRAME_SIZE, Limit.HEADER_SIZE, Limit.INVALID_STREAM):
            assert limits.hits[limit] == 1


def test_a_negative_limit_is_an_error() -> None:
    for each in fields(LimitSettings):
        with pytest.raises(SettingsError, match="must be at least 0"):
            check_ranges(LimitSettings(**{each.name: -1}))
    check_ranges(LimitSettings())


# ------------------------------------------------------------------------------------------- TLS


async def test_a_tls_handshake_that_stalls_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing, one byte of a handshake, or half a first message."""
    monkeypatch.setattr(server_module, "FIRST_BYTE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(server_module, "HANDSHAKE_TIMEOUT_S", 0.2)
    tls = ServerTls(tls_settings(tmp_path, trustme.CA()))
    async with limited(tls=tls) as (served, limits, _clock):
        for begun in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00"):
            client = await served.connect()
            client.writer.write(begun)
            assert await client.closed()
        assert limits.hits[Limit.HANDSHAKE_TIME] == 3
        assert limits.facts()["openConnections"] == "0"


@asynccontextmanager
async def over_tls(
    tmp_path: Path,
) -> AsyncIterator[tuple[Served, ServerLimits, VirtualClock, RawClient]]:
    """A limited server, and a client that is connected to it over TLS."""
    authority = trustme.CA()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = ServerTls(tls_settings(tmp_path, authority))
    async with limited(tls=tls) as (served, limits, clock):
        client = RawClient(*await asyncio.open_connection("127.0.0.1", served.port, ssl=context))
        try:
            client.send(BEAT)
            await client.frame()
            yield served, limits, clock, client
        finally:
            client.writer.transport.abort()


async def test_a_frame_in_slow_tls_records_is_cut_off(tmp_path: Path) -> None:
    head = encode_head(code=BEAT, opaque=7, flag=0, ext={"text": "x" * 200})
    async with over_tls(tmp_path) as (_served, limits, clock, client):
        for number in range(40):
            client.writer.write(head[number : number + 1])
            await pass_time(clock, 1_000)
            if limits.hits[Limit.FRAME_TIME]:
                break
        assert 30 <= number < 40
        assert await client.closed()


async def test_a_tls_client_that_never_reads_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "WRITE_BOUND_BYTES", 8 << 20)
    monkeypatch.setattr(peers, "STALL_LIMIT_MS", 20)
    async with over_tls(tmp_path) as (served, limits, _clock, client):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (peer,) = served.server.peers
        piece = bytes(1 << 20)
        async with asyncio.timeout(60):
            # The kernel may take more after the first pause, so one pause is not enough.
            while not peer.congested:
                if peer._writable:
                    peer.write(piece)
                await asyncio.sleep(0.002)
            while not peer.closed:
                peer.write(piece)
                await asyncio.sleep(0.002)
        assert limits.hits[Limit.CONGESTED] >= 1
        assert limits.hits[Limit.UNREAD_ANSWERS] == 1


async def test_a_tls_client_cannot_renegotiate(tmp_path: Path) -> None:
    tls = ServerTls(tls_settings(tmp_path, trustme.CA()))
    assert tls.context.options & ssl.OP_NO_RENEGOTIATION


async def test_the_system_takes_little_that_is_not_sent() -> None:
    """Or a thousand clients that do not read would fill gigabytes of the system's buffers."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is None:
        pytest.skip("this system has no such option")
    async with serving({}) as served:
        await served.connect()
        (peer,) = served.server.peers
        assert peer._transport is not None
        accepted = peer._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, option) == UNSENT_BYTES
