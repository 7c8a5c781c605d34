"""What a name server can be told (upstream: NamesrvConfig.java, NettyServerConfig.java)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamesrvConfig:
    """Settings of one name server; text becomes this through core/settings.py.

    ``kv_config_path`` is the file of the key-value tables ("~" is the home folder). With
    ``order_message_enable`` routes carry the order configuration of their topic;
    ``remote_admin_enable`` lets other machines change permissions, topics and keys. A broker that
    is silent for ``broker_expiry_ms`` is found gone by the scan every ``expiry_scan_ms``.
    """

    bind_address: str = "127.0.0.1"
    listen_port: int = 9876
    kv_config_path: str = "~/namesrv/kvConfig.json"
    order_message_enable: bool = False
    remote_admin_enable: bool = False
    broker_expiry_ms: int = 120_000
    expiry_scan_ms: int = 5_000
