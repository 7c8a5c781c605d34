"""Who may consume a queue in order: leases on queues (upstream: RebalanceLockManager.java).

A lease belongs to one client of a group and ends 60 s after it was last asked for; clients ask
every 20 s. The table lives in this broker's memory only: after a restart clients ask anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from cometmq.net.router import Reply
from cometmq.protocol.bodies import QueueKey, QueueLockRequest, QueueLockResponse
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, encode_json, parse_json

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

LEASE_MS: Final = 60_000
#: After so many grants the leases that have ended are dropped.
PURGE_EVERY: Final = 10_000


class QueueLocks:
    """Leases by group and queue. All times are monotonic milliseconds, given by the caller."""

    def __init__(self, lease_ms: int = LEASE_MS) -> None:
        self._lease_ms = lease_ms
        self._groups: dict[str, dict[QueueKey, tuple[str, int]]] = {}
        self._count = 0

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueKey], now_ms: int
    ) -> list[QueueKey]:
        """Take or renew leases; gives the queues that the client holds now."""
        leases = self._groups.get(group, {})
        held: list[QueueKey] = []
        for queue in queues:
            known = leases.get(queue)
            if known is None or known[0] == client_id or known[1] <= now_ms:
                if known is not None and known[0] != client_id:
                    log.info(
                        "queue lock taken over group=%s queue=%s from=%s by=%s",
                        group, queue, known[0], client_id,
                    )  # fmt: skip
                leases[queue] = (client_id, now_ms + self._lease_ms)
                held.append(queue)
        if held:
            self._groups[group] = leases
            self._count += 1
            if self._count >= PURGE_EVERY:
                self._purge(now_ms)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        """Give leases back; those of other clients stay."""
        leases = self._groups.get(group, {})
        for queue in queues:
            known = leases.get(queue)
            if known is not None and known[0] == client_id:
                del leases[queue]
        if not leases:
            self._groups.pop(group, None)

    def _purge(self, now_ms: int) -> None:
        """Drop what has ended, so that clients which made names up leave nothing behind."""
        self._count = 0
        for group, leases in list(self._groups.items()):
            alive = {queue: lease for queue, lease in leases.items() if lease[1] > now_ms}
            if alive:
                self._groups[group] = alive
            else:
                del self._groups[group]

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def holder(self, group: str, queue: QueueKey, now_ms: int) -> str | None:
        """The client that holds a queue now."""
        known = self._groups.get(group, {}).get(queue)
        return known[0] if known is not None and known[1] > now_ms else None


class QueueLockHandler:
    """Serves LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    def __init__(self, *, clock: Clock, locks: QueueLocks | None = None) -> None:
        self._clock = clock
        self._locks = locks if locks is not None else QueueLocks()

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, _peer: Peer, request: Request[Any]) -> Reply:
        """Answer the queues that the client holds now."""
        body = parse_json(
            request.body, QueueLockRequest, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES
        )
        held = self._locks.lock(
            body.consumer_group, body.client_id, body.mq_set, self._clock.monotonic_ms()
        )
        return Reply(body=encode_json(QueueLockResponse(held)))

    def unlock(self, _peer: Peer, request: Request[Any]) -> Reply:
        """Give the client's leases back."""
        body = parse_json(
            request.body, QueueLockRequest, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES
        )
        self._locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return Reply()


def _parse(request: Request[Any]) -> QueueLockRequest:
    return parse_json(request.body, QueueLockRequest, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES)
