"""Consumer offsets of a group: where they are stored, and where a group begins in a queue.

They are stored on the broker, or in a local file for broadcasting consumers. The file (upstream:
LocalFileOffsetStore.java) is ``<dir>/<client>/<group>/offsets.json``:
``{"offsetTable":{{"brokerName":..,"queueId":..,"topic":..}:offset, ..}}``, replaced as a whole.

A group begins at the committed offset, or at the position in its options if there is none. ``last``
means the time at which this member joined. In a queue that existed then, the start is the queue's
end. In a queue that appears later, because its topic grew or its broker was away, the start is the
first message stored after that time. Brokers of the 4.x line let a new group begin at 0 on a queue
that still has its first message, whatever the group requested; other brokers are asked not to
(upstream: RebalancePushImpl.computePullFromWhere).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from cometmq.client.routes import key_of, queue_of
from cometmq.core.errors import (
    ClientError,
    CometError,
    NotConnected,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.net.tasks import together
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import MASTER_ID, QueueKey
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json, object_map, parse_json
from cometmq.protocol.fields import from_ext

if TYPE_CHECKING:
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.pull import Puller
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue

log = logging.getLogger(__name__)

_REPEAT_MS: Final = 60_000


class OffsetStore(Protocol):
    """Store of the committed offset of each queue of a group."""

    async def load(self, queue: MessageQueue) -> int | None:
        """Return the stored offset, or None if the group never stored one. Raises ClientError.

        Call it only for a queue that is assigned to this consumer; see :meth:`peek`.
        """
        ...

    async def peek(self, queue: MessageQueue) -> int | None:
        """Return the stored offset as :meth:`load` does, also if another member owns the queue."""
        ...

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset before which all messages are processed; :meth:`persist` stores it."""
        ...

    async def persist(
        self, queues: Iterable[MessageQueue] | None = None, *, unchanged_too: bool = False
    ) -> None:
        """Store the offsets that changed, of all queues or of ``queues``.

        Failures are logged; the next call tries again. ``unchanged_too`` also stores unchanged
        offsets: a previous owner of a queue may have stored an older offset since.
        """
        ...

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store these offsets now. Raises ClientError or OSError."""
        ...

    def forget(self, queue: MessageQueue) -> None:
        """Drop the offset of a queue that now belongs to another member."""
        ...

    def has_offsets(self, queue: MessageQueue) -> bool:
        """Return whether this store has stored an offset in the queue's topic on its broker.

        An offset from :meth:`load` does not count: a Java broker may return 0 if none is stored.
        """
        ...


class RemoteOffsets:
    """Offsets of a clustering group, stored by the broker of each queue.

    An offset that a broker confirmed is sent again in three cases:

    - after any connection broke: a broker that crashed may have lost the last offsets
    - until the current master confirms it: slaves replace their offsets by the master's
    - every minute: the last update of a queue's previous owner may arrive late

    Only one update of a queue is in flight at a time, because a broker with several threads may
    process two of them in either order. The group's first update in a topic is sent alone: a Java
    broker that processes two first ones at the same time may lose one
    (ConsumerOffsetManager.commitOffset creates the topic's table twice).
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._current: dict[MessageQueue, int] = {}
        #: Last stored offset of each queue, and the address of the broker that stored it.
        self._stored: dict[MessageQueue, tuple[int, str]] = {}
        self._updates: defaultdict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: (broker name, topic) pairs with a stored offset. For pairs without: locks for the first
        #: update, and its error.
        self._begun: set[tuple[str, str]] = set()
        self._firsts: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._first_errors: dict[tuple[str, str], ClientError] = {}
        self._last_stored_ms = session.clock.monotonic_ms()
        self._losses = session.remoting.losses

    async def load(self, queue: MessageQueue) -> int | None:
        address, offset = await self._ask(queue)
        if offset is not None:
            self._current[queue] = offset
            self._stored[queue] = offset, address
        return offset

    async def peek(self, queue: MessageQueue) -> int | None:
        _, offset = await self._ask(queue)
        return offset

    async def _ask(self, queue: MessageQueue) -> tuple[str, int | None]:
        """Return the address of the broker that responded, and its offset of the queue or None."""
        header = h.QueryConsumerOffset(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            # The client decides where a new group begins, so the broker must not return 0.
            set_zero_if_not_found=False,
        )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        not_found = ResponseCode.QUERY_NOT_FOUND
        address, response = await self._session.replicas.ask(queue, code, header, not_found)
        self._session.outages.answered(address, code, queue.topic)
        if response.code == not_found:
            return address, None
        return address, from_ext(h.QueueOffsetResponse, response.ext).offset

    def _knows(self, queue: MessageQueue) -> bool:
        """Return whether the current master has the current offset."""
        master = self._session.brokers_of(queue.broker_name).get(MASTER_ID)
        return self._stored.get(queue) == (self._current[queue], master)

    def update(self, queue: MessageQueue, offset: int) -> None:
        self._current[queue] = offset

    async def persist(
        self, queues: Iterable[MessageQueue] | None = None, *, unchanged_too: bool = False
    ) -> None:
        now_ms = self._session.clock.monotonic_ms()
        is_old = now_ms - self._last_stored_ms >= _REPEAT_MS
        if is_old or self._losses != self._session.remoting.losses:
            self._losses = self._session.remoting.losses
            self._last_stored_ms = now_ms
            # Drop the confirmations, so that every offset is sent again.
            self._stored.clear()
            self._begun.clear()
        due = [
            queue
            for queue in (list(self._current) if queues is None else queues)
            if queue in self._current
            if unchanged_too or not self._knows(queue)
        ]
        await together([self._try_to_tell(queue) for queue in due])

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._current.update(offsets)
        await together([self._tell(queue) for queue in offsets])

    async def _try_to_tell(self, queue: MessageQueue) -> None:
        try:
            await self._tell(queue)
        except ClientError as error:
            offset = self._current.get(queue)
            log.debug("offset_not_stored queue=%s offset=%s error=%s", queue, offset, error)
            self._session.outages.failed(error, queue.topic)

    async def _tell(self, queue: MessageQueue) -> None:
        """Send the current offset of a queue once the previous update is answered.

        Send nothing if :meth:`forget` was called meanwhile.
        """
        async with self._updates[queue]:
            if not self.has_offsets(queue) and await self._sent_as_first(queue):
                return
            await self._put(queue)

    async def _sent_as_first(self, queue: MessageQueue) -> bool:
        """Send the current offset of a queue if it is the first one in its topic.

        Return False if another update was the first. If that one gets no answer, the queues that
        wait for it fail with its error, so that they do not each wait for a broker that is away.
        """
        key = queue.broker_name, queue.topic
        has_waited = self._firsts[key].locked()
        async with self._firsts[key]:
            if self.has_offsets(queue):
                return False
            if has_waited and (error := self._first_errors.get(key)) is not None:
                raise error
            self._first_errors.pop(key, None)
            try:
                await self._put(queue)
            except (NotConnected, RequestTimedOut) as error:
                self._first_errors[key] = error
                raise
            return True

    async def _put(self, queue: MessageQueue) -> None:
        offset = self._current.get(queue)
        if offset is None:
            return
        header = h.UpdateConsumerOffset(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        address, _ = await self._session.replicas.ask(queue, code, header)
        self._session.outages.answered(address, code, queue.topic)
        self._stored[queue] = offset, address
        self._begun.add((queue.broker_name, queue.topic))

    def forget(self, queue: MessageQueue) -> None:
        self._current.pop(queue, None)
        self._stored.pop(queue, None)

    def has_offsets(self, queue: MessageQueue) -> bool:
        return (queue.broker_name, queue.topic) in self._begun


class LocalOffsets:
    """Offsets of a broadcasting consumer in its own file at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[MessageQueue, int] | None = None
        self._dirty = False

    async def load(self, queue: MessageQueue) -> int | None:
        if self._table is None:
            self._table = await asyncio.to_thread(_read_table, self._path)
        return self._table.get(queue)

    async def peek(self, queue: MessageQueue) -> int | None:
        return await self.load(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        if self._table is None:
            self._table = {}
        if self._table.get(queue) != offset:
            self._table[queue] = offset
            self._dirty = True

    async def persist(
        self, queues: Iterable[MessageQueue] | None = None, *, unchanged_too: bool = False
    ) -> None:
        del queues, unchanged_too  # only this consumer writes the file, and always as a whole
        try:
            await self._write()
        except OSError as error:
            log.warning("offset_file_not_written path=%s error=%s", self._path, error)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            self.update(queue, offset)
        await self._write()

    async def _write(self) -> None:
        if self._table is None or not self._dirty:
            return
        self._dirty = False
        try:
            await asyncio.to_thread(_write_table, self._path, dict(self._table))
        except BaseException:
            self._dirty = True
            raise

    def forget(self, queue: MessageQueue) -> None:
        """Do nothing: a broadcasting consumer keeps the offsets of all queues."""

    def has_offsets(self, queue: MessageQueue) -> bool:
        return self._table is not None and queue in self._table


def offsets_of(session: Session, options: SubscribeOptions) -> OffsetStore:
    """Return the offset store of one consumer."""
    if not options.broadcasting:
        return RemoteOffsets(session, options.group)
    config = session.config
    return LocalOffsets(
        offsets_path(config.offsets_dir, session.ip, config.instance_name, options.group)
    )


def offsets_path(offsets_dir: Path | str, ip: str, instance_name: str, group: str) -> Path:
    """Return the path of a group's offset file, which is the same after a restart."""
    return Path(offsets_dir) / f"{ip}@{instance_name}" / group / "offsets.json"


class _OffsetFile(msgspec.Struct, rename="camel", frozen=True):
    offset_table: dict[str, int]


def _read_table(path: Path) -> dict[MessageQueue, int]:
    backup = path.with_suffix(".json.bak")
    for candidate in (path, backup):
        if not candidate.exists():
            continue
        try:
            table = parse_json(candidate.read_bytes(), _OffsetFile).offset_table
            keys = {parse_json(key.encode(), QueueKey): offset for key, offset in table.items()}
        except Exception as error:
            log.warning("offset_file_unreadable path=%s error=%s", candidate, error)
            continue
        return {queue_of(key): offset for key, offset in keys.items()}
    return {}


def _write_table(path: Path, table: dict[MessageQueue, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pairs = [(key_of(queue), at) for queue, at in sorted(table.items())]
    fresh = path.with_suffix(".json.tmp")
    fresh.write_bytes(encode_json({"offsetTable": object_map(pairs)}))
    if path.exists():
        path.replace(path.with_suffix(".json.bak"))
    fresh.replace(path)


class StartPositions:
    """Start offsets for one consumer."""

    def __init__(
        self, session: Session, options: SubscribeOptions, offsets: OffsetStore, puller: Puller
    ) -> None:
        self._session = session
        self._options = options
        self.offsets = offsets
        self.puller = puller
        self._joined_ms = 0
        self._at_join: dict[str, frozenset[MessageQueue]] = {}

    async def joining(self) -> None:
        """Record the time of joining and the queues that exist at that time."""
        self._joined_ms = self._session.clock.wall_ms()
        for topic in self._options.filters:
            await self._session.refresh(topic)
            try:
                self._at_join[topic] = frozenset(await self._session.subscribe_queues(topic))
            except RouteNotFound:
                self._at_join[topic] = frozenset()
            except CometError as error:
                log.debug("queues_unavailable_at_join topic=%s error=%s", topic, error)
                self._session.outages.failed(error, topic)

    async def of(self, queue: MessageQueue) -> int:
        """Return the offset to start at. Raises ClientError if the broker cannot be asked."""
        stored = await self.offsets.load(queue)
        if stored is not None:
            return stored
        options = self._options
        if queue.topic == options.retry_topic or options.start == "first":
            return 0
        start_ms = options.start_ms()
        if start_ms is None and self._is_new(queue):
            start_ms = self._joined_ms
        if start_ms is None:
            return await self.puller.max_offset(queue)
        return await self.puller.offset_at(queue, start_ms)

    def _is_new(self, queue: MessageQueue) -> bool:
        return queue not in self._at_join.get(queue.topic, (queue,))
