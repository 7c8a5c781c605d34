"""Ports of a broker: its own, the "VIP" port two below it, and a master's port for slaves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.net.server import Reserve, reserve

if TYPE_CHECKING:
    import socket

log = logging.getLogger(__name__)

#: Distance to the second port, to which older clients are directed for sends ("VIP channel").
VIP_DISTANCE: Final = 2
_PORT_TRIES: Final = 50


def reserve_ports(host: str, port: int, reserve: Reserve = reserve) -> list[socket.socket]:
    """Return sockets for ``port`` and the VIP port two below it; 0 picks a free pair.

    Raise OSError if one of them cannot be bound.
    """
    for _ in range(_PORT_TRIES if port == 0 else 1):
        main = reserve(host, port)
        vip_port = main.getsockname()[1] - VIP_DISTANCE
        if vip_port <= 0:
            return [main]
        try:
            return [main, reserve(host, vip_port, exclusive=port == 0)]
        except OSError:
            main.close()
            if port:
                raise
    raise OSError(f"found no two free ports {VIP_DISTANCE} apart on {host}")


def reserve_ha(reserve: Reserve, host: str, port: int, listen_port: int) -> socket.socket:
    """Return a socket for slaves, at ``port``; 0 means ``listen_port`` + 1 or any free port.

    Raise OSError if ``port`` is not 0 and cannot be bound.
    """
    if port:
        return reserve(host, port)
    try:
        return reserve(host, listen_port + 1, exclusive=True)
    except OSError:
        found = reserve(host, 0)
        log.info("ha_port_moved from=%d to=%d", listen_port + 1, found.getsockname()[1])
        return found


def join(host: str, port: int) -> str:
    """Return ``host`` and ``port`` as one address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
