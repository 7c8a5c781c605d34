"""Settings of a name server (upstream: NamesrvConfig.java, NettyServerConfig.java)."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import SettingsError
from cometmq.core.javakeys import ignored_keys, ignored_notice
from cometmq.core.settings import (
    OURS,
    changed_fields,
    check_ranges,
    convert,
    live_fields,
    raise_all,
    setting,
    to_wire_name,
)
from cometmq.monitoring.config import MonitoringFields
from cometmq.net.limits import LimitFields
from cometmq.net.tls import TlsFields
from cometmq.store.files import PosixFiles
from cometmq.store.settingsfile import read_kept_settings

if TYPE_CHECKING:
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

#: Ending of the file of the settings that were changed while the name server ran. It replaces the
#: extension of the key-value file's name.
SETTINGS_SUFFIX: Final = "-settings.properties"


@dataclass(slots=True)
class NamesrvConfig(TlsFields, LimitFields, MonitoringFields):
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

    _: KW_ONLY
    # One port above that of a broker, which may run on the same machine.
    metrics_prom_exporter_port: int = setting(
        5558,
        "port for that; 0 picks a free one",
        least=0,
        most=65535,
        rocketmq="a setting of RocketMQ 5",
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


def plan_change(config: NamesrvConfig, values: Mapping[str, str]) -> NamesrvConfig:
    """Return the settings after a change to ``values``; ``config`` itself does not change.

    Raise one SettingsError for all unknown keys, bad values, and changes of settings that take
    effect only at a start.
    """
    problems: list[SettingsError] = []
    taken, used = convert(NamesrvConfig, values, problems)
    ignored_keys(values, used, (NamesrvConfig,), problems)
    problems += [
        SettingsError(
            to_wire_name(name),
            "it cannot be changed while the name server runs: set it at a start",
            is_unusable=False,
        )
        for name, wanted in taken.items()
        if name not in LIVE and getattr(config, name) != wanted
    ]
    raise_all(problems)
    return replace(config, **taken)


def apply(config: NamesrvConfig, wanted: NamesrvConfig) -> list[str]:
    """Change ``config`` to the ``wanted`` settings; return the names of the changed fields."""
    changed = changed_fields(wanted, config)
    for name in changed:
        setattr(config, name, getattr(wanted, name))
    return changed


def kept_path(config: NamesrvConfig) -> str:
    """Return the path of the file of the settings that were changed while the name server ran.

    It is derived from the key-value file, so name servers that share a folder have different files.
    """
    path = os.path.abspath(os.path.expanduser(config.kv_config_path))
    return os.path.splitext(path)[0] + SETTINGS_SUFFIX


def apply_kept(config: NamesrvConfig, files: Files | None = None) -> dict[str, str]:
    """Apply settings that were changed in earlier runs to ``config``; return the file's content.

    A key that cannot be changed while a name server runs is ignored with a warning. Raise
    SettingsError for values that cannot be used, OSError if the file cannot be read.
    """
    path = kept_path(config)
    kept = read_kept_settings(path, files or PosixFiles())
    for key, value in kept.items():
        try:
            wanted = plan_change(config, {key: value})
        except SettingsError as error:
            if error.is_unusable:
                raise SettingsError(key, error.problem, where=path) from None
            log.warning("kept_setting_ignored key=%s reason=%s", key, error.problem)
            continue
        if apply(config, wanted):
            log.warning("kept_setting_overrides key=%s value=%s path=%s", key, value, path)
    return kept
