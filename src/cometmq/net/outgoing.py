"""Options of outgoing connections: TLS, credentials, timeouts and limits.

:class:`ConnectOptions` is one frozen value that clients and servers pass to Remoting (client.py).
Credentials are read from a file in the form of RocketMQ's ``conf/tools.yml``. The TLS options are
those of its ``tls.client.*`` properties (upstream: TlsSystemConfig.java, TlsHelper.java).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import SettingsError
from cometmq.core.hosts import is_loopback
from cometmq.core.settings import OURS, setting
from cometmq.net.tls import TlsFields, TlsMode, file_times
from cometmq.protocol.acl import Credentials

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from cometmq.core.clock import Clock

log = logging.getLogger(__name__)

#: Interval at which the credentials file is checked for changes.
CREDENTIALS_POLL_MS: Final = 1_000
_CREDENTIALS_MAX_BYTES: Final = 64 * 1024
#: Results of OpenSSL's verification (X509_V_ERR_*).
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21, 27})
#: Parts of the TLS alerts of servers that refuse a client's certificate, or require one.
_CERTIFICATE_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")
_OTHER_NAME: Final = frozenset({62, 64})
_PEM_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_PEM_END: Final = b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS of outgoing connections. The paths are files in PEM format.

    ``ca_path`` has the authorities that sign the certificates of servers; without it, those of this
    machine are trusted. Servers that request a certificate get the one of ``cert_path`` and
    ``key_path``; ``key_password`` is not part of the ``repr``. Without ``verify`` every server is
    accepted. Without ``check_host_name`` a trusted certificate for another host is accepted.

    A server that connects to others sets ``own_cert_path``: it trusts its own certificate too, and
    checks no host name on this machine's loopback addresses.
    """

    ca_path: str = ""
    cert_path: str = ""
    key_path: str = ""
    key_password: str = field(default="", repr=False)
    verify: bool = True
    check_host_name: bool = True
    own_cert_path: str = ""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Options of connections to other processes.

    Without ``tls`` they are plain; without ``credentials`` requests are not signed.
    ``connect_timeout_ms`` limits the opening of a connection, TLS included. A connection is closed
    after ``idle_timeout_ms`` without use. It is also closed if a request times out and nothing was
    received for ``silence_timeout_ms``: its peer may have died without closing it.
    ``max_in_flight`` limits the requests on one connection that have no response yet.
    """

    tls: TlsOptions | None = None
    credentials: Credentials | None = None
    connect_timeout_ms: int = 3_000
    idle_timeout_ms: int = 120_000
    silence_timeout_ms: int = 10_000
    max_in_flight: int = 16_384


@dataclass(slots=True, kw_only=True)
class OutgoingFields(TlsFields):
    """Fields of a server's configuration that say how it connects to other servers."""

    use_tls: bool | None = setting(
        None,
        "connect to name servers and to the master with TLS; unset: only with "
        "`tlsServerMode=ENFORCING`",
        see="how-to/tls.md#between-servers",
    )
    tls_enable: bool | None = setting(
        None,
        "the same under the name of RocketMQ's system property `tls.enable`; `useTls` takes "
        "precedence",
    )
    tls_client_trust_cert_path: str = setting(
        "",
        "the authority that signs the certificates of other servers, PEM; without it, those of "
        "this machine are trusted. This broker's own certificate always is",
    )
    tls_client_cert_path: str = setting(
        "", "the certificate that this broker shows to servers that ask for one, PEM"
    )
    tls_client_key_path: str = setting("", "its key, PEM")
    tls_client_key_password: str = setting(
        "", "the password of the key; shown as `******`", secret=True
    )
    tls_client_auth_server: bool = setting(
        True, "check the certificates of other servers", rocketmq="false by default"
    )
    tls_client_check_host_name: bool = setting(
        True,
        "refuse a certificate that was issued for another host than the one connected to; not "
        "checked on loopback addresses",
        rocketmq="never checked",
    )
    credentials_path: str = setting(
        "",
        "a file with the account that signs this broker's requests to name servers and its master, "
        "as RocketMQ's `conf/tools.yml`; a change of the file is in use within a second, too",
        live=True,
        rocketmq=OURS,
        see="how-to/access-control.md",
    )

    @property
    def client_tls(self) -> TlsOptions:
        """TLS options of outgoing connections, whether or not TLS is on."""
        return TlsOptions(
            ca_path=self.tls_client_trust_cert_path,
            cert_path=self.tls_client_cert_path,
            key_path=self.tls_client_key_path,
            key_password=self.tls_client_key_password,
            verify=self.tls_client_auth_server,
            check_host_name=self.tls_client_check_host_name,
            own_cert_path=self.tls_server_cert_path,
        )

    @property
    def connects_with_tls(self) -> bool:
        """True if outgoing connections have TLS; if that is not set, only with mode ENFORCING."""
        for chosen in (self.use_tls, self.tls_enable):
            if chosen is not None:
                return chosen
        return self.tls_server_mode is TlsMode.ENFORCING

    def connect_options(self) -> ConnectOptions:
        """Return the options of connections. Reads the credentials; raises SettingsError."""
        path = self.credentials_path
        return ConnectOptions(
            tls=self.client_tls if self.connects_with_tls else None,
            credentials=read_credentials(path) if path else None,
        )


class ClientTls:
    """Makes the TLS contexts of outgoing connections. New connections use changed files."""

    def __init__(self, options: TlsOptions) -> None:
        self.options = options
        self._seen: list[tuple[int, int, int]] = []
        self._refused = ""
        self._contexts: dict[bool, ssl.SSLContext] = {}

    async def context(self, host: str) -> ssl.SSLContext:
        """Return the context for a connection to ``host``. Raises SettingsError for a bad file."""
        return await asyncio.to_thread(self.load, host)

    def load(self, host: str = "") -> ssl.SSLContext:
        """Return the context as :meth:`context` does, but read the files in this thread.

        If changed files cannot be used, log that once and keep the former ones in use. The next
        connection reads the files again.
        """
        options = self.options
        times = file_times(
            options.ca_path, options.cert_path, options.key_path, options.own_cert_path
        )
        if times != self._seen or not self._contexts:
            try:
                made = {checks: _make_context(options, checks) for checks in (True, False)}
            except SettingsError as error:
                if not self._contexts:
                    raise
                if str(error) != self._refused:
                    log.error("tls client files not in use reason=%s", error)
                self._refused = str(error)
            else:
                self._contexts, self._seen, self._refused = made, times, ""
        is_own = bool(options.own_cert_path) and is_loopback(host)
        return self._contexts[options.check_host_name and not is_own]

    def is_tls_error(self, error: Exception) -> bool:
        """Return whether an error of an open connection comes from TLS."""
        import ssl

        return isinstance(error, ssl.SSLError)

    @property
    def certificate_hint(self) -> str:
        """Advice for a server that refuses this client's certificate."""
        shown = self.options.cert_path
        if not shown:
            return (
                "it may ask clients for a certificate: set tls.client.certPath and "
                "tls.client.keyPath (cert_path and key_path, --tls-cert and --tls-key)"
            )
        return (
            f"it may refuse the client certificate {shown}: show one that is valid and signed by "
            "an authority in its tls.server.trustCertPath"
        )

    def explain(self, error: Exception, host: str) -> str:
        """Return why a connection failed, and what to do about it."""
        import ssl

        if isinstance(error, ssl.SSLCertVerificationError):
            return self._explain_certificate(error.verify_code, error.verify_message, host)
        reason = str(getattr(error, "reason", None) or error)
        if "ALERT" in reason and any(each in reason for each in _CERTIFICATE_ALERTS):
            return f"TLS: it answered {reason}: {self.certificate_hint}"
        if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
            return "TLS: it answered without TLS: turn TLS off for it, or set its tls.server.mode"
        if isinstance(error, ssl.SSLError | ConnectionError):
            return (
                f"TLS: it closed the connection during the handshake ({reason}): it may not serve "
                "TLS (tls.server.mode), or refuse this client's certificate"
            )
        return f"cannot connect: {reason_of(error)}"

    def _explain_certificate(self, code: int, message: str, host: str) -> str:
        if code == _EXPIRED:
            return "TLS: its certificate has expired: renew the file in its tls.server.certPath"
        if code == _NOT_YET_VALID:
            return "TLS: its certificate is not valid yet: compare the clocks of both machines"
        if code in _OTHER_NAME:
            return (
                f"TLS: its certificate was not issued for {host}: issue one with that name or "
                "address, or set tls.client.checkHostName=false (check_host_name)"
            )
        trusted = self.options.ca_path or "this machine's authorities"
        if code in _UNKNOWN_ISSUER:
            return (
                f"TLS: its certificate is not signed by an authority in {trusted}: set "
                "tls.client.trustCertPath (ca_path, --tls-ca) to the authority that signed it"
            )
        return f"TLS: its certificate cannot be verified: {message}"


#: Advice for a connection attempt without an answer.
SILENT_HINT: Final = ": check the address, and whether a firewall drops packets to it"


def reason_of(error: Exception) -> str:
    """Return why no connection could be made, and what to do about it."""
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens there ({error}): start the server, or correct the address"
    if isinstance(error, socket.gaierror):
        return f"the host name cannot be resolved ({error}): check its spelling and the DNS"
    return f"{error}: check the address and the network"


def _make_context(options: TlsOptions, check_host_name: bool) -> ssl.SSLContext:
    # Imported late: a process without TLS does not need it.
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = options.verify and check_host_name
    made.verify_mode = ssl.CERT_REQUIRED if options.verify else ssl.CERT_NONE
    if options.verify:
        _trust(made, options)
    if options.key_path and not options.cert_path:
        raise SettingsError("tlsClientCertPath", f"the key {options.key_path} needs a certificate")
    if options.cert_path:
        try:
            # Pass a password even if it is empty: otherwise OpenSSL asks for one at the terminal.
            made.load_cert_chain(
                options.cert_path, options.key_path or None, password=options.key_password
            )
        except OSError as error:  # SSLError is one
            raise SettingsError(
                "tlsClientCertPath",
                f"{options.cert_path} with the key {options.key_path or options.cert_path} cannot "
                f"be used: {error}; the key must fit the certificate, and tlsClientKeyPassword the "
                "key",
            ) from None
    return made


def _trust(context: ssl.SSLContext, options: TlsOptions) -> None:
    import ssl

    if not options.ca_path:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(options.ca_path)
        except OSError as error:
            raise SettingsError(
                "tlsClientTrustCertPath",
                f"{options.ca_path} cannot be used: {error}; it must have the certificate of an "
                "authority in PEM format",
            ) from None
    if not options.own_cert_path:
        return
    # Trust the certificate itself, without the authority that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=_first_certificate(options.own_cert_path))
    except (OSError, ValueError) as error:
        raise SettingsError(
            "tlsServerCertPath",
            f"{options.own_cert_path} cannot be used: {error}; it must begin with this server's "
            "certificate in PEM format",
        ) from None


def _first_certificate(path: str) -> str:
    """Return the first certificate of a file, the server's own one.

    The certificates after it are authorities. Trusting one would mean to trust all that it signed.
    """
    with open(path, "rb") as file:
        content = file.read()
    start = content.find(_PEM_BEGIN)
    end = content.find(_PEM_END, start)
    if start < 0 or end < 0:
        raise ValueError("it has no certificate")
    return content[start : end + len(_PEM_END)].decode("ascii")


def read_credentials(path: str) -> Credentials:
    """Read a YAML file with ``accessKey``, ``secretKey`` and, if needed, ``securityToken``.

    Raises SettingsError, which shows no content, for a file that cannot be used or that others than
    its owner and group may access.
    """
    import yaml

    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_CREDENTIALS_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError("credentials", f"{path}: {error.strerror or error}") from None
    if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
        raise SettingsError(
            "credentials", f"every user of this machine may access {path}: run chmod 600 {path}"
        )
    try:
        values = yaml.safe_load(content) if len(content) <= _CREDENTIALS_MAX_BYTES else None
    except (yaml.YAMLError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise SettingsError(
            "credentials", f"{path} must have the lines accessKey: ... and secretKey: ..."
        )
    names = ("accessKey", "secretKey", "securityToken")
    access_key, secret_key, token = (_text(values.get(name)) for name in names)
    try:
        return Credentials(access_key, secret_key, token)
    except SettingsError as error:
        raise SettingsError("credentials", f"{path}: {error.problem}") from None


async def watch_credentials(
    settings: OutgoingFields, use: Callable[[Credentials | None], None], clock: Clock
) -> None:
    """Pass the credentials to ``use`` now and whenever their path or file changes, until cancelled.

    If they cannot be used, log that; the former ones stay in use.
    """
    seen: tuple[str, object] | None = None
    while True:
        path = settings.credentials_path
        found = path, await asyncio.to_thread(file_times, path) if path else None
        if found != seen:
            seen = found
            try:
                use(await asyncio.to_thread(read_credentials, path) if path else None)
            except SettingsError as error:
                log.error("credentials not in use reason=%s", error)
        await clock.sleep_ms(CREDENTIALS_POLL_MS)


def _text(value: object) -> str:
    return "" if value is None else str(value)
