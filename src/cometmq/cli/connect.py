"""Shared by all commands that connect to a cluster: options, client and event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

from cometmq.client.client import Client
from cometmq.net import eventloop

T = TypeVar("T")

DEFAULT_NAMESRV = "127.0.0.1:9876"

Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv",
        "-n",
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT",
        help="Name servers, separated by ';'.",
        show_default=DEFAULT_NAMESRV,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


def client(namesrv: str) -> Client:
    """Return a client that is not open yet. Raises SettingsError for an invalid address."""
    return Client(namesrv or DEFAULT_NAMESRV)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; interrupting it raises KeyboardInterrupt."""
    return eventloop.run(main)
