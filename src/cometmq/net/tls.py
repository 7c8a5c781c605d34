"""TLS of a server: settings, certificate files, and their reload after a change (upstream:
TlsSystemConfig.java, TlsMode.java, TlsHelper.java).

One port serves TLS and plain connections, depending on the mode (server.py). Clients are asked for
a certificate only with ``client_auth``; an authority in ``trust_path`` must have signed it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import SettingsError
from cometmq.core.settings import setting

if TYPE_CHECKING:
    import ssl

    from cometmq.core.clock import Clock

log = logging.getLogger(__name__)

#: Interval at which the files are checked for changes.
POLL_MS: Final = 1_000


class TlsMode(Enum):
    """Kinds of connections that a server serves: only plain, both, or only TLS."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Client certificates: not requested, requested, or required."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings of a server. The paths are files in PEM format; the key has no password."""

    mode: TlsMode = TlsMode.DISABLED
    cert_path: str = ""
    key_path: str = ""
    trust_path: str = ""
    client_auth: ClientAuth = ClientAuth.NONE


@dataclass(slots=True, kw_only=True)
class TlsFields:
    """Fields of a server's configuration that are its TLS settings."""

    tls_server_mode: TlsMode = setting(
        TlsMode.DISABLED,
        "`DISABLED`, `PERMISSIVE` (with and without TLS) or `ENFORCING`; also `tls.server.mode`",
        rocketmq="the system property tls.server.mode, permissive by default",
        see="how-to/tls.md",
    )
    tls_server_cert_path: str = setting(
        "",
        "the server's certificate, PEM",
        rocketmq="tls.server.certPath in its TLS file",
    )
    tls_server_key_path: str = setting(
        "",
        "its key, PEM, without a password",
        rocketmq="tls.server.keyPath in its TLS file",
    )
    tls_server_trust_cert_path: str = setting(
        "",
        "the authority that signs client certificates, PEM",
        rocketmq="tls.server.trustCertPath in its TLS file",
    )
    tls_server_need_client_auth: ClientAuth = setting(
        ClientAuth.NONE,
        "whether clients show a certificate: `NONE`, `OPTIONAL` or `REQUIRE`; also "
        "`tls.server.need.client.auth`",
        rocketmq="the system property tls.server.need.client.auth",
    )

    @property
    def tls(self) -> TlsSettings:
        """TLS settings of the server."""
        return TlsSettings(
            self.tls_server_mode,
            self.tls_server_cert_path,
            self.tls_server_key_path,
            self.tls_server_trust_cert_path,
            self.tls_server_need_client_auth,
        )


class ServerTls:
    """TLS of one server. Raises SettingsError, which names the setting, if a file cannot be used.

    Open connections keep the certificate with which they began.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        _check(settings)
        self._seen = self._times()
        self._refused = ""
        self.context: ssl.SSLContext = _context(settings)
        if settings.mode is TlsMode.PERMISSIVE and settings.client_auth is ClientAuth.REQUIRE:
            log.warning(
                "plain clients served without certificates tlsServerMode=permissive "
                "tlsServerNeedClientAuth=require hint=%s",
                "set tls.server.mode=enforcing to refuse them",
            )

    @property
    def is_enforced(self) -> bool:
        """True if plain connections are refused."""
        return self._settings.mode is TlsMode.ENFORCING

    async def watch(self, clock: Clock) -> None:
        """Use changed files for new connections; run until cancelled."""
        while True:
            await clock.sleep_ms(POLL_MS)
            await self._look()

    async def _look(self) -> None:
        """Read the files if one has changed.

        If they cannot be used, the former ones stay in use, and the next look reads the files
        again, because the cause may go away without a change of their times.
        """
        times = await asyncio.to_thread(self._times)
        if times == self._seen:
            return
        try:
            self.context = await asyncio.to_thread(_context, self._settings)
        except SettingsError as error:
            if str(error) != self._refused:
                log.error("tls files not in use reason=%s", error)
            self._refused = str(error)
        else:
            self._seen, self._refused = times, ""
            log.info("tls files in use cert=%s", self._settings.cert_path)

    def _times(self) -> list[tuple[int, int, int]]:
        settings = self._settings
        return file_times(settings.cert_path, settings.key_path, settings.trust_path)


def file_times(*paths: str) -> list[tuple[int, int, int]]:
    """Return (mtime, inode, size) of each file, which change with its content.

    Return zeros for a file that cannot be found.
    """
    found = []
    for path in paths:
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            found.append((0, 0, 0))
    return found


def server_tls(settings: TlsSettings) -> ServerTls | None:
    """Return the TLS of a server; None if it is disabled. Raises SettingsError."""
    return None if settings.mode is TlsMode.DISABLED else ServerTls(settings)


def _check(settings: TlsSettings) -> None:
    for key, path in (
        ("tlsServerCertPath", settings.cert_path),
        ("tlsServerKeyPath", settings.key_path),
    ):
        if not path:
            raise SettingsError(key, f"tlsServerMode={settings.mode.value} needs this file")
    if settings.client_auth is not ClientAuth.NONE and not settings.trust_path:
        raise SettingsError(
            "tlsServerTrustCertPath",
            f"tlsServerNeedClientAuth={settings.client_auth.value} needs the authority that signs "
            "client certificates",
        )


def _context(settings: TlsSettings) -> ssl.SSLContext:
    # Imported late: a server without TLS does not need it.
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    # Otherwise a client could request one handshake after another, at little cost to itself.
    made.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # Pass an empty password: otherwise OpenSSL asks for one at the terminal.
        made.load_cert_chain(settings.cert_path, settings.key_path, password="")
    except OSError as error:  # SSLError is one
        raise SettingsError(
            "tlsServerCertPath",
            f"{settings.cert_path} with the key {settings.key_path} cannot be used: {error}; the "
            "key must fit the certificate and have no password",
        ) from None
    if settings.client_auth is not ClientAuth.NONE:
        try:
            made.load_verify_locations(settings.trust_path)
        except OSError as error:
            raise SettingsError(
                "tlsServerTrustCertPath", f"{settings.trust_path} cannot be used: {error}"
            ) from None
        is_required = settings.client_auth is ClientAuth.REQUIRE
        made.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return made
