"""Name servers from a real HTTP server: what answers are taken, and what a change does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from cometmq.broker.config import load
from cometmq.broker.supervisor import CurrentBroker, Supervisor
from cometmq.broker.topics import addressserver
from cometmq.broker.topics.addressserver import MAX_BYTES, MAX_NAME_SERVERS, addresses_in, fetch
from cometmq.core.clock import SystemClock
from cometmq.core.errors import SettingsError
from tests.broker.addressing import AddressService, address_service
from tests.broker.serving import running_broker
from tests.namesrv.serving import name_server, until


@pytest.fixture
def service() -> Iterator[AddressService]:
    with address_service() as running:
        yield running


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker asks again at once, and gives up early."""
    monkeypatch.setattr(addressserver, "INTERVAL_MS", 10)
    monkeypatch.setattr(addressserver, "FIRST_INTERVAL_MS", 10)
    monkeypatch.setattr(addressserver, "TIMEOUT_MS", 500)


@asynccontextmanager
async def raw_server(answer: bytes, *, closes: bool = True) -> AsyncIterator[str]:
    """A server that sends some bytes and closes, or keeps silent afterwards; gives its URL."""

    open_ones = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_ones
        open_ones += 1
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if not closes:
                await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        open_ones -= 1

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rocketmq/nsaddr"
    finally:
        server.close()
        await until(lambda: not open_ones)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:9876", ["127.0.0.1:9876"]),
        (" a:1;b:2 ;; a:1;\r\nignored:3\n", ["a:1", "b:2"]),
        ("[::1]:9876;c:65535\rx", ["[::1]:9876", "c:65535"]),
    ],
)
def test_the_first_line_has_the_name_servers(text: str, found: list[str]) -> None:
    assert addresses_in(text) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no name server"),
        ("\n;;", "no name server"),
        ("<html>", "not host:port"),
        ("a:0", "not host:port"),
        ("a:65536", "not host:port"),
        ("a:9876;a:09876", "not host:port"),
        ("a:", "not host:port"),
        (f"a:{'9' * 9_000}", "not host:port"),
        ("a:\u0661", "not host:port"),
        (":9876", "not host:port"),
        ("a b:9876", "not host:port"),
        (";".join(f"a:{number + 1}" for number in range(MAX_NAME_SERVERS + 1)), "65 name servers"),
    ],
)
def test_other_answers_are_not_used(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        addresses_in(text)


async def test_an_answer_is_fetched(service: AddressService) -> None:
    service.text = "a:1;b:2\n"
    assert await fetch(service.url) == "a:1;b:2\n"
    assert await fetch(f"{service.url}?unit=1&x=%20") == "a:1;b:2\n"
    assert service.asked == ["/rocketmq/nsaddr", "/rocketmq/nsaddr?unit=1&x=%20"]
    service.status = 404
    with pytest.raises(ValueError, match="404"):
        await fetch(service.url)


async def test_an_answer_in_pieces_is_fetched() -> None:
    pieces = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na:1\r\n4\r\n;b:2\r\n0\r\n\r\n"
    )
    async with raw_server(pieces) as url:
        assert await fetch(url) == "a:1;b:2"


async def test_an_answer_has_a_bound() -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MAX_BYTES), closes=False) as url:
        with pytest.raises(ValueError, match="longer than"):
            await fetch(url)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\n\r\n\xff", b"HTTP/9"])
async def test_an_answer_of_something_else_is_an_error(
    answer: bytes, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with raw_server(answer) as url:
        domain = url.split("/")[2]
        settings = {"fetchNamesrvAddrByAddressServer": "true", "rmqAddressServerDomain": domain}
        async with running_broker(tmp_path, None, **settings) as running:
            assert running.broker.name_servers == []
    assert f"address_server_failed url={url}" in caplog.text


@pytest.mark.usefixtures("quick")
async def test_a_server_that_does_not_answer_delays_no_start(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with raw_server(b"HTTP/1.1", closes=False) as url:
        settings = {
            "fetchNamesrvAddrByAddressServer": "true",
            "rmqAddressServerDomain": url.split("/")[2],
        }
        async with running_broker(tmp_path, None, **settings) as running:
            assert running.broker.name_servers == []
    assert "address_server_failed" in caplog.text
    assert "TimeoutError" in caplog.text


@pytest.mark.usefixtures("quick")
async def test_the_broker_follows_the_list(
    service: AddressService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = service.settings | {"storePathRootDir": str(tmp_path / "b"), "listenPort": "0"}
    config, store, _ = load(settings)
    supervisor = Supervisor(config, store, SystemClock())
    shown = CurrentBroker(supervisor)
    async with name_server(tmp_path / "1") as first, name_server(tmp_path / "2") as second:
        service.status = 503
        await supervisor.start()
        broker = supervisor.broker
        assert broker.name_servers == []
        assert not shown.readiness().is_ready
        assert service.url in shown.readiness().text
        service.status, service.text = 200, f"{first.address}\n"
        await until(lambda: broker.registered == [first.address])
        assert shown.readiness().is_ready
        service.text = f"{first.address};{second.address}\n"
        await until(lambda: len(broker.registered) == 2)
        service.text = second.address
        await until(lambda: broker.registered == [second.address])
        assert broker.name_servers == [second.address]
        # It is not told: clients that still ask it lose nothing at once.
        assert len(first.server.routes.topics()) == len(second.server.routes.topics())
        # An answer that cannot be used changes nothing.
        asked = len(service.asked)
        service.text = "nothing"
        await until(lambda: len(service.asked) > asked + 3)
        assert broker.registered == [second.address]
        await supervisor.stop()
        assert set(service.asked) == {"/rocketmq/nsaddr"}
    # One line while it goes wrong, not one a request.
    assert caplog.text.count("address_server_failed") == 2


async def test_named_name_servers_come_first(service: AddressService, tmp_path: Path) -> None:
    """As upstream: namesrvAddr switches the address server off."""
    async with name_server(tmp_path) as served:
        settings = service.settings | {"namesrvAddr": served.address}
        async with running_broker(tmp_path / "b", None, **settings) as running:
            await until(lambda: running.broker.registered == [served.address])
    assert service.asked == []


def test_the_url_is_that_of_rocketmq() -> None:
    asked = {"fetchNamesrvAddrByAddressServer": "true"}
    assert load({})[0].address_server == ""
    assert load(asked)[0].address_server == "http://jmenv.tbsite.net:8080/rocketmq/nsaddr"
    named = asked | {"rmqAddressServerDomain": "h:80", "rmqAddressServerSubGroup": "g-1"}
    assert load(named)[0].address_server == "http://h:80/rocketmq/g-1"
    named = asked | {"rmqAddressServerDomain": "[::1]"}
    assert load(named)[0].address_server == "http://[::1]:8080/rocketmq/nsaddr"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rmqAddressServerDomain", ""),
        ("rmqAddressServerDomain", "http://h"),
        ("rmqAddressServerDomain", "h:"),
        ("rmqAddressServerDomain", "user@h"),
        ("rmqAddressServerDomain", "a b"),
        ("rmqAddressServerSubGroup", ""),
        ("rmqAddressServerSubGroup", "a HTTP/1.1"),
        ("rmqAddressServerSubGroup", "a\x01b"),
    ],
)
def test_what_is_no_url_is_refused(key: str, value: str) -> None:
    with pytest.raises(SettingsError, match=key):
        load({"fetchNamesrvAddrByAddressServer": "true", key: value})
