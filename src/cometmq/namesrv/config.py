"""Settings of a name server (upstream: NamesrvConfig.java, NettyServerConfig.java)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.core.errors import SettingsError
from cometmq.core.javakeys import ignored_keys, ignored_notice
from cometmq.core.settings import (
    OURS,
    build,
    changed_fields,
    check_ranges,
    convert,
    live_fields,
    raise_all,
    reject_unknown,
    setting,
    to_wire_name,
)
from cometmq.net.limits import LimitFields
from cometmq.net.tls import TlsFields


@dataclass(slots=True)
class NamesrvConfig(TlsFields, LimitFields):
    """Settings of one name server, built from text by core/settings.py."""

    bind_address: str = setting(
        "127.0.0.1",
        "address that the name server listens on",
        rocketmq=OURS,
    )
    listen_port: int = setting(
        9876,
        "port that it listens on; 0 picks a free one",
        least=0,
        most=65535,
    )
    kv_config_path: str = setting(
        "~/namesrv/kvConfig.json",
        "the file of the key-value tables; `~` is the home directory",
    )
    order_message_enable: bool = setting(
        False,
        "whether routes carry the order configuration of their topic",
        live=True,
    )
    remote_admin_enable: bool = setting(
        False,
        "whether other machines may change permissions, topics and keys",
        rocketmq=OURS,
    )
    acl_enable: bool = setting(
        False,
        "whether such changes need an administrator of the ACL files",
        see="how-to/access-control.md#name-servers",
    )
    rocketmq_home: str = setting(
        "",
        "folder that has `conf/plain_acl.yml` and `conf/acl`; defaults to the folder of "
        "`kvConfigPath`",
    )
    broker_expiry_ms: int = setting(
        120_000,
        "a broker that sends nothing for this long is removed",
        unit="ms",
        least=1,
        rocketmq=OURS,
    )
    expiry_scan_ms: int = setting(
        5_000,
        "how often the name server looks for such brokers",
        unit="ms",
        least=1,
        live=True,
        rocketmq=OURS,
    )

    def __post_init__(self) -> None:
        check_ranges(self)


#: Fields that may change while the name server runs.
LIVE: Final = live_fields(NamesrvConfig)


def load(values: Mapping[str, str]) -> tuple[NamesrvConfig, list[str]]:
    """Build the settings of a name server from RocketMQ's property names, with notices for the log.

    Raise one SettingsError for all unknown keys and bad values.
    """
    problems: list[SettingsError] = []
    taken, used = convert(NamesrvConfig, values, problems)
    ignored = ignored_keys(values, used, (NamesrvConfig,), problems)
    raise_all(problems)
    return NamesrvConfig(**taken), [ignored_notice(ignored)] if ignored else []


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
    for name in changed:
        setattr(config, name, getattr(wanted, name))
    return changed
