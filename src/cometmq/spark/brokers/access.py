"""Connection settings of a cluster, passed to all code that sends it requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq.protocol.fields import Account
from cometmq.spark.brokers import tls
from cometmq.spark.options import BadOption, Given, get, one_of, positive, required, some_text

if TYPE_CHECKING:
    from cometmq.spark.brokers.tls import Tls

OPTIONS: Final = (
    *("nameservers", "requestTimeoutMs", "readFrom"),
    *("accessKey", "secretKey"),
    *tls.OPTIONS,
)
ALIASES: Final = {"namesrv": "nameservers", "namesrvaddr": "nameservers"}

_PORT_MAX: Final = 65_535


class ReadFrom(Enum):
    """The broker of a broker name that is asked for messages first: its master or a slave."""

    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True)
class Access:
    """Connection settings. ``nameservers`` are ``host:port``; ``request_timeout_ms`` is per
    request."""

    nameservers: tuple[str, ...]
    request_timeout_ms: int
    account: Account | None = None
    tls: Tls | None = None
    read_from: ReadFrom = ReadFrom.MASTER


def parse(given: Given) -> Access:
    """Parse the options that say how to reach a cluster. Raises BadOption."""
    return Access(
        nameservers=required(given, "nameservers", addresses),
        request_timeout_ms=get(given, "requestTimeoutMs", positive, 10_000),
        account=_account(given),
        tls=tls.parse(given),
        read_from=ReadFrom(get(given, "readFrom", one_of("master", "slave"), "master")),
    )


def _account(given: Given) -> Account | None:
    for name, other in (("accessKey", "secretKey"), ("secretKey", "accessKey")):
        if name in given and other not in given:
            raise BadOption(other, f"must be given together with {name}")
    if "accessKey" not in given:
        return None
    # A parsed value is not quoted in errors here, since it may be the secret key.
    return Account(given["accessKey"].strip(), required(given, "secretKey", some_text))


def addresses(text: str) -> tuple[str, ...]:
    """Parse addresses like ``a:9876;b:9876``. Raises ValueError."""
    found = tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    if not found:
        raise ValueError("contains no address")
    for address in found:
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
            raise ValueError(f"{address!r} is not of the form host:port")
    return found
