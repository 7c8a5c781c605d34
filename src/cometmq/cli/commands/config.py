"""``cometmq config``: what the settings of servers mean."""

from __future__ import annotations

from typing import Annotated

from cometmq.cli.command import Noun
from cometmq.cli.configuration import Explanation
from cometmq.cli.configuration import explain as explain_key
from cometmq.cli.parser import Argument

config = Noun("config", "Settings of servers: what a key means.")


@config.command("explain", "config explain fileReservedTime", "config explain abortFile")
def explain(key: Annotated[str, Argument("KEY")]) -> list[Explanation]:
    """Say what a setting means, and how RocketMQ differs.

    Shown are its default, unit and range, and whether it may change while the server runs. An
    unknown key is an error that names the nearest ones.
    """
    return explain_key(key)
