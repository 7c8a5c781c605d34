"""Certificates and accounts of a cluster, as settings and as a client's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme

from cometmq.cli.commands import tls
from cometmq.net.outgoing import TlsOptions
from cometmq.protocol.acl import Credentials

ADMIN: Final = Credentials("admin-key", "secret-of-admin")
WRONG: Final = Credentials("admin-key", "another-secret")
SELLER: Final = Credentials("seller-key", "secret-of-seller")

RULES: Final = """\
accounts:
- accessKey: admin-key
  secretKey: secret-of-admin
  admin: true
- accessKey: seller-key
  secretKey: secret-of-seller
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - pairs=PUB
"""


@dataclass(frozen=True, slots=True)
class Files:
    """Files below a folder: those of ``cometmq tls init`` (ca.pem, server.pem, client.pem and their
    keys), other.pem (an authority that signed none of them), conf/plain_acl.yml, tools.yml."""

    folder: Path

    def path(self, name: str) -> str:
        """The path of a file."""
        return str(self.folder / name)

    @property
    def server(self) -> dict[str, str]:
        """Settings of a server that serves TLS only."""
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": self.path("server.pem"),
            "tls.server.keyPath": self.path("server.key"),
        }

    @property
    def mutual(self) -> dict[str, str]:
        """Settings of a server that asks for certificates, and shows one to others."""
        return {
            **self.server,
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": self.path("ca.pem"),
            **self.client,
            "tls.client.certPath": self.path("client.pem"),
            "tls.client.keyPath": self.path("client.key"),
        }

    @property
    def client(self) -> dict[str, str]:
        """Settings of a server that trusts the authority of others."""
        return {"tls.client.trustCertPath": self.path("ca.pem")}

    @property
    def accounts(self) -> dict[str, str]:
        """Settings of a broker with accounts, which signs its own requests."""
        return {
            "aclEnable": "true",
            "rocketmqHome": str(self.folder),
            "credentialsPath": self.path("tools.yml"),
        }

    @property
    def options(self) -> TlsOptions:
        """A client that trusts the authority and shows its certificate."""
        return TlsOptions(self.path("ca.pem"), self.path("client.pem"), self.path("client.key"))


def make_files(folder: Path) -> Files:
    """Write the files."""
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    tls.init(folder)
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    (folder / "conf" / "plain_acl.yml").write_text(RULES)
    tools = folder / "tools.yml"
    tools.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    tools.chmod(0o600)
    return Files(folder)
