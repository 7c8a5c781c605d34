"""Connection settings of a cluster, passed to all code that sends it requests, and the TLS contexts
that processes make of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

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
    *("accessKey", "secretKey"),
    *_TLS_OPTIONS,
)
ALIASES: Final = {"namesrv": "nameservers", "namesrvaddr": "nameservers"}
_PORT_MAX: Final = 65_535


class ReadFrom(Enum):
    """The broker of a broker name that is asked for messages first: its master or a slave."""

    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files, which must exist on every machine that reads.

    Without ``ca_file`` the system's certificate authorities are trusted. ``cert_file`` and
    ``key_file`` are the client certificate for servers that request one.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """Connection settings. ``nameservers`` are ``host:port``; ``request_timeout_ms`` is per
    request."""

    nameservers: tuple[str, ...]
    request_timeout_ms: int
    account: Credentials | None = None
    tls: Tls | None = None
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
        return None
    # A parsed value is not quoted in errors here, since it may be the secret key.
    return Credentials(given["accessKey"].strip(), required(given, "secretKey", some_text))


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


def parse_tls(given: Given) -> Tls | None:
    """Parse the TLS options. Return None if TLS is off. Raises BadOption."""
    if not get(given, "useTls", boolean, False):
        for name in _TLS_OPTIONS[1:]:
            if name in given:
                raise BadOption(name, "has no effect unless useTls is true")
        return None
    found = Tls(
        ca_file=get(given, "tlsCaFile", some_text, None),
        cert_file=get(given, "tlsCertFile", some_text, None),
        key_file=get(given, "tlsKeyFile", some_text, None),
        check_hostname=get(given, "tlsCheckHostname", boolean, True),
    )
    if found.key_file is not None and found.cert_file is None:
        raise BadOption("tlsKeyFile", "needs option tlsCertFile, which is not given")
    return found


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of this process, recreated whenever a file has been replaced.

    Raises BadOption if a file cannot be used.
    """
    written: list[int] = []
    files = {
        "tlsCaFile": tls.ca_file,
        "tlsCertFile": tls.cert_file,
        "tlsKeyFile": tls.key_file,
    }
    for option, path in files.items():
        if path is not None:
            try:
                written.append(os.stat(path).st_mtime_ns)
            except OSError as error:
                raise BadOption(option, f"{path}: {error.strerror}") from None
    return _made(tls, tuple(written))


@lru_cache(maxsize=16)
def _made(tls: Tls, written: tuple[int, ...]) -> ssl.SSLContext:
    """Create a context. ``written`` holds the files' modification times, so that the cache misses
    once a certificate is replaced while queries run."""
    import ssl

    try:
        made = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as error:
        raise BadOption("tlsCaFile", f"{tls.ca_file}: {error}") from None
    made.check_hostname = tls.check_hostname
    if tls.cert_file is not None:
        try:
            made.load_cert_chain(tls.cert_file, tls.key_file)
        except OSError as error:
            raise BadOption("tlsCertFile", f"{tls.cert_file}: {error}") from None
    return made
