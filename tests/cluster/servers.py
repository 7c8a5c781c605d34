"""Name servers and brokers as processes of their own, to be killed and started again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from cometmq.admin.node import VIP_DISTANCE, NodeProcess, lasting_port
from cometmq.testing.cluster import SMALL_FILES


class NamesrvProcess(NodeProcess):
    """``cometmq namesrv`` on a port that a restart keeps."""

    def __init__(self, home: Path, **settings: str) -> None:
        super().__init__(home / "namesrv", namesrv_port=lasting_port(), settings=settings)
        home.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "cometmq.cli", "namesrv", "--stop-with-input"]
        words += ["--port", self.namesrv.rpartition(":")[2]]
        for key, value in {**self.settings, "kvConfigPath": f"{self.store}.json"}.items():
            words += ["--set", f"{key}={value}"]
        return words


class BrokerProcess(NodeProcess):
    """``cometmq broker`` on ports that a restart keeps. ``number`` is its id; 0 is the master."""

    def __init__(
        self,
        home: Path,
        namesrv: str,
        *,
        name: str = "broker-a",
        number: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        port = lasting_port(VIP_DISTANCE)
        super().__init__(home / f"{name}-{number}", broker_port=port)
        role = {"brokerRole": "SLAVE"} if number else {}
        self.settings = {
            **SMALL_FILES,
            "namesrvAddr": namesrv,
            "brokerName": name,
            "brokerId": str(number),
            "listenPort": str(port),
            "storePathRootDir": str(self.store),
            **role,
            **(settings or {}),
        }

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "cometmq.cli", "broker", "--stop-with-input"]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={value}"]
        return words
