"""Address of this machine, as other machines see it."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from cometmq.net.client import split_address


def own_ip(name_server: str) -> str:
    """Return this machine's address on the route to a name server. No packet is sent.

    For a name server given by host name it is the address on the default route, because resolving
    the name would block.
    """
    host, _ = split_address(name_server)
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        host, family = ("127.0.0.1" if host == "localhost" else "192.0.2.1"), socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
