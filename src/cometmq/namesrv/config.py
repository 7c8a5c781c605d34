"""Settings of a name server (upstream: NamesrvConfig.java, NettyServerConfig.java)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.core.errors import SettingsError
from cometmq.core.settings import build, changed_fields, reject_unknown, to_wire_name
from cometmq.net.tls import ClientAuth, TlsFields, TlsMode


@dataclass(slots=True)
class NamesrvConfig(TlsFields):
    """Settings of one name server, built from text by core/settings.py.

    ``kv_config_path`` is the file of the key-value tables ("~" is the home folder).
    ``order_message_enable`` adds the order configuration of a topic to its route.
    ``remote_admin_enable`` lets other machines change permissions, topics and keys. With
    ``acl_enable`` such changes need an administrator of the ACL files below ``rocketmq_home``,
    which is the folder of the key-value tables unless it is set. A scan every
    ``expiry_scan_ms`` removes brokers that were silent for ``broker_expiry_ms``.
    """

    bind_address: str = "127.0.0.1"
    listen_port: int = 9876
    kv_config_path: str = "~/namesrv/kvConfig.json"
    order_message_enable: bool = False
    remote_admin_enable: bool = False
    acl_enable: bool = False
    rocketmq_home: str = ""
    broker_expiry_ms: int = 120_000
    expiry_scan_ms: int = 5_000
    tls_server_mode: TlsMode = TlsMode.DISABLED
    tls_server_cert_path: str = ""
    tls_server_key_path: str = ""
    tls_server_trust_cert_path: str = ""
    tls_server_need_client_auth: ClientAuth = ClientAuth.NONE


#: Fields that may change while the name server runs.
LIVE: Final = frozenset({"order_message_enable", "expiry_scan_ms"})


def change(config: NamesrvConfig, values: Mapping[str, str]) -> list[str]:
    """Change settings of a running name server, all of ``values`` or none; return changed fields.

    Values that are in force already are accepted for every key. Raise SettingsError for an unknown
    key, a bad value, or a setting that takes effect only at a start.
    """
    wanted, used = build(NamesrvConfig, values, config)
    reject_unknown(values, used, (NamesrvConfig,))
    changed = changed_fields(wanted, config)
    for name in changed:
        if name not in LIVE:
            raise SettingsError(
                to_wire_name(name),
                "it cannot be changed while the name server runs: set it at a start",
            )
    if wanted.expiry_scan_ms < 1:
        raise SettingsError("expiryScanMs", "it must be at least 1 ms")
    for name in changed:
        setattr(config, name, getattr(wanted, name))
    return changed
