"""Runs the web page of a node in a child process, for ``cometmq start --dashboard``.

The child process keeps work off the broker's event loop, and connects to the node as any client
does. Its environment has the address and the TLS settings of the node, and no account: with access
control, the page asks for one. It ends when this process ends, because its standard input then
closes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from cometmq.cli.connect import CONTEXT_VARIABLE, VARIABLES
from cometmq.core.errors import CometError, SettingsError
from cometmq.net.tasks import Tasks

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from cometmq.broker.config import BrokerConfig

log = logging.getLogger(__name__)

#: Default port of the page; the same as DASHBOARD_PORT of servers.py.
PORT: Final = 9880
MISSING: Final = "the page needs more packages: pip install 'cometmq[dashboard]'"
_READY_S: Final = 30
_STOP_S: Final = 5


def require_packages() -> None:
    """Raise SettingsError if the packages of the page are not installed."""
    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "jinja2")):
        raise SettingsError("--dashboard", MISSING)


@asynccontextmanager
async def running_page(namesrv: str, port: int, broker: BrokerConfig) -> AsyncIterator[str]:
    """Run the page of a node during the block; yield its URL. Raises CometError."""
    words = ["dashboard", "--port", str(port), "--stop-with-input"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cometmq.cli", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env=_environment(namesrv, broker),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    tasks = Tasks()
    try:
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                line = await process.stdout.readline()
        url = line.decode().strip().partition("ready dashboard=")[2]
        if not url:
            raise CometError(
                "the page did not start: see its lines above, or leave out --dashboard"
            )
        tasks.spawn(_report_end(process), name="page process")
        yield url
    finally:
        await tasks.close()
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _report_end(process: Process) -> None:
    """Log the end of a page that ends before its node; the node goes on without it."""
    code = await process.wait()
    log.error("dashboard_ended code=%d hint='cometmq dashboard' starts it again", code)


def _environment(namesrv: str, broker: BrokerConfig) -> dict[str, str]:
    """Return this process's environment, with the node's address and TLS as its only connection."""
    taken = {CONTEXT_VARIABLE, *VARIABLES.values()}
    found = {key: value for key, value in os.environ.items() if key not in taken}
    found[VARIABLES["namesrv"]] = namesrv
    found[VARIABLES["tls"]] = str(broker.connects_with_tls).lower()
    if broker.connects_with_tls:
        tls = broker.client_tls
        values = {
            "tls_ca": tls.ca_path, "tls_cert": tls.cert_path, "tls_key": tls.key_path,
            "tls_key_password": tls.key_password, "tls_verify": str(tls.verify).lower(),
            "tls_check_host": str(tls.check_host_name).lower(),
        }  # fmt: skip
        found.update((VARIABLES[name], value) for name, value in values.items() if value)
    return found
