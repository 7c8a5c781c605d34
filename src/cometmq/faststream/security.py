"""Conversion of FastStream's security objects to settings of the client."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext

from cometmq.net.outgoing import TlsOptions
from cometmq.protocol.acl import Credentials

if TYPE_CHECKING:
    from cometmq.client.config import ClientConfig


def secured(config: ClientConfig, security: BaseSecurity | None) -> ClientConfig:
    """Return ``config`` with the account and TLS of ``security``; values in ``config`` win.

    The user name is an access key, and the password its secret key. Raises SetupError for
    mechanisms that RocketMQ does not have, and for an ``ssl_context``: the client makes its own.
    """
    if security is None:
        return config
    if type(security) not in (BaseSecurity, SASLPlaintext):
        raise SetupError(
            f"RocketMQ has no {type(security).__name__}: use SASLPlaintext(access_key, secret)"
        )
    if security.ssl_context is not None:
        raise SetupError(
            "the client makes its own TLS context: pass use_ssl=True, and files of certificates as "
            "config=ClientConfig.recommended(name_servers, tls=TlsOptions(ca_path=...))"
        )
    if security.use_ssl and config.tls is None:
        config = replace(config, tls=TlsOptions())
    if isinstance(security, SASLPlaintext) and config.credentials is None:
        config = replace(config, credentials=Credentials(security.username, security.password))
    return config
