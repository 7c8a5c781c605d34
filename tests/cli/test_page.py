"""The web page of a node: what it needs, and what its process is told."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.cli import page
from cometmq.cli.main import main
from cometmq.core.errors import CometError


def test_without_its_packages_a_node_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    assert main(["start", "--store", str(tmp_path / "store"), "--dashboard"]) == 2
    assert "pip install 'cometmq[dashboard]'" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_its_process_gets_the_node_and_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMETMQ_ACCESS_KEY", "COMETMQ_SECRET_KEY", "COMETMQ_CONTEXT", "NAMESRV_ADDR"):
        monkeypatch.setenv(name, "of another cluster")
    found = page._environment("127.0.0.1:9876", BrokerConfig())
    assert found["NAMESRV_ADDR"] == "127.0.0.1:9876"
    assert found["COMETMQ_TLS"] == "false"
    assert "of another cluster" not in found.values()
    tls = BrokerConfig(use_tls=True, tls_client_trust_cert_path="ca.pem")
    found = page._environment("127.0.0.1:9876", tls)
    assert (found["COMETMQ_TLS"], found["COMETMQ_TLS_CA"]) == ("true", "ca.pem")


async def test_a_page_that_cannot_start_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    try:
        with pytest.raises(CometError, match="the page did not start"):
            async with (
                asyncio.timeout(60),
                page.running_page("127.0.0.1:1", taken.getsockname()[1], BrokerConfig()),
            ):
                pass
    finally:
        taken.close()
    assert "address already in use" in capfd.readouterr().err


async def test_a_page_that_ends_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def recorded(*words: Any, **more: Any) -> asyncio.subprocess.Process:
        started.append(await start(*words, **more))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)
    async with asyncio.timeout(60), page.running_page("127.0.0.1:1", 0, BrokerConfig()):
        started[0].kill()
        await started[0].wait()
        while "dashboard_ended code=-9" not in caplog.text:
            await asyncio.sleep(0.01)
    caplog.clear()
    async with asyncio.timeout(60), page.running_page("127.0.0.1:1", 0, BrokerConfig()):
        pass
    assert not caplog.text, "an ordinary end is no error"
