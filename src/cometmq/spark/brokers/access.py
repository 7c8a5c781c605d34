"""How brokers are reached: the one value that whatever speaks to a cluster is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.spark.options import Given, get, positive, required

OPTIONS: Final = ("nameservers", "requestTimeoutMs")
ALIASES: Final = {"namesrv": "nameservers", "namesrvaddr": "nameservers"}

_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Access:
    """``nameservers`` as ``host:port``; ``request_timeout_ms`` holds for one request."""

    nameservers: tuple[str, ...]
    request_timeout_ms: int


def parse(given: Given) -> Access:
    """Read the options that say how a cluster is reached. Raises BadOption."""
    return Access(
        nameservers=required(given, "nameservers", addresses),
        request_timeout_ms=get(given, "requestTimeoutMs", positive, 10_000),
    )


def addresses(text: str) -> tuple[str, ...]:
    """The addresses of a text like ``a:9876;b:9876``. Raises ValueError."""
    found = tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    if not found:
        raise ValueError("names no address")
    for address in found:
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
            raise ValueError(f"{address!r} is not of the form host:port")
    return found
