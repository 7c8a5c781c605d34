"""Whole pages of a real broker: what they show, and what they refuse."""

import asyncio
import http.client
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
import uvicorn
from uvicorn.server import ServerState

from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import SettingsError
from cometmq.dashboard import connections, guard
from cometmq.dashboard.app import running_dashboard
from cometmq.dashboard.guard import FORM_BYTES_MAX, REQUESTS_MAX, Place
from cometmq.testing.cluster import Cluster
from tests.dashboard.page import running_page


async def test_the_first_page_shows_the_brokers(cometmq_cluster: Cluster) -> None:
    async with running_page(cometmq_cluster.namesrv) as page:
        answer = await page.get("/")
        assert answer.status == 200
        assert cometmq_cluster.broker in answer.text
        assert "DefaultCluster" in answer.text
        assert "read-only" in answer.text
        part = await page.get("/", x_fragment="1")
        assert cometmq_cluster.broker in part.text
        assert "<html" not in part.text


async def test_headers_forbid_what_a_page_does_not_need(cometmq_cluster: Cluster) -> None:
    async with running_page(cometmq_cluster.namesrv) as page:
        for path in ("/", "/static/style.css", "/nothing"):
            headers = (await page.get(path)).headers
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
        text = (await page.get("/")).text
        assert " style=" not in text
        assert " onclick=" not in text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:9880", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("[::1", 421),
        ("127.0.0.1/static/", 421),
        ("127.0.0.1/login?", 421),
        ("localhost?x", 421),
        ("evil.example@localhost", 421),
        ("localhost:x", 421),
        ("localhost:1", 200),
        ("[::1]:1", 200),
        ("10.1.2.3", 200),
        ("Page.Example", 200),
    ],
)
async def test_only_known_hosts_are_served(
    cometmq_session_cluster: Cluster, host: str, status: int
) -> None:
    async with running_page(cometmq_session_cluster.namesrv, names=("page.example",)) as page:
        assert (await page.get("/static/live.js", host=host)).status == status


async def test_changes_need_a_token_and_this_origin(cometmq_cluster: Cluster) -> None:
    async with running_page(cometmq_cluster.namesrv, allow_changes=True) as page:
        assert (await page.post("/logout", {})).status == 403
        refused = await page.post("/logout", {}, origin="http://evil.example")
        assert refused.status == 403
        large = await page.post("/logout", {"x": "y" * FORM_BYTES_MAX})
        assert large.status == 413
        many = await page.post("/logout", {"x": ["y"] * 1_000})
        assert many.status == 413


async def test_a_page_that_others_reach_needs_an_account_for_changes() -> None:
    client = Client("127.0.0.1:1")
    place = Place("0.0.0.0")
    with pytest.raises(SettingsError, match="could change the cluster"):
        async with running_dashboard(client, SystemClock(), place, allow_changes=True):
            pass


async def test_without_a_cluster_the_page_says_so() -> None:
    async with running_page("127.0.0.1:1") as page:
        answer = await page.get("/")
        assert answer.status == 200
        assert 'role="alert"' in answer.text
        assert "127.0.0.1:1" in answer.text


async def seconds_until_closed(url: str, sent: bytes) -> float:
    """Open a connection, send something, and wait until the page closes it."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(sent)
        async with asyncio.timeout(20):
            await reader.read()
        return loop.time() - begun
    except ConnectionResetError:
        return loop.time() - begun
    finally:
        writer.close()


async def test_a_connection_without_a_whole_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    monkeypatch.setattr(guard, "FORM_S", 0.5)
    whole = b"GET /static/live.js HTTP/1.1\r\nhost: localhost\r\n\r\n"
    part = b"GET / HTTP/1.1\r\nhost: loc"
    form = b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nx"
    async with running_page("127.0.0.1:1") as page:
        for sent in (b"", part, whole + part, form):
            assert await seconds_until_closed(page.url, sent) < 8, sent
        assert (await page.get("/static/live.js")).status == 200


async def test_connections_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 1)
    async with running_page("127.0.0.1:1") as page:
        place = urlsplit(page.url)
        _, first = await asyncio.open_connection(place.hostname, place.port)
        try:
            assert await seconds_until_closed(page.url, b"") < 4
        finally:
            first.close()


async def test_one_address_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PER_ADDRESS_MAX", 2)
    async with running_page("127.0.0.1:1") as page:
        place = urlsplit(page.url)
        held = [await asyncio.open_connection(place.hostname, place.port) for _ in range(2)]
        try:
            assert await seconds_until_closed(page.url, b"") < 4
            reader, other = await asyncio.open_connection(
                place.hostname, place.port, local_addr=("127.0.0.2", 0)
            )
            held.append((reader, other))
            other.write(b"GET /static/live.js HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 4)
        finally:
            for _, writer in held:
                writer.close()
        async with asyncio.timeout(10):  # the page sees that they have gone
            while True:
                with suppress(OSError, http.client.HTTPException):
                    if (await page.get("/static/live.js")).status == 200:
                        break
                await asyncio.sleep(0.05)


async def test_a_named_proxy_may_have_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PER_ADDRESS_MAX", 0)
    async with running_page("127.0.0.1:1", proxies=("127.0.0.0/8",)) as page:
        assert (await page.get("/static/live.js")).status == 200


@pytest.mark.parametrize(
    ("address", "networks", "is_in"),
    [
        ("10.1.2.3", ["10.1.2.3"], True),
        ("10.1.2.3", ["192.168.0.0/16", "10.0.0.0/8"], True),
        ("10.1.2.3", ["10.1.2.4", "fe80::/10"], False),
        ("fe80::1", ["fe80::/10"], True),
        ("proxy", ["10.0.0.0/8", "proxy"], True),
        ("10.1.2.3", ["proxy"], False),
        ("10.1.2.3", [], False),
    ],
)
def test_addresses_in_networks(address: str, networks: list[str], is_in: bool) -> None:
    assert connections.is_among(address, networks) is is_in


async def test_a_proxy_needs_a_name_for_changes_without_a_login(cometmq_cluster: Cluster) -> None:
    form = {"name": "made", "read_queues": "1", "write_queues": "1"}
    for proxies, status in (((), 403), (("127.0.0.1",), 303)):
        async with running_page(
            cometmq_cluster.namesrv, allow_changes=True, proxies=proxies
        ) as page:
            await page.get("/")
            sent = form | {"change_token": (await page.get("/new-topic")).token}
            answer = await page.post("/new-topic", sent, x_forwarded_for="10.1.2.3")
            assert answer.status == status


async def test_connections_that_wait_keep_nobody_out() -> None:
    async with running_page("127.0.0.1:1") as page:
        place = urlsplit(page.url)
        held: list[asyncio.StreamWriter] = []
        try:
            for number in range(REQUESTS_MAX + 8):
                source = f"127.0.0.{2 + number // 60}"
                _, writer = await asyncio.open_connection(
                    place.hostname, place.port, local_addr=(source, 0)
                )
                held.append(writer)
            assert (await page.get("/static/live.js")).status == 200
        finally:
            for writer in held:
                writer.close()


async def test_requests_under_way_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "REQUESTS_MAX", 0)
    async with running_page("127.0.0.1:1") as page:
        answer = await page.get("/")
        assert answer.status == 503
        assert "content-security-policy" in answer.headers


class Unread(asyncio.Transport):
    """The way to a peer that reads nothing."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass


async def test_a_byte_is_no_sign_that_the_peer_reads() -> None:
    begun = asyncio.Event()

    async def app(scope: object, receive: object, send: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    state = ServerState()
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
    connection = connections.BrowserConnection(config, state, {})
    connection.connection_made(Unread())
    try:
        connection.data_received(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await begun.wait()
        connection.pause_writing()
        connection.data_received(b"G")
        ends = connection._limit_timer
        assert ends is not None
        connection.resume_writing()
        assert ends.cancelled()
    finally:
        for task in state.tasks:
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
