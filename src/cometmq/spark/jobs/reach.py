"""The options by which a job connects to a live cluster: account and TLS, for reads, writes and the
client.

The secrets of the account come from a file, because the list of processes shows options. Only the
driver reads this file. Certificates must be on every machine that reads, under the same paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from cometmq.client.blocking import Client
from cometmq.core.errors import SettingsError
from cometmq.net.outgoing import read_credentials
from cometmq.spark.brokers import access
from cometmq.spark.jobs.job import JobOption
from cometmq.spark.options import BadOption, by_name

#: Names of the source's options, in lower case.
_OF_ACCOUNT: Final = frozenset({"accesskey", "secretkey", "securitytoken"})
_OF_ACCESS: Final = frozenset(map(str.lower, access.OPTIONS)) - {"nameservers", "readfrom"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The options of a job that reads a live cluster. An option with a TLS file switches TLS on."""

    credentials: Annotated[
        str, JobOption("File with accessKey and secretKey, as RocketMQ's conf/tools.yml.")
    ] = ""
    tls: Annotated[bool, JobOption("Connect with TLS.")] = False
    tls_ca: Annotated[str, JobOption("Certificates of the authorities to trust.")] = ""
    tls_cert: Annotated[str, JobOption("Certificate of this client.")] = ""
    tls_key: Annotated[str, JobOption("Private key of this client.")] = ""
    tls_check_host: Annotated[bool, JobOption("Check that certificates name the host, or not.")] = (
        True
    )
    read_options: Annotated[dict[str, str], JobOption("KEY=VALUE, an option of the source.")] = (
        field(default_factory=dict)
    )

    def source_options(self) -> dict[str, str]:
        """Return the options of the source: ``read_options``, and those from the other fields.

        Raises BadOption if an option comes from both, and for a file that cannot be used.
        """
        own = account_options(self.credentials) | self._tls_options()
        given = {name.lower(): name for name in self.read_options}
        for name in own:
            if name.lower() in given:
                raise BadOption(given[name.lower()], "is given in two ways: leave one out")
        return own | self.read_options

    def access_options(self) -> dict[str, str]:
        """Return the part of :meth:`source_options` that the sink takes too: account, TLS,
        timeout."""
        return {
            name: value
            for name, value in self.source_options().items()
            if name.lower() in _OF_ACCESS
        }

    def connect(self, nameservers: str) -> Client:
        """Return a client. Raises BadOption."""
        options = self.access_options() | {"nameservers": nameservers}
        found = access.parse(by_name(options, access.OPTIONS))
        return Client(nameservers, credentials=found.account, tls=found.tls)

    def _tls_options(self) -> dict[str, str]:
        files = {"tlsCaFile": self.tls_ca, "tlsCertFile": self.tls_cert, "tlsKeyFile": self.tls_key}
        found = {name: path for name, path in files.items() if path}
        if not self.tls_check_host:
            found["tlsCheckHostname"] = "false"
        return {"useTls": "true", **found} if found or self.tls else {}


def account_options(path: str) -> dict[str, str]:
    """Return the source's options for the account in a file; none without a file.

    Raises BadOption if it cannot be used.
    """
    if not path:
        return {}
    try:
        account = read_credentials(path)
    except SettingsError as error:
        raise BadOption("credentials", error.problem) from None
    found = {"accessKey": account.access_key, "secretKey": account.secret_key}
    return found | ({"securityToken": account.security_token} if account.security_token else {})


def without_account(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of the source without the account, for use with another cluster."""
    return {name: value for name, value in options.items() if name.lower() not in _OF_ACCOUNT}
