"""``cometmq config``: what settings mean, and those of running brokers."""

from __future__ import annotations

from typing import Annotated

from cometmq.cli.command import Noun
from cometmq.cli.commands.broker import (
    AppliedRow,
    BrokerOption,
    ClusterName,
    KeyValue,
    applied,
    settings_rows,
)
from cometmq.cli.configuration import Explanation, parse_settings
from cometmq.cli.configuration import explain as explain_key
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument
from cometmq.cli.render import Result

config = Noun("config", "Settings: explain them, show and change those of running brokers.")


@config.command("explain", "config explain fileReservedTime", "config explain abortFile")
def explain(key: Annotated[str, Argument("KEY")]) -> Result[Explanation]:
    """Say what a setting means, and how RocketMQ differs.

    Shown are its default, unit and range, and whether it may change while the server runs. An
    unknown key is an error that names the nearest ones.
    """
    found = explain_key(key)
    return Result(found, shown=found[0] if len(found) == 1 else None)


Keys = Annotated[list[str] | None, Argument("KEY", "Only these settings.")]


@config.command("get", "config get flushDiskType", "config get --broker broker-a")
async def get(
    opened: Connected, keys: Keys = None, broker: BrokerOption = "", cluster: ClusterName = ""
) -> Result[KeyValue]:
    """Show settings of brokers, without secrets."""
    return settings_rows(await opened.servers.broker_settings(broker, cluster), keys)


@config.command("set", "config set maxMessageSize=8388608 --broker broker-a", does="updated")
async def set_(
    opened: Connected,
    pairs: Annotated[list[str], Argument("KEY=VALUE", "Settings to change.")],
    broker: BrokerOption = "",
    cluster: ClusterName = "",
) -> Result[AppliedRow]:
    """Change settings of running brokers, of all or of one; they keep them after restarts."""
    return applied(await opened.servers.update_brokers(parse_settings(pairs), broker, cluster))
