"""Detection of other masters with the same broker name, through the name servers.

Two masters with one name store sends that never come together. It happens if an old master is
started again after its slave was promoted, or if a slave is promoted by force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import CometError
from cometmq.protocol.bodies import ClusterInfo
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting

log = logging.getLogger(__name__)

INTERVAL_MS: Final = 30_000
_TIMEOUT_MS: Final = 3_000


async def master_at(remoting: Remoting, server: str, broker_name: str) -> str | None:
    """Return the address of the master that a name server lists under a name.

    Return "" if it lists none, and None if it does not answer.
    """
    try:
        response = await remoting.call(
            server, RequestCode.GET_BROKER_CLUSTER_INFO, None, timeout_ms=_TIMEOUT_MS
        )
        known = parse_json(response.body, ClusterInfo).broker_addr_table.get(broker_name)
    except (CometError, ValueError):
        return None
    return "" if known is None else known.broker_addrs.get("0", "")


class Rivals:
    """Looks for other masters of ``broker_name``; ``own`` are this broker's own addresses."""

    def __init__(
        self,
        broker_name: str,
        own: Set[str],
        name_servers: Sequence[str],
        *,
        remoting: Remoting,
        clock: Clock,
    ) -> None:
        self._name = broker_name
        self.own = set(own)
        self._servers = list(name_servers)
        self._remoting = remoting
        self._clock = clock
        self.found: list[str] = []

    async def run_forever(self) -> None:
        """Look at once, and then at every INTERVAL_MS, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep_ms(INTERVAL_MS)

    async def look(self) -> None:
        """Ask all name servers once, and log newly found masters."""
        answers = await asyncio.gather(
            *(master_at(self._remoting, server, self._name) for server in self._servers)
        )
        found = sorted({at for at in answers if at and at not in self.own})
        for address in set(found) - set(self.found):
            log.error(
                "another_master name=%s address=%s reason=%r",
                self._name, address,
                "two brokers accept sends under one name, and each lacks what the other stores: "
                "stop one of them, and start it as a slave with haRejoin=truncate",
            )  # fmt: skip
        self.found = found
