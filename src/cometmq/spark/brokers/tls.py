"""Encrypted connections: turns the files that options name into this process's TLS context."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cometmq.spark.options import BadOption, Given, boolean, get, some_text

if TYPE_CHECKING:
    import ssl

OPTIONS: Final = ("useTls", "tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsCheckHostname")


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


def parse(given: Given) -> Tls | None:
    """Parse the TLS options. Return None if TLS is off. Raises BadOption."""
    if not get(given, "useTls", boolean, False):
        for name in OPTIONS[1:]:
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


def context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of this process, recreated whenever a file has been replaced.

    Raises BadOption if a file cannot be used.
    """
    written: list[int] = []
    files = {"tlsCaFile": tls.ca_file, "tlsCertFile": tls.cert_file, "tlsKeyFile": tls.key_file}
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
