"""The loop: uvloop where there is one, asyncio's where there is none."""

from __future__ import annotations

import asyncio
import sys

import pytest
import uvloop

from cometmq.net import runtime


async def loop_type() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_uvloop_runs_us() -> None:
    assert issubclass(runtime.run(loop_type()), uvloop.Loop)


def test_without_uvloop_asyncio_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert not issubclass(runtime.run(loop_type()), uvloop.Loop)
