"""``cometmq dashboard``: serves the web page of a cluster until a stop signal."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cometmq.cli import serve
from cometmq.cli.command import Noun
from cometmq.cli.connect import Connected
from cometmq.cli.page import MISSING, PORT
from cometmq.cli.parser import Option
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError, SettingsError

noun = Noun("dashboard", "The web page of a cluster.")


@noun.command("", "dashboard -n 10.0.0.1:9876", "dashboard --port 0 --allow-changes")
async def dashboard(
    cluster: Connected,
    port: Annotated[int, Option("--port", min=0, max=65_535, help="Port; 0: a free one.")] = PORT,
    address: Annotated[
        str,
        Option(
            metavar="HOST", help="Address to listen on; other machines can reach any but loopback."
        ),
    ] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Host name of the page, besides addresses and localhost."),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        Option(
            metavar="ADDRESS",
            help="Address or network of a proxy whose X-Forwarded-For and -Proto are believed.",
        ),
    ] = None,
    allow_changes: Annotated[
        bool, Option("--allow-changes", help="Let the page change the cluster.")
    ] = False,
    schemas: Annotated[
        Path | None,
        Option(metavar="DIR", help="Schemas of bodies: TOPIC.avsc, TOPIC.MESSAGE.pb."),
    ] = None,
    stop_with_input: Annotated[
        bool, Option("--stop-with-input", help="Stop when standard input is closed.")
    ] = False,
) -> None:
    """Serve a web page that shows the cluster and, if allowed, changes it.

    The page is at the address that the ready line prints. It asks for an access key and a secret
    key if the brokers have accounts, or if this command was given one.
    """
    try:
        from cometmq.dashboard.app import running_dashboard
        from cometmq.dashboard.guard import Place
        from cometmq.dashboard.schemas import load_schemas
    except ImportError as error:
        raise CometError(f"{MISSING} ({error.name} is not installed)") from None

    stop = asyncio.Event()
    if stop_with_input:
        serve.on_end_of_input(stop.set)
    place = Place(address, port, tuple(host or ()), tuple(proxy or ()))
    running = running_dashboard(
        cluster.client,
        SystemClock(),
        place,
        allow_changes=allow_changes,
        defaults=_defaults(),
        schemas=load_schemas(schemas) if schemas is not None else None,
    )
    try:
        with serve.stop_signals(stop.set):
            async with running as url:
                print(f"ready dashboard={url}", flush=True)
                with suppress(asyncio.CancelledError):
                    await stop.wait()
    except OSError as error:
        raise SettingsError("--port", serve.explain(error)) from None


def _defaults() -> dict[str, str]:
    """Return the default settings of a CometMQ broker."""
    from cometmq.broker.config import BrokerConfig
    from cometmq.core.settings import to_properties
    from cometmq.store.config import StoreConfig

    return to_properties(BrokerConfig()) | to_properties(StoreConfig())
