"""Name servers from an HTTP server (upstream: TopAddressing.java, BrokerOuterAPI.java).

With ``fetchNamesrvAddrByAddressServer`` the broker does not know its name servers from its
settings. The answer to a GET of the URL has them in its first line, as ``host:port;host:port``. A
changed line takes effect at once. An answer that cannot be used changes nothing.
"""

from __future__ import annotations

import asyncio
import io
import logging
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import socket

    from cometmq.broker.topics.registration import Registration
    from cometmq.core.clock import Clock

log = logging.getLogger(__name__)

INTERVAL_MS: Final = 120_000
#: Interval until the first usable answer.
FIRST_INTERVAL_MS: Final = 10_000
TIMEOUT_MS: Final = 3_000
#: Limits of an answer: all bytes, header included, and its name servers.
MAX_BYTES: Final = 64 << 10
MAX_NAME_SERVERS: Final = 64


class AddressServer:
    """Asks ``url`` for the name servers, and makes ``registration`` use them."""

    def __init__(self, url: str, registration: Registration, clock: Clock) -> None:
        self._url = url
        self._registration = registration
        self._clock = clock
        self._failing = False

    async def ask(self) -> None:
        """Ask once. Log a failure, unless the last request failed too."""
        try:
            found = addresses_in(await fetch(self._url))
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            if not self._failing:
                log.warning(
                    "address_server_failed url=%s reason=%r text=%r",
                    self._url,
                    str(error) or type(error).__name__,
                    "the broker keeps its name servers, and asks again; check "
                    "rmqAddressServerDomain, rmqAddressServerSubGroup and that server",
                )
            self._failing = True
            return
        self._failing = False
        if set(found) != set(self._registration.name_servers):
            log.info("name_servers_found url=%s name_servers=%s", self._url, ";".join(found))
            self._registration.use(found)

    async def ask_forever(self) -> None:
        """Ask after each interval, until cancelled."""
        while True:
            is_known = bool(self._registration.name_servers)
            await self._clock.sleep_ms(INTERVAL_MS if is_known else FIRST_INTERVAL_MS)
            await self.ask()


def addresses_in(text: str) -> list[str]:
    """Return the different addresses in the first line of an answer.

    Raise ValueError if there is none, if there are too many, or if one is no ``host:port``.
    """
    line = text.strip().partition("\n")[0].partition("\r")[0]
    found = [*dict.fromkeys(each.strip() for each in line.split(";") if each.strip())]
    if not found:
        raise ValueError("the answer has no name server")
    if len(found) > MAX_NAME_SERVERS:
        raise ValueError(f"the answer has {len(found)} name servers, more than {MAX_NAME_SERVERS}")
    for address in found:
        host, _, port = address.rpartition(":")
        # A port with leading zeros would be a second name of the same name server.
        is_port = port.isascii() and port.isdecimal() and port[0] != "0" and int(port[:6]) < 65_536
        if not host or not is_port or not host.isprintable() or " " in host:
            raise ValueError(f"the answer has {address[:80]!r}, which is not host:port")
    return found


async def fetch(url: str) -> str:
    """Return the body of the answer to a GET of ``url``.

    Raise TimeoutError after TIMEOUT_MS, OSError if there is no connection, or ValueError for an
    answer that is no HTTP, not 200, too long or not UTF-8.
    """
    # Imported here, because most brokers never ask: their start does not load it.
    from http.client import HTTPException, HTTPResponse

    parts = urlsplit(url)
    target = (parts.path or "/") + (parts.query and f"?{parts.query}")
    request = f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(request.encode())
            received = bytearray()
            while part := await reader.read(MAX_BYTES):
                received += part
                if len(received) > MAX_BYTES:
                    raise ValueError(f"the answer is longer than {MAX_BYTES} bytes")
        finally:
            writer.transport.abort()
    answer = HTTPResponse(cast("socket.socket", _Received(bytes(received))))
    try:
        answer.begin()
        if answer.status != 200:
            raise ValueError(f"the answer is {answer.status} {answer.reason[:80]}")
        return answer.read().decode()
    except HTTPException as error:
        raise ValueError(str(error) or type(error).__name__) from error


class _Received:
    """The part of a socket that HTTPResponse uses, with all bytes of an answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        """Return the bytes as a file."""
        return io.BytesIO(self._data)
