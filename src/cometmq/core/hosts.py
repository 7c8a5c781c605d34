"""Checks of hosts: whether one is an IP address, and whether only this machine reaches it."""

from __future__ import annotations

from ipaddress import ip_address


def is_ip_address(host: str) -> bool:
    """Return whether a host, without brackets, is an IP address and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
