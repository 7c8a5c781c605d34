"""``cometmq tls``: a private certificate authority in a folder, and certificates that it signs.

    ca.pem      the authority: clients and servers trust it
    ca.key      its key; only needed to sign further certificates
    NAME.pem    a certificate, and NAME.key its key

Keys are on the curve P-256, in PKCS 8 and PEM without a password, as Java reads them. All files are
of mode 0600, and none is ever overwritten. The package ``cryptography`` makes them (the extra
``cometmq[tls]``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cometmq.cli.command import Noun
from cometmq.cli.contexts import write_private
from cometmq.cli.parser import Argument, Option
from cometmq.cli.render import Result
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError, SettingsError
from cometmq.core.hosts import is_ip_address

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_DAYS: Final = 3_650
DAYS: Final = 730
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
#: A certificate is valid from this long before now, because other machines' clocks may be behind.
_EARLIER: Final = timedelta(hours=1)
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST: Final = re.compile(r"(?:\*\.)?[A-Za-z0-9][A-Za-z0-9.-]{0,250}")


tls = Noun("tls", "A private certificate authority, and certificates for servers and clients.")

Hosts = Annotated[
    list[str] | None,
    Option("--host", metavar="NAME", help="Host name or address that others connect to."),
]
Days = Annotated[int, Option(min=1, max=CA_DAYS, help="Days until the certificates expire.")]


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, as files. ``hosts`` is empty for an authority and a client."""

    name: str
    certificate: str
    key: str
    hosts: list[str]
    expires_at: datetime


@tls.command("init", "tls init certificates --host broker-1.internal --host 10.1.2.3", does="made")
def init(
    directory: Annotated[Path, Argument("DIR")], host: Hosts = None, days: Days = DAYS
) -> Result[Issued]:
    """Make an authority, a certificate for servers on the hosts, and one for clients.

    Certificates of servers also name this machine's loopback addresses. No file is overwritten. The
    lines that are printed go to the property files of brokers and name servers.
    """
    hosts = host or []
    _check_hosts(hosts)
    _check_absent(directory, ("ca", "server", "client"))
    key = _new_key()
    authority = _authority(key, directory.resolve().name)
    expires = authority.not_valid_after_utc
    made = [_write(directory, "ca", authority, key, (), expires)]
    made.append(_issue(directory, "server", (*hosts, *_LOOPBACK), authority, key, days))
    made.append(_issue(directory, "client", (), authority, key, days))
    notes = (
        "Settings of brokers and name servers:",
        *(f"    {line}" for line in settings_lines(made)),
        "Clients without TLS are refused; tls.server.mode=permissive serves them too, without any "
        "certificate.",
        f"Clients: --tls-ca {made[0].certificate}",
        f"Keep {made[0].key} in a safe place: with it anyone makes certificates that are trusted.",
    )
    return Result(made, notes)


@tls.command("issue", "tls issue certificates broker-2 --host broker-2.internal", does="made")
def issue(
    directory: Annotated[Path, Argument("DIR")],
    name: Annotated[str, Argument("NAME", "Name of the files.")],
    host: Hosts = None,
    days: Days = DAYS,
) -> Issued:
    """Make a further certificate of an authority that tls init made; without hosts for a client.

    To replace a certificate that expires, issue one under another name and change the settings.
    """
    hosts = host or []
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    _check_hosts(hosts)
    if not _FILE_NAME.fullmatch(name) or name == "ca":
        raise SettingsError("name", f"{name!r} is no name for a file: use letters and digits")
    _check_absent(directory, (name,))
    paths = [directory / "ca.pem", directory / "ca.key"]
    try:
        pem, key_pem = (path.read_bytes() for path in paths)
        authority = x509.load_pem_x509_certificate(pem)
        key = load_pem_private_key(key_pem, None)
    except FileNotFoundError as error:
        raise SettingsError(
            "directory", f"there is no {error.filename}: make an authority with cometmq tls init"
        ) from None
    except (ValueError, TypeError) as error:
        raise SettingsError("directory", f"{paths[0]} or {paths[1]}: {error}") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise SettingsError("directory", f"{paths[1]} is not a key that cometmq tls init made")
    named = (*hosts, *_LOOPBACK) if hosts else ()
    return _issue(directory, name, named, authority, key, days)


def settings_lines(made: Iterable[Issued]) -> list[str]:
    """Return lines for a property file of brokers and name servers that use these files."""
    found = {each.name: each for each in made}
    authority, server = found["ca"], found["server"]
    return [
        "tls.server.mode=enforcing",
        f"tls.server.certPath={server.certificate}",
        f"tls.server.keyPath={server.key}",
        f"tls.server.trustCertPath={authority.certificate}",
        f"tls.client.trustCertPath={authority.certificate}",
        f"tls.client.certPath={server.certificate}",
        f"tls.client.keyPath={server.key}",
    ]


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        if not is_ip_address(host) and not _HOST.fullmatch(host):
            raise SettingsError("host", f"{host[:80]!r} is neither a host name nor an address")


def _check_absent(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        for path in (directory / f"{name}.pem", directory / f"{name}.key"):
            if path.exists():
                raise SettingsError(
                    "directory", f"{path} exists; it is not overwritten: choose another or move it"
                )


def _new_key() -> EllipticCurvePrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise CometError(
            "the package cryptography makes certificates: pip install 'cometmq[tls]'"
        ) from None
    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    # A common name has at most 64 characters.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _authority(key: EllipticCurvePrivateKey, text: str) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    name = _name(f"CometMQ authority {text}")
    builder = _builder(name, name, key, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
    usage = {each: each in ("key_cert_sign", "crl_sign") for each in _USAGES}
    builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    return builder.sign(key, SHA256())


_USAGES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
    "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def _issue(
    directory: Path,
    name: str,
    hosts: Sequence[str],
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
    days: int,
) -> Issued:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

    key = _new_key()
    builder = _builder(_name(hosts[0] if hosts else name), authority.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    usage = {each: each == "digital_signature" for each in _USAGES}
    builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    # Servers connect to each other with the same certificate.
    usages = [Usage.SERVER_AUTH, Usage.CLIENT_AUTH] if hosts else [Usage.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    named = tuple(dict.fromkeys(hosts))
    if named:
        names: list[x509.GeneralName] = [
            x509.IPAddress(ip_address(host)) if is_ip_address(host) else x509.DNSName(host)
            for host in named
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    signed = builder.sign(authority_key, SHA256())
    return _write(directory, name, signed, key, named, signed.not_valid_after_utc)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.fromtimestamp(SystemClock().wall_ms() // 1_000, UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(identifier, critical=False)
    )


def _write(
    directory: Path,
    name: str,
    certificate: x509.Certificate,
    key: EllipticCurvePrivateKey,
    hosts: tuple[str, ...],
    expires: datetime,
) -> Issued:
    from cryptography.hazmat.primitives import serialization as pem

    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    cert_path, key_path = (directory.resolve() / f"{name}.{kind}" for kind in ("pem", "key"))
    write_private(key_path, text)
    try:
        write_private(cert_path, certificate.public_bytes(pem.Encoding.PEM))
    except BaseException:
        key_path.unlink()
        raise
    return Issued(name, str(cert_path), str(key_path), list(hosts), expires)
