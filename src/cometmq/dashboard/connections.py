"""Connections of browsers, with limits on their number and on how long a peer may be idle.

uvicorn limits only the pause between two requests. Without further limits, a connection would stay
open for ever if the peer sends no request or only a part of one, or does not read the response:

    request head    must be complete REQUEST_S after the connection was made, or after the first
                    byte of a later request
    response        the peer must read some of it at least every STALLED_S
    number          CONNECTIONS_MAX in all, and PER_ADDRESS_MAX from one address (IPv6: from one /64
                    network) unless it is a named proxy; further connections are closed at once
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from cometmq.dashboard.attempts import network_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

REQUEST_S: Final = 10.0
STALLED_S: Final = 30.0
CONNECTIONS_MAX: Final = 512
#: A browser opens at most 6 connections; several browsers may share an address.
PER_ADDRESS_MAX: Final = 64


class BrowserConnection(H11Protocol):
    """One connection of a browser or of a proxy."""

    _limit_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX or self._is_one_too_many():
            transport.abort()
            return
        self._abort_after(REQUEST_S)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; limit the time for the rest of its head."""
        super().data_received(data)
        if self._is_answering():
            # A byte of a further request does not show that the peer reads the response.
            if not self.flow.write_paused:
                self._cancel_timer()
        elif self._limit_timer is None and not self.transport.is_closing():
            self._abort_after(REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limit with the connection."""
        self._cancel_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the peer to read."""
        super().pause_writing()
        self._abort_after(STALLED_S)

    def resume_writing(self) -> None:
        """Note that the peer has read."""
        self._cancel_timer()
        super().resume_writing()

    def _is_one_too_many(self) -> bool:
        """Return whether the peer's address has more connections than one may have."""
        if self.client is None:
            return False
        address = self.client[0]
        if self.config.proxy_headers and is_among(address, self.config.forwarded_allow_ips or ()):
            return False
        network = network_of(address)
        same = [
            each
            for each in self.connections
            if isinstance(each, BrowserConnection)
            and each.client is not None
            and network_of(each.client[0]) == network
        ]
        return len(same) > PER_ADDRESS_MAX

    def _is_answering(self) -> bool:
        # The annotation corrects uvicorn's, which leaves out None (no request yet).
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _abort_after(self, after_s: float) -> None:
        self._cancel_timer()
        self._limit_timer = self.loop.call_later(after_s, self.transport.abort)

    def _cancel_timer(self) -> None:
        if self._limit_timer is not None:
            self._limit_timer.cancel()
            self._limit_timer = None


def is_among(address: str, networks: Iterable[str]) -> bool:
    """Return whether an address is one of some addresses, or in one of some networks.

    A text that is not an address, such as a host name, matches only itself.
    """
    for network in networks:
        try:
            if ip_address(address) in ip_network(network, strict=False):
                return True
        except ValueError:
            if network == address:
                return True
    return False
