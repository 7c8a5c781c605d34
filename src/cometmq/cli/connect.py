"""What every command that talks to a cluster has in common: where it is, and a loop to run in."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

from cometmq.client.client import Client
from cometmq.net import runtime

T = TypeVar("T")

DEFAULT_NAMESRV = "127.0.0.1:9876"

Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv",
        "-n",
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT",
        help="Name servers, several parted by ';'.",
        show_default=DEFAULT_NAMESRV,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def client(namesrv: str) -> Client:
    """A client, not yet open. Raises SettingsError for an address that is none."""
    return Client(namesrv or DEFAULT_NAMESRV)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; interrupting it raises KeyboardInterrupt."""
    return runtime.run(main)
