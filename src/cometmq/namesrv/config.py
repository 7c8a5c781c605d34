"""Settings of a name server (upstream: NamesrvConfig.java, NettyServerConfig.java)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamesrvConfig:
    """Settings of one name server, built from text by core/settings.py.

    ``kv_config_path`` is the file of the key-value tables ("~" is the home folder).
    ``order_message_enable`` adds the order configuration of a topic to its route.
    ``remote_admin_enable`` lets other machines change permissions, topics and keys. A scan every
    ``expiry_scan_ms`` removes brokers that were silent for ``broker_expiry_ms``.
    """

    bind_address: str = "127.0.0.1"
    listen_port: int = 9876
    kv_config_path: str = "~/namesrv/kvConfig.json"
    order_message_enable: bool = False
    remote_admin_enable: bool = False
    broker_expiry_ms: int = 120_000
    expiry_scan_ms: int = 5_000
