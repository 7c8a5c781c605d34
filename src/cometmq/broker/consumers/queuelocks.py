"""Queue locks for ordered consumption: leases on queues (upstream: RebalanceLockManager.java).

A lease belongs to one client of a group, and ends 60 s after its last renewal. Clients renew every
20 s, and continue for 30 s without an answer. A broker that forgot its leases in a restart would
lock a queue for a second client while the first one still consumes it. So leases are kept in
config/queueLocks.json, CometMQ's own file, which Java brokers ignore; a request for a new lease is
answered once the lease is saved:

    {"groups":{group:[{"clientId","topic","brokerName","queueId"},...]},"stoppedMs":0,"boot":""}

After a start the saved leases hold for 40 s, as long as their clients may rely on them. The 40 s
begin at the stop if that was clean, otherwise at the start. The time of the stop is taken from the
monotonic clock, because the wall clock may be changed. After a restart of the machine that time is
therefore unknown, and the 40 s begin at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.tables import TableFile
from cometmq.core.errors import BadRequest, StoreCorrupt, StoreError
from cometmq.net.limits import Limit
from cometmq.net.router import begin_task, end_task
from cometmq.protocol.bodies import QueueKey, QueueLockRequest, QueueLockResponse, parse_client_body
from cometmq.protocol.codes import RequestCode, ResponseCode
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
#: Limit of leases: clients may name queues that do not exist. At the limit expired ones are
#: removed, at most this often.
MAX_LEASES: Final = 100_000
_PURGE_INTERVAL_MS: Final = 1_000
#: Limits of the names that a lease keeps, in characters.
_MAX_NAME_CHARS: Final = 255
_MAX_CLIENT_ID_CHARS: Final = 1_024
#: Leases that are encoded without a pause.
_LEASES_A_PIECE: Final = 256


class QueueLocks:
    """Leases by group and queue. All times are monotonic milliseconds from the caller.

    ``changes`` counts how often the holder of a queue changed. At most ``leases_max`` leases are
    kept; further queues are not locked.
    """

    def __init__(self, lease_ms: int = LEASE_MS, leases_max: int = MAX_LEASES) -> None:
        self._lease_ms = lease_ms
        self._leases_max = leases_max
        #: Number of leases, expired ones included.
        self._size = 0
        self._purged_ms = -_PURGE_INTERVAL_MS
        self._groups: dict[str, dict[QueueKey, tuple[str, int]]] = {}
        #: Number of grants since the last purge.
        self._count = 0
        self.changes = 0

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueKey], now_ms: int
    ) -> list[QueueKey]:
        """Take or renew leases; return those of ``queues`` that the client holds."""
        if self.is_full and now_ms - self._purged_ms >= _PURGE_INTERVAL_MS:
            self._purge(now_ms)
        leases = self._groups.get(group, {})
        held: list[QueueKey] = []
        taken: dict[QueueKey, str] = {}
        for queue in queues:
            known = leases.get(queue)
            if known is None:
                if self.is_full:
                    continue
                self._size += 1
                self.changes += 1
            elif known[0] != client_id:
                if known[1] > now_ms:
                    continue
                taken[queue] = known[0]
                self.changes += 1
            leases[queue] = (client_id, now_ms + self._lease_ms)
            held.append(queue)
        if taken:
            queue, former = next(iter(taken.items()))
            log.info(
                "queue locks taken over group=%s count=%d first=%s from=%s by=%s",
                group, len(taken), queue, former, client_id,
            )  # fmt: skip
        if held:
            self._groups[group] = leases
            self._count += 1
            if self._count >= PURGE_EVERY:
                self._purge(now_ms)
        return held

    @property
    def is_full(self) -> bool:
        """True while no further queue can be locked."""
        return self._size >= self._leases_max

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        """Release the client's leases; those of other clients stay."""
        leases = self._groups.get(group, {})
        for queue in queues:
            known = leases.get(queue)
            if known is not None and known[0] == client_id:
                self.changes += 1
                self._size -= 1
                del leases[queue]
        if not leases:
            self._groups.pop(group, None)

    def _purge(self, now_ms: int) -> None:
        """Remove expired leases, so that clients with invented names leave no memory in use."""
        self._count = self._size = 0
        self._purged_ms = now_ms
        for group, leases in list(self._groups.items()):
            alive = {queue: lease for queue, lease in leases.items() if lease[1] > now_ms}
            self._size += len(alive)
            if alive:
                self._groups[group] = alive
            else:
                del self._groups[group]

    def resume(self, group: str, client_id: str, queue: QueueKey, until_ms: int) -> None:
        """Restore a lease from before the start. It holds until ``until_ms`` unless it is
        renewed."""
        leases = self._groups.setdefault(group, {})
        self._size += queue not in leases
        leases[queue] = (client_id, until_ms)

    def groups(self) -> list[str]:
        """Return the groups that have leases."""
        return list(self._groups)

    def leases_of(self, group: str) -> list[tuple[QueueKey, tuple[str, int]]]:
        """Return each queue of a group that has a lease, its client, and the end of the lease."""
        return list(self._groups.get(group, {}).items())

    def __len__(self) -> int:
        return self._size

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


#: Beginning of the file without leases, up to the end of its groups.
_EMPTY: Final = b'{"groups":{}'


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
        now_ms, opening = self._clock.monotonic_ms(), b'{"groups":{'
        # A change between two pieces causes another write, so the pieces need not agree.
        for group in self._locks.groups():
            yield opening + msgspec.json.encode(group) + b":["
            leases = self._locks.leases_of(group)
            comma = b""
            for at in range(0, len(leases), _LEASES_A_PIECE):
                held = [
                    _Lease(client_id, queue.topic, queue.broker_name, queue.queue_id)
                    for queue, (client_id, until_ms) in leases[at : at + _LEASES_A_PIECE]
                    if until_ms > now_ms
                ]
                if held:
                    yield comma + msgspec.json.encode(held)[1:-1]
                    comma = b","
            yield b"]"
            opening = b","
        ends = msgspec.json.encode(_Saved({}, self._stopped_ms, self._boot))
        yield (b"}" if opening == b"," else opening + b"}") + ends[len(_EMPTY) :]

    # ------------------------------------------------------------------------------------ requests

    def lock(self, peer: Peer, request: Request[Any]) -> Reply | None:
        """Answer with the queues that the client holds, once the leases are saved."""
        body = _parse(request)
        _check(body)
        held = self._locks.lock(
            body.consumer_group, body.client_id, body.mq_set, self._clock.monotonic_ms()
        )
        if len(held) < len(body.mq_set) and self._locks.is_full:
            reason = f"{len(self._locks)} queues are locked, no further one is"
            peer.limits.hit(Limit.QUEUE_LOCKS, peer.address, reason)
        reply = Reply(body=encode_json(QueueLockResponse(held)))
        if not self._note_changes():
            return reply
        begin_task(peer, urgent=True)
        self._tasks.spawn(self._answer_saved(peer, request, reply), name="LOCK_BATCH_MQ")
        return None

    async def _answer_saved(self, peer: Peer, request: Request[Any], reply: Reply) -> None:
        try:
            await self.saved()
        except StoreError as error:
            reply = Reply(error.code, remark=error.remark)
        finally:
            end_task(peer)
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


def _check(body: QueueLockRequest) -> None:
    """Raise BadRequest for names that are too long to be kept."""
    names = [body.consumer_group]
    for queue in body.mq_set:
        names += (queue.topic, queue.broker_name)
    longest = max(map(len, names))
    if longest > _MAX_NAME_CHARS or len(body.client_id) > _MAX_CLIENT_ID_CHARS:
        raise BadRequest(
            ResponseCode.SYSTEM_ERROR,
            f"a lock of queues has a name of {longest} characters and a client id of "
            f"{len(body.client_id)}: {_MAX_NAME_CHARS} and {_MAX_CLIENT_ID_CHARS} are allowed",
        )


def _saved(found: dict[str, Any]) -> _Saved:
    return msgspec.convert(found, _Saved)
