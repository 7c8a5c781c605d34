"""Machines of name servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NamesrvConfig
from tests.simulation.cluster.clock import SimClock
from tests.simulation.cluster.loop import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.loop import SimLoop
    from tests.simulation.cluster.network import Network

_NO_FILE: Final = "/nowhere/kvConfig.json"


class NameServerMachine:
    """Runs a name server, without a disk."""

    def __init__(self, loop: SimLoop, network: Network, host: str, port: int) -> None:
        self.name = "namesrv"
        self.host = host
        self.address = f"{host}:{port}"
        self.clock = SimClock(loop)
        self._loop = loop
        self._network = network
        self._config = NamesrvConfig(bind_address=host, listen_port=port, kv_config_path=_NO_FILE)
        self._process: Process | None = None
        self._starts = 0

    @property
    def is_up(self) -> bool:
        """True if a process runs."""
        return self._process is not None and self._process.alive

    def start(self) -> None:
        """Start a process."""
        self._starts += 1
        process = self._process = Process(f"namesrv-{self._starts}", self.host)
        reserve = self._network.reserver(process)

        async def main() -> None:
            await NameServer(self._config, self.clock, reserve=reserve).start()

        self._loop.launch(process, main())

    def kill(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()
