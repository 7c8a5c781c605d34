"""Connection settings of a cluster, passed to all code that sends it requests, and the TLS contexts
that processes make of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import SettingsError
from cometmq.net.outgoing import ClientTls, TlsOptions
from cometmq.protocol.acl import Credentials
from cometmq.spark.options import (
    BadOption,
    Given,
    boolean,
    get,
    one_of,
    positive,
    required,
    some_text,
)

if TYPE_CHECKING:
    import ssl

_TLS_OPTIONS: Final = ("useTls", "tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsCheckHostname")

OPTIONS: Final = (
    *("nameservers", "requestTimeoutMs", "readFrom"),
    *("accessKey", "secretKey", "securityToken"),
    *_TLS_OPTIONS,
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
    account: Credentials | None = None
    tls: TlsOptions | None = None
    read_from: ReadFrom = ReadFrom.MASTER


def parse(given: Given) -> Access:
    """Parse the options that say how to reach a cluster. Raises BadOption."""
    return Access(
        nameservers=required(given, "nameservers", addresses),
        request_timeout_ms=get(given, "requestTimeoutMs", positive, 10_000),
        account=_account(given),
        tls=parse_tls(given),
        read_from=ReadFrom(get(given, "readFrom", one_of("master", "slave"), "master")),
    )


def _account(given: Given) -> Credentials | None:
    for name, other in (("accessKey", "secretKey"), ("secretKey", "accessKey")):
        if name in given and other not in given:
            raise BadOption(other, f"must be given together with {name}")
    if "accessKey" not in given:
        if "securityToken" in given:
            raise BadOption("accessKey", "must be given together with securityToken")
        return None
    # A parsed value is not quoted in errors here, since it may be the secret key.
    return Credentials(
        given["accessKey"].strip(),
        required(given, "secretKey", some_text),
        get(given, "securityToken", some_text, ""),
    )


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


def parse_tls(given: Given) -> TlsOptions | None:
    """Parse the TLS options. Return None if TLS is off. Raises BadOption.

    The files must exist on every machine that reads.
    """
    if not get(given, "useTls", boolean, False):
        for name in _TLS_OPTIONS[1:]:
            if name in given:
                raise BadOption(name, "has no effect unless useTls is true")
        return None
    found = TlsOptions(
        ca_path=get(given, "tlsCaFile", some_text, ""),
        cert_path=get(given, "tlsCertFile", some_text, ""),
        key_path=get(given, "tlsKeyFile", some_text, ""),
        check_host_name=get(given, "tlsCheckHostname", boolean, True),
    )
    if found.key_path and not found.cert_path:
        raise BadOption("tlsKeyFile", "needs option tlsCertFile, which is not given")
    return found


def tls_context(tls: TlsOptions, host: str) -> ssl.SSLContext:
    """Return this process's TLS context for a server, recreated whenever a file has been replaced.

    Raises BadOption if a file cannot be used.
    """
    files = {"tlsCaFile": tls.ca_path, "tlsCertFile": tls.cert_path, "tlsKeyFile": tls.key_path}
    for option, path in files.items():
        if path and not os.access(path, os.R_OK):
            raise BadOption(option, f"{path} is not there, or may not be read")
    try:
        return _client_tls(tls).load(host)
    except SettingsError as error:
        option = "tlsCaFile" if error.key == "tlsClientTrustCertPath" else "tlsCertFile"
        raise BadOption(option, error.problem) from None


@lru_cache(maxsize=16)
def _client_tls(tls: TlsOptions) -> ClientTls:
    return ClientTls(tls)
