"""Name servers from an HTTP server: a Java broker and ours ask the same one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.addressing import address_service
from tests.broker.serving import running_broker
from tests.compat import anchor
from tests.compat.conftest import SharedPeers
from tests.namesrv.serving import until


def test_both_brokers_find_the_same_name_server(
    jars: Path, peers: SharedPeers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers.stop_java()
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with address_service() as service:
        settings = service.settings | {"rmqAddressServerSubGroup": "nsaddr-test"}
        eager = settings | {"registerNameServerPeriod": "10000"}
        java = anchor.JavaCluster(jars, tmp_path / "java", eager)
        service.text = f"{java.namesrv}\n"
        conf = java.home / "conf" / "broker.conf"
        lines = conf.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith("namesrvAddr=")]
        conf.write_text("".join(kept), encoding="utf-8")
        with java.until_killed():
            java_asked = list(service.asked)
            assert set(java_asked) == {"/rocketmq/nsaddr-test"}
            service.asked.clear()

            async def ours() -> None:
                async with running_broker(tmp_path / "b", None, **settings, brokerName="b") as own:
                    await until(lambda: own.broker.registered == [java.namesrv])
                    code = anchor.route_code(java.namesrv, "b")  # its own topic
                    assert code == 0

            asyncio.run(ours())
            assert set(service.asked) == set(java_asked)
