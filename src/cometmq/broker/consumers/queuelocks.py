"""Queue locks for ordered consumption: leases on queues (upstream: RebalanceLockManager.java).

A lease belongs to one client of a group, and ends 60 s after its last renewal. Clients renew every
20 s, and continue for 30 s without an answer. A broker that forgot its leases in a restart would
lock a queue for a second client while the first one still consumes it. So leases are kept in
config/queueLocks.json, CometMQ's own file, which Java brokers ignore; a request for a new lease is
answered once the lease is saved:

    {"groups":{group:[{"clientId","topic","brokerName","queueId"},...]},"stoppedMs":0,"boot":""}

After a start the saved leases hold for 40 s, as long as their clients may rely on them. The 40 s
begin at the stop if that was clean, otherwise at the start. The time of the stop is taken from the
monotonic clock, because the wall clock may be set. After a restart of the machine it is therefore
unknown, and the 40 s begin at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.tables import TableFile
from cometmq.core.errors import StoreCorrupt, StoreError
from cometmq.protocol.bodies import QueueKey, QueueLockRequest, QueueLockResponse, parse_client_body
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.frame import Reply
from cometmq.store.files import PosixFiles

if TYPE_CHECKING:
    from cometmq.broker.tables import TableDirectory
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

LEASE_MS: Final = 60_000
#: Time for which saved leases hold after a start: clients rely on a lease for 30 s, and may take a
#: moment to finish their current messages.
RESUMED_LEASE_MS: Final = 40_000
#: Number of grants after which expired leases are removed.
PURGE_EVERY: Final = 10_000


class QueueLocks:
    """Leases by group and queue. All times are monotonic milliseconds from the caller.

    ``changes`` counts how often the holder of a queue changed.
    """

    def __init__(self, lease_ms: int = LEASE_MS) -> None:
        self._lease_ms = lease_ms
        self._groups: dict[str, dict[QueueKey, tuple[str, int]]] = {}
        self._count = 0
        self.changes = 0

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueKey], now_ms: int
    ) -> list[QueueKey]:
        """Take or renew leases; return those of ``queues`` that the client holds."""
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
                self.changes += known is None or known[0] != client_id
                leases[queue] = (client_id, now_ms + self._lease_ms)
                held.append(queue)
        if held:
            self._groups[group] = leases
            self._count += 1
            if self._count >= PURGE_EVERY:
                self._purge(now_ms)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        """Release the client's leases; those of other clients stay."""
        leases = self._groups.get(group, {})
        for queue in queues:
            known = leases.get(queue)
            if known is not None and known[0] == client_id:
                self.changes += 1
                del leases[queue]
        if not leases:
            self._groups.pop(group, None)

    def _purge(self, now_ms: int) -> None:
        """Remove expired leases, so that clients with invented names leave no memory in use."""
        self._count = 0
        for group, leases in list(self._groups.items()):
            alive = {queue: lease for queue, lease in leases.items() if lease[1] > now_ms}
            if alive:
                self._groups[group] = alive
            else:
                del self._groups[group]

    def resume(self, group: str, client_id: str, queue: QueueKey, until_ms: int) -> None:
        """Restore a lease from before the start. It holds until ``until_ms`` unless it is
        renewed."""
        self._groups.setdefault(group, {})[queue] = (client_id, until_ms)

    def held(self, now_ms: int) -> Iterator[tuple[str, str, QueueKey]]:
        """Yield group, client and queue of every lease that holds at ``now_ms``."""
        for group, leases in self._groups.items():
            for queue, (client_id, until_ms) in leases.items():
                if until_ms > now_ms:
                    yield group, client_id, queue

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def holder(self, group: str, queue: QueueKey, now_ms: int) -> str | None:
        """Return the client that holds a queue at ``now_ms``, or None."""
        known = self._groups.get(group, {}).get(queue)
        return known[0] if known is not None and known[1] > now_ms else None


class _Lease(msgspec.Struct, rename="camel", frozen=True):
    client_id: str
    topic: str
    broker_name: str
    queue_id: int


class _Saved(msgspec.Struct, rename="camel", frozen=True):
    """Content of the file.

    ``stopped_ms`` is the monotonic clock at a clean stop, 0 while running. ``boot`` identifies the
    start of the machine that this clock counts from.
    """

    groups: Mapping[str, list[_Lease]]
    stopped_ms: int = 0
    boot: str = ""


class QueueLockHandler:
    """Serves LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    def __init__(self, directory: TableDirectory, locks: QueueLocks | None = None) -> None:
        self._clock = directory.clock
        self._tasks = directory.tasks
        self._locks = locks if locks is not None else QueueLocks()
        self._noted_changes = 0
        self._stopped_ms = 0
        files = directory.files if directory.files is not None else PosixFiles()
        self._boot = files.boot_id()
        self._file = TableFile(directory, "queueLocks.json", self._encode)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    # ----------------------------------------------------------------------------- loading, saving

    def load(self) -> None:
        """Restore the leases from before the start; none if the file cannot be read."""
        try:
            saved = self._file.read(_saved, required_key="groups")
        except StoreCorrupt as error:
            log.error("queue locks lost reason=%s", error)
            return
        if saved is None:
            return
        now_ms = self._clock.monotonic_ms()
        is_known = saved.stopped_ms and saved.boot and saved.boot == self._boot
        since_ms = min(saved.stopped_ms, now_ms) if is_known else now_ms
        until_ms = since_ms + RESUMED_LEASE_MS
        for group, leases in saved.groups.items():
            for lease in leases:
                queue = QueueKey(lease.topic, lease.broker_name, lease.queue_id)
                self._locks.resume(group, lease.client_id, queue, until_ms)
        # Write the file again, so that it does not keep the time of that stop.
        self._file.touch()

    async def saved(self) -> None:
        """Wait until the current leases are on the device. Raise StoreError if that fails."""
        await self._file.saved()

    async def close(self) -> None:
        """Write the leases and the time of the stop. Raise StoreError if that fails."""
        if len(self._locks) or not self._file.is_missing:
            self._stopped_ms = self._clock.monotonic_ms()
            await self._file.write()

    def _encode(self) -> Iterator[bytes]:
        groups: dict[str, list[_Lease]] = {}
        for group, client_id, queue in self._locks.held(self._clock.monotonic_ms()):
            lease = _Lease(client_id, queue.topic, queue.broker_name, queue.queue_id)
            groups.setdefault(group, []).append(lease)
        yield msgspec.json.encode(_Saved(groups, self._stopped_ms, self._boot))

    # ------------------------------------------------------------------------------------ requests

    def lock(self, peer: Peer, request: Request[Any]) -> Reply | None:
        """Answer with the queues that the client holds, once the leases are saved."""
        body = _parse(request)
        held = self._locks.lock(
            body.consumer_group, body.client_id, body.mq_set, self._clock.monotonic_ms()
        )
        reply = Reply(body=encode_json(QueueLockResponse(held)))
        if not self._note_changes():
            return reply
        self._tasks.spawn(self._answer_saved(peer, request, reply), name="LOCK_BATCH_MQ")
        return None

    async def _answer_saved(self, peer: Peer, request: Request[Any], reply: Reply) -> None:
        try:
            await self.saved()
        except StoreError as error:
            reply = Reply(error.code, remark=error.remark)
        if not peer.closed:
            peer.reply(request, reply)

    def unlock(self, _peer: Peer, request: Request[Any]) -> Reply:
        """Release the client's leases."""
        body = _parse(request)
        self._locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        self._note_changes()
        return Reply()

    def _note_changes(self) -> bool:
        """Schedule the write of changed leases; return True while any change is unsaved."""
        if self._locks.changes != self._noted_changes:
            self._noted_changes = self._locks.changes
            self._file.touch()
        return not self._file.is_saved


def _parse(request: Request[Any]) -> QueueLockRequest:
    return parse_client_body(request.body, QueueLockRequest)


def _saved(found: dict[str, Any]) -> _Saved:
    return msgspec.convert(found, _Saved)
