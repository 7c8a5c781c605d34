"""The programs of docs/client.md and of pages about its features run as they stand there."""

import ast
import asyncio
import re
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import cometmq
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT

ADDRESS = "127.0.0.1:9876"


def blocks(name: str) -> list[str]:
    """The programs of a page, in order."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


async def run(block: str, names: dict[str, Any]) -> None:
    """Runs a program that may wait outside of functions."""
    code = compile(block, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(code, names)
    if asyncio.iscoroutine(found):
        await found


async def test_the_client(cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    found = [each.replace(ADDRESS, cometmq_cluster.namesrv) for each in blocks("client.md")]
    first, *pieces, tls, blocking = found
    assert "async def main()" in first
    assert "TlsOptions" in tls
    async with cometmq.Client(cometmq_cluster.namesrv) as client:
        names: dict[str, Any] = {"cometmq": cometmq, "asyncio": asyncio, "client": client}
        for piece in pieces:
            async with asyncio.timeout(60):
                await run(piece, names)
    shown = capsys.readouterr().out
    assert "paid ('A17',) b'a body is bytes'" in shown
    assert "\nAnn\n" in shown
    # The first program and the blocking one go on until they are stopped.
    endless = first.replace("print(message.topic", "return print(message.topic")
    await asyncio.to_thread(exec, compile(endless, "page", "exec"), {"__name__": "page"})
    assert "regions update b'...'" in capsys.readouterr().out
    ended = blocking.replace("                ...\n", "                break\n")
    assert ended != blocking
    await asyncio.to_thread(exec, compile(ended, "page", "exec"), {})


@pytest.mark.cometmq_handler_errors(raises=cometmq.UndecodableMessage)
async def test_typed_messages(cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with cometmq.Client(cometmq_cluster.namesrv) as client:
        names: dict[str, Any] = {"cometmq": cometmq, "asyncio": asyncio, "client": client}
        for block in blocks("how-to/typed-messages.md"):
            async with asyncio.timeout(60):
                await run(block, names)
    shown = capsys.readouterr().out
    # The order of two queues is open.
    assert re.search(r"^(7 \('7',\)|9 \('9',\)|8 \('8',\))$", shown, re.MULTILINE)
    assert "{'price': 14}" in shown


async def test_observe_a_client(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    state, block = blocks("how-to/observe-a-client.md")
    provider = TracerProvider()
    given = block.replace("instrument(client)", "instrument(client, tracer_provider=provider)")
    async with cometmq.Client(cometmq_cluster.namesrv) as client:
        await run(given, {"client": client, "provider": provider})
        names: dict[str, Any] = {"client": client}
        await run(state, names)
        assert names["ready"]
    shown = capsys.readouterr().out
    assert re.search(r"^00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-9a-f]$", shown, re.MULTILINE)
