"""Consumer offsets of each group: config/consumerOffset.json, written every 5 s (upstream:
ConsumerOffsetManager.java).

    {"offsetTable":{"topic@group":{queueId:offset,...},...}}
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Set
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.lookup import bounds, find_entry, is_young
from cometmq.broker.tables import EntryTexts, TableFile
from cometmq.core.clock import join_in_slices
from cometmq.core.errors import BadRequest, StoreError
from cometmq.message.names import is_legal_name
from cometmq.net.limits import Limit, ServerLimits
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import QueueOffsetResponse

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers.members import Members
    from cometmq.broker.tables import TableDirectory
    from cometmq.broker.topics.table import TopicTable
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import QueryConsumerOffset, UpdateConsumerOffset
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

SEPARATOR: Final = "@"
NOT_FOUND: Final = -1
#: The number of pairs of a topic and a group that have offsets is limited to this many times
#: maxSubscriptionGroups.
_TOPICS_A_GROUP: Final = 4
#: Time after a start within which each member from before it commits an offset, or is gone.
_NOTIFY_MS: Final = 150_000


class ConsumerOffsets:
    """The next offset of every group in every queue that it has read."""

    def __init__(
        self,
        directory: TableDirectory,
        config: BrokerConfig,
        limits: ServerLimits | None = None,
    ) -> None:
        self._config = config
        self._limits = limits or ServerLimits(config, directory.clock)
        self._clock = directory.clock
        self._table: dict[str, dict[int, int]] = {}
        self._texts = EntryTexts()
        #: Keys whose offsets changed since the last write.
        self._stale: dict[str, None] = {}
        #: The store, if groups may commit offsets of messages that a crash lost.
        self._shrunk: MessageStore | None = None
        self._notified_by_ms = 0
        self._file = TableFile(directory, "consumerOffset.json", self._encode)

    # ----------------------------------------------------------------------------- loading, saving

    def load(self) -> None:
        """Read the file. Raise StoreCorrupt if it cannot be read."""
        self._table = self._file.read(_offset_table, required_key="offsetTable") or {}
        for key, offsets in self._table.items():
            self._texts.put(key, offsets)

    def clamp(self, store: MessageStore) -> None:
        """Reduce offsets beyond their queue's end to that end.

        A crash may have lost messages that a group had read, and new messages get their offsets.
        Call this once after the store is open; it does nothing if recovery found nothing missing.
        Offsets that groups commit later in this run are reduced likewise. A slave stores such
        commits unchanged, because its queues may only lag behind its master's.
        """
        if store.report is not None and not store.report.shrunk:
            return
        if not self._config.is_slave:
            self._shrunk = store
            # A stop before all members have committed must not end this period.
            store.maintenance.shrunk = True
            self._notified_by_ms = self._clock.monotonic_ms() + _NOTIFY_MS
        for key, offsets in self._table.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in offsets.items():
                _, end = bounds(store, topic, queue_id)
                if offset > end:
                    log.warning(
                        "consumer offset clamped group=%s topic=%s queue=%d from=%d to=%d",
                        group, topic, queue_id, offset, end,
                    )  # fmt: skip
                    offsets[queue_id] = end
                    self._stale[key] = None

    async def saved(self) -> None:
        """Write pending changes. Raise StoreError if that fails."""
        if self._stale or self._file.unsaved:
            await self._file.write()

    async def persist_forever(self) -> None:
        """Write the file at the configured interval if something changed."""
        while True:
            await self._clock.sleep_ms(self._config.flush_consumer_offset_interval)
            if self._shrunk is not None and self._clock.monotonic_ms() > self._notified_by_ms:
                self._shrunk.maintenance.shrunk = False
            if self._stale or self._file.unsaved:
                try:
                    await self._file.write()
                except StoreError:
                    continue  # logged by the writer; the next round tries again

    async def close(self) -> None:
        """Write pending changes."""
        await self.saved()
        await self._file.close()

    # --------------------------------------------------------------------------------- the table

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's next offset.

        If a crash may have lost messages, the offset is limited to the queue's end.
        """
        if self._shrunk is not None:
            offset = min(offset, bounds(self._shrunk, topic, queue_id)[1])
        key = f"{topic}@{group}"
        offsets = self._table.get(key)
        if offsets is None:
            offsets = self._table[key] = {}
        known = offsets.get(queue_id, NOT_FOUND)
        if offset != known:
            if offset < known:
                log.info(
                    "consumer offset set back group=%s topic=%s queue=%d from=%d to=%d",
                    group, topic, queue_id, known, offset,
                )  # fmt: skip
            offsets[queue_id] = offset
            self._stale[key] = None

    def commit_of_client(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Call :meth:`commit`, unless the group has no offset in this topic yet and the table is
        full; return whether it was called.
        """
        most = _TOPICS_A_GROUP * self._config.max_subscription_groups
        if 0 < most <= len(self._table) and f"{topic}@{group}" not in self._table:
            reason = (
                f"{len(self._table)} pairs of a topic and a group have offsets, {topic}@{group} "
                "got none"
            )
            self._limits.hit(Limit.CONSUMER_OFFSETS, "-", reason)
            return False
        self.commit(group, topic, queue_id, offset)
        return True

    def replace(self, text: bytes, *, but: str = "") -> None:
        """Replace all offsets by those of the master, from its answer to request 43
        (GET_ALL_CONSUMER_OFFSET); those of the group ``but`` stay as they are.

        Raise BadRequest or ValueError if the answer is malformed.
        """
        table = _offset_table(parse_json(text, dict[str, Any]))
        if but:
            end = SEPARATOR + but
            table = {key: offsets for key, offsets in table.items() if not key.endswith(end)}
            table |= {key: offsets for key, offsets in self._table.items() if key.endswith(end)}
        self._stale |= {key: None for key in self._table if key not in table}
        self._stale |= {key: None for key in table if self._table.get(key) != table[key]}
        self._table = table

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the next offset of ``group``; -1 if it never committed one."""
        offsets = self._table.get(f"{topic}@{group}")
        return NOT_FOUND if offsets is None else offsets.get(queue_id, NOT_FOUND)

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        """Return the next offset of ``group`` in each queue of ``topic`` that it has read."""
        return dict(self._table.get(f"{topic}@{group}", {}))

    def positions(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Yield topic, group and next offsets by queue of each pair that now has offsets."""
        for key in [*self._table]:
            topic, _, group = key.partition(SEPARATOR)
            yield topic, group, self._table.get(key, {})

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have read ``topic``."""
        prefix = topic + SEPARATOR
        return [key[len(prefix) :] for key in self._table if key.startswith(prefix)]

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that ``group`` has read."""
        suffix = SEPARATOR + group
        return [key[: -len(suffix)] for key in self._table if key.endswith(suffix)]

    def delete_topic(self, topic: str) -> None:
        """Delete all offsets in a topic."""
        self._drop([key for key in self._table if key.startswith(topic + SEPARATOR)])

    def delete_topics(self, topics: Set[str]) -> None:
        """Delete all offsets in some topics."""
        self._drop([key for key in self._table if key.partition(SEPARATOR)[0] in topics])

    def delete_group(self, group: str) -> None:
        """Delete all offsets of a group."""
        self._drop([key for key in self._table if key.endswith(SEPARATOR + group)])

    async def text(self) -> bytes:
        """Return the whole table in one line, as the answer to request 43 carries it."""
        return await join_in_slices(self._compact(), self._clock)

    def _compact(self) -> Iterator[bytes]:
        opening = b'{"offsetTable":{'
        for key, offsets in list(self._table.items()):
            pairs = [b"%d:%d" % pair for pair in offsets.items()]
            yield opening + msgspec.json.encode(key) + b":{" + b",".join(pairs) + b"}"
            opening = b","
        yield b"}}" if opening == b"," else opening + b"}}"

    def _drop(self, keys: list[str]) -> None:
        for key in keys:
            del self._table[key]
            self._stale[key] = None

    def _encode(self) -> Iterator[bytes]:
        stale, self._stale = self._stale, {}
        for key in stale:
            offsets = self._table.get(key)
            if offsets is None:
                self._texts.drop(key)
            else:
                self._texts.put(key, offsets)
        return chain((b'{\n\t"offsetTable":',), self._texts.pieces(), (b"\n}",))


def _offset_table(found: dict[str, Any]) -> dict[str, dict[int, int]]:
    try:
        return msgspec.convert(found["offsetTable"] or {}, dict[str, dict[int, int]], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"offsetTable: {error}") from None


class OffsetHandler:
    """Serves QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        offsets: ConsumerOffsets,
        topics: TopicTable,
        members: Members,
        store: MessageStore,
    ) -> None:
        self._config = config
        self._offsets = offsets
        self._topics = topics
        self._members = members
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
        }

    def query(self, _peer: Peer, request: Request[QueryConsumerOffset]) -> Reply:
        """Return the group's next offset.

        Raise BadRequest with QUERY_NOT_FOUND if there is none: the client then applies its policy
        for new groups.
        """
        header = request.header
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            if not self._begins_at_zero(header):
                raise BadRequest(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"Not found: group {header.consumer_group} has no offset in queue "
                    f"{header.queue_id} of {header.topic}; it may be starting for the first time",
                )
            offset = 0
        return Reply(header=QueueOffsetResponse(offset))

    def _begins_at_zero(self, header: QueryConsumerOffset) -> bool:
        """Decide whether a group without an offset begins a queue at 0, whatever its policy.

        The queue must be young. In addition, the group must have subscribed before the queue's
        first message, or upstream's rule must be requested: by the client, or, if the client does
        not say, by the broker's setting.
        """
        if not is_young(self._store, header.topic, header.queue_id):
            return False
        asked = header.set_zero_if_not_found
        if truth(asked) or (asked is None and self._config.young_queue_from_start):
            return True
        first = find_entry(self._store, header.topic, header.queue_id, 0)
        since = self._members.subscribed_since(header.consumer_group, header.topic)
        return first is None or (since is not None and first[0] >= since)

    def update(self, _peer: Peer, request: Request[UpdateConsumerOffset]) -> Reply:
        """Store an offset of an existing queue.

        Raise BadRequest for other queues: otherwise any client could fill the table.
        """
        header = request.header
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist: create it"
            )
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
        if not 0 <= header.queue_id < queues or header.commit_offset < 0:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"offset {header.commit_offset} of queue {header.queue_id}: topic {header.topic} "
                f"has {queues} queues, and offsets must not be negative",
            )
        if not is_legal_name(header.consumer_group):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"group name {header.consumer_group[:140]!r} is illegal: it may have up to 127 of "
                "%|a-zA-Z0-9_-",
            )
        if not self._offsets.commit_of_client(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        ):
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]offset of new group {header.consumer_group} in {header.topic}: the "
                "table of offsets is full: delete groups, or raise maxSubscriptionGroups",
            )
        return Reply()
