"""The loop: uvloop where there is one, asyncio's where there is none."""

from __future__ import annotations

import asyncio
import subprocess
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


def test_freed_memory_stays() -> None:
    # Four pieces that are taken and left together have 100 pages.
    program = """if True:
        import resource
        from cometmq.net import runtime
        assert runtime.keep_freed_memory()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(100):
            pieces = [b"x" * 100_000 for _ in range(4)]
            del pieces
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    assert int(subprocess.check_output([sys.executable, "-c", program])) < 1_000


def test_there_is_room_for_descriptors() -> None:
    program = """if True:
        from cometmq.net import runtime
        from cometmq.net.descriptors import open_files
        room = lambda: int(open("/proc/self/status").read().partition("FDSize:")[2].split()[0])
        wanted = min(open_files() or 16_384, 16_384)
        assert room() < wanted
        assert runtime.reserve_descriptors()
        assert room() >= wanted
        assert not runtime.reserve_descriptors(0)
    """
    subprocess.run([sys.executable, "-c", program], check=True)
