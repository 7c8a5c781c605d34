"""Connects commands to a cluster: options, environment, context, client, event loop.

A setting comes from the first of these levels that has it. Credentials count as one setting, and
TLS as another:

    1. the options
    2. the context named by ``--context``
    3. the environment
    4. the current context, unless ``--context`` names another
    5. the default: a name server on this machine

An account and a client key are never used for a name server that a higher level names
(:meth:`Connection.over`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.cli import contexts
from cometmq.cli.contexts import Connection

if TYPE_CHECKING:
    from cometmq.admin.api import Admin
    from cometmq.admin.deadletters import DeadLetters
    from cometmq.admin.groups import Groups
    from cometmq.admin.messages import Messages
    from cometmq.admin.servers import Servers
    from cometmq.client.client import Client
    from cometmq.client.session import Session
    from cometmq.protocol.acl import Credentials

T = TypeVar("T")

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
CONTEXT_VARIABLE: Final = "COMETMQ_CONTEXT"
#: Environment variables by field of Connection.
VARIABLES: Final[Mapping[str, str]] = {
    "namesrv": "NAMESRV_ADDR",
    "access_key": "COMETMQ_ACCESS_KEY",
    "secret_key": "COMETMQ_SECRET_KEY",
    "security_token": "COMETMQ_SECURITY_TOKEN",
    "credentials": "COMETMQ_CREDENTIALS",
    "tls": "COMETMQ_TLS",
    "tls_ca": "COMETMQ_TLS_CA",
    "tls_cert": "COMETMQ_TLS_CERT",
    "tls_key": "COMETMQ_TLS_KEY",
    "tls_key_password": "COMETMQ_TLS_KEY_PASSWORD",
    "tls_verify": "COMETMQ_TLS_VERIFY",
    "tls_check_host": "COMETMQ_TLS_CHECK_HOST",
}
#: Help of the options that name a file, by field of Connection.
FILES: Final[Mapping[str, str]] = {
    "credentials": "File with accessKey and secretKey, as RocketMQ's conf/tools.yml.",
    "tls_ca": "Certificates of the authorities to trust.",
    "tls_cert": "Certificate of this client.",
    "tls_key": "Private key of this client.",
}
SWITCHES: Final[Mapping[str, str]] = {
    "tls": "Connect with TLS, or without.",
    "tls_verify": "Check certificates of servers, or accept all.",
    "tls_check_host": "Check that certificates name the host, or not.",
}


@dataclass(frozen=True, slots=True)
class Connected:
    """The open client of a command, and the operations on its cluster."""

    client: Client
    admin: Admin
    connection: Connection

    @property
    def groups(self) -> Groups:
        """Operations on consumer groups."""
        from cometmq.admin.groups import Groups

        return Groups(self.admin)

    @property
    def messages(self) -> Messages:
        """Operations on stored messages."""
        from cometmq.admin.messages import Messages

        return Messages(self.admin)

    @property
    def dead_letters(self) -> DeadLetters:
        """Operations on dead letters."""
        from cometmq.admin.deadletters import DeadLetters

        return DeadLetters(self.admin)

    @property
    def servers(self) -> Servers:
        """Operations on brokers and name servers."""
        from cometmq.admin.servers import Servers

        return Servers(self.admin)

    @property
    def session(self) -> Session:
        """The client's session."""
        return self.client.session


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the cluster is."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "-n", "--namesrv", default="", metavar="HOST:PORT",
        help=f"Name servers, separated by ';' (default: {DEFAULT_NAMESRV}; "
        f"environment: {VARIABLES['namesrv']}).",
    )  # fmt: skip
    for name, text in FILES.items():
        group.add_argument(_word(name), default="", metavar="FILE", help=text)
    for name, text in SWITCHES.items():
        group.add_argument(
            _word(name), action=argparse.BooleanOptionalAction, default=None, help=text
        )
    group.add_argument(
        "--context", default="", metavar="NAME", dest="context_name",
        help=f"Context to use (see cometmq context; environment: {CONTEXT_VARIABLE}).",
    )  # fmt: skip


def _word(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def connection_of(options: argparse.Namespace) -> Connection:
    """Return the connection that options, environment and contexts make together.

    Raises SettingsError for an unknown context.
    """
    files = {name: getattr(options, name) for name in FILES}
    switches = {name: getattr(options, name) for name in SWITCHES}
    chosen = {name: str(on).lower() for name, on in switches.items() if on is not None}
    given = Connection(namesrv=options.namesrv, **files, **chosen)
    environment = Connection(**{key: os.environ.get(name, "") for key, name in VARIABLES.items()})
    default = Connection(namesrv=DEFAULT_NAMESRV)
    if options.context_name:
        named = contexts.load().get(options.context_name)
        return given.over(named).over(environment).over(default)
    if given.namesrv and not given.credentials and environment.has_any(contexts.CREDENTIALS):
        print(
            f"cometmq: warning: the account of the environment is not used for -n: set "
            f"{VARIABLES['namesrv']} instead, or use --credentials",
            file=sys.stderr,
        )
    current = _current()
    if not (given.namesrv or environment.namesrv) and current.has_any(contexts.TLS):
        # The name servers come from the context: a variable must not weaken its TLS.
        environment = environment.without(contexts.TLS)
    return given.over(environment).over(current).over(default)


def _current() -> Connection:
    known = contexts.load()
    name = os.environ.get(CONTEXT_VARIABLE, "") or known.current
    return known.get(name) if name else Connection()


def client(connection: Connection) -> Client:
    """Return a client that is not open yet.

    Raises SettingsError for an invalid address and for credentials that cannot be used.
    """
    from cometmq.client.client import Client
    from cometmq.net.outgoing import TlsOptions

    tls = TlsOptions(
        connection.tls_ca,
        connection.tls_cert,
        connection.tls_key,
        connection.tls_key_password,
        verify=connection.tls_verify != "false",
        check_host_name=connection.tls_check_host != "false",
    )
    # Any other TLS setting turns TLS on, unless ``tls`` turns it off.
    wanted = connection.tls == "true" or (not connection.tls and tls != TlsOptions())
    return Client(
        connection.namesrv or DEFAULT_NAMESRV,
        tls=tls if wanted else None,
        credentials=_credentials(connection),
    )


def _credentials(connection: Connection) -> Credentials | None:
    from cometmq.net.outgoing import read_credentials
    from cometmq.protocol.acl import Credentials

    if connection.credentials:
        return read_credentials(connection.credentials)
    if connection.access_key or connection.secret_key:
        return Credentials(connection.access_key, connection.secret_key, connection.security_token)
    return None


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[Connected]:
    """Run the block with an open client of the cluster that the options select."""
    from cometmq.admin.api import Admin

    connection = connection_of(options)
    async with client(connection) as opened:
        yield Connected(opened, Admin(opened.session), connection)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; interrupting it raises KeyboardInterrupt."""
    from cometmq.net import eventloop

    return eventloop.run(main)
