"""Chooses the broker of a master-slave group to ask while some of its brokers cannot be reached.

Requests that only a master serves go to the master alone. All other requests fail over: an address
that failed is avoided for a while, as long as another broker of the same name is left. The topic's
route is also fetched again at once, because name servers learn of a lost broker before the next
poll of the route is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client.routes import pull_address
from cometmq.core.errors import BrokerRefused, NotConnected, RequestTimedOut
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.route import MASTER_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.codes import RequestCode
    from cometmq.protocol.frame import Response
    from cometmq.protocol.headers import Header

AVOID_MS: Final = 10_000


class Replicas:
    """Chooses among the brokers of a name for one session."""

    __slots__ = ("_avoided", "_refreshing", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._avoided: dict[str, int] = {}
        self._refreshing: set[str] = set()

    def to_pull_from(self, broker_name: str, suggested_id: int) -> tuple[int, str] | None:
        """Return the broker id and address for a pull; None when no known route names the
        broker.
        """
        return pull_address(self._reachable(broker_name), suggested_id)

    async def any_of(self, queue: MessageQueue) -> str:
        """Return the address to query about a queue. Raises RouteNotFound or NotConnected.

        It is the queue's master while that can be reached, otherwise another broker of its name.
        """
        found = self.to_pull_from(queue.broker_name, MASTER_ID)
        return found[1] if found is not None else await self._session.master_of(queue)

    async def call(self, queue: MessageQueue, code: RequestCode, header: Header | None) -> Response:
        """Send a request as :meth:`ask`; raise BrokerRefused for any code but SUCCESS."""
        address, response = await self.ask(queue, code, header)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerRefused(address, code, response.code, response.remark or "")
        return response

    async def ask(
        self, queue: MessageQueue, code: RequestCode, header: Header | None
    ) -> tuple[str, Response]:
        """Send a request to a broker that has a queue; return its address and its response.

        The response may have any code. A broker that cannot be reached is skipped; the call fails
        when the same one fails again or no other is left. Raises RouteNotFound, NotConnected,
        RequestTimedOut.
        """
        failed: set[str] = set()
        timeout_ms = self._session.config.request_timeout_ms
        while True:
            address = await self.any_of(queue)
            try:
                remoting = self._session.remoting
                return address, await remoting.request(address, code, header, timeout_ms=timeout_ms)
            except (NotConnected, RequestTimedOut):
                self.failed(address, queue.topic)
                if address in failed or not self._has_other(queue.broker_name, address):
                    raise
                failed.add(address)

    def failed(self, address: str, topic: str) -> None:
        """Avoid an address that failed for AVOID_MS, and fetch the topic's route again."""
        self._avoided[address] = self._session.clock.monotonic_ms() + AVOID_MS
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._session.tasks.spawn(self._refresh(topic), name=f"refresh {topic}")

    async def _refresh(self, topic: str) -> None:
        try:
            await self._session.refresh(topic)
        finally:
            self._refreshing.discard(topic)

    def _reachable(self, broker_name: str) -> Mapping[int, str]:
        ids = self._session.brokers_of(broker_name)
        if not self._avoided:
            return ids
        now_ms = self._session.clock.monotonic_ms()
        self._avoided = {at: until for at, until in self._avoided.items() if until > now_ms}
        return {key: at for key, at in ids.items() if at not in self._avoided} or ids

    def _has_other(self, broker_name: str, address: str) -> bool:
        return any(at != address for at in self._reachable(broker_name).values())
