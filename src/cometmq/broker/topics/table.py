"""The topics of this broker: config/topics.json, system topics, automatic creation
(upstream: TopicConfigManager.java, TopicValidator.java).

    {"dataVersion":{"counter","timestamp"},"topicConfigTable":{name:{order,perm,readQueueNums,
     topicFilterType,topicName,topicSysFlag,writeQueueNums}},"cometmqDeleted":{name:end}}

The last, ours alone, says of deleted topics where in the log their former life ended, for as long
as the log may hold messages of it. It is there only when there are some.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.lookup import first_stored_ms
from cometmq.broker.tables.versioned import TableFormat, VersionedTable
from cometmq.core.errors import BadRequest, StoreError
from cometmq.message.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    MAX_NAME_CHARACTERS,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    has_legal_characters,
)
from cometmq.protocol.bodies import DataVersion, TopicConfig
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.route import PERM_INHERIT, PERM_READ, PERM_WRITE

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.store.files import Files
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

_FORMAT: Final = TableFormat(
    "topics.json", "topicConfigTable", TopicConfig, "topic", notes="cometmqDeleted"
)
#: So many deletions are remembered; an earlier one may let a crash of the machine bring messages
#: back to a topic that is made anew.
_REMEMBERED_DELETIONS: Final = 10_000
_READ_WRITE: Final = PERM_READ | PERM_WRITE
#: topicSysFlag of a topic of a unit, and of the retry topic of a unit's group.
UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2


#: The broker's own topics whose queues may be there although the table does not name them.
UNLISTED: Final = (HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC)


def check_name(topic: str) -> None:
    """Raise BadRequest when ``topic`` can name no topic."""
    if not topic or topic.isspace():
        raise BadRequest(ResponseCode.SYSTEM_ERROR, "The specified topic is blank.")
    if not has_legal_characters(topic):
        raise BadRequest(
            ResponseCode.SYSTEM_ERROR,
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    if len(topic) > MAX_NAME_CHARACTERS:
        raise BadRequest(
            ResponseCode.SYSTEM_ERROR,
            f"The specified topic is longer than topic max length {MAX_NAME_CHARACTERS}.",
        )


class TopicTable:
    """All topics. ``on_change`` callbacks run after each change, in the turn that made it;
    ``announced`` waits until name servers know of all changes made so far.

    ``get`` is the hot look-up: the configuration of a name, or None.
    """

    def __init__(
        self,
        config_directory: str,
        *,
        config: BrokerConfig,
        clock: Clock,
        tasks: Tasks,
        files: Files | None = None,
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._table = VersionedTable(
            config_directory, _FORMAT, clock=clock, tasks=tasks, files=files
        )
        self._written_ms = 0
        self.get = self._table.get
        self.on_change: list[Callable[[], None]] = []
        self.announced: Callable[[], Awaitable[None]] = _nobody_to_tell
        self.system_names: frozenset[str] = SYSTEM_TOPICS

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __contains__(self, topic: str) -> bool:
        return topic in self._table

    # ----------------------------------------------------------------------------- loading, saving

    def load(self) -> None:
        """Read the file and add the system topics. Raises StoreCorrupt."""
        if self._table.load(_adapt):
            self._written_ms = self._table.version.timestamp
        self._add_system_topics()

    def adopt(self, store: MessageStore) -> None:
        """Make the store and the table agree after a start, which may have come after a crash.

        What the store dispatched again of a deleted topic is dropped. Topics that the store has and
        the file lacks are taken in: the crash may have come between their first message and the
        write of the file. Where the file does not tell of deletions, because another broker wrote
        it, topics whose messages are all older than the file count as deleted. By the same rule a
        topic is read from queues that it has beyond what the file says of it: a slave that became
        the master may not know yet that it got more of them.

        What a slave takes in is only for those who read it: its file is its master's. Had it a
        version of its own, queues that are copied later would count as deleted from the topic.
        """
        for topic, end in self._table.notes().items():
            if end > store.written_offset:
                # The log lost its end, and will give these offsets again.
                end = store.written_offset
                self._table.put_note(topic, end)
            store.deletions.drop_former(topic, end)
        self._forget_deletions(store.log.segments.start)
        deleted = self._table.notes()
        for topic, queue_ids in store.topics().items():
            if topic in UNLISTED:
                continue
            known = self.get(topic)
            if known is not None and self._config.is_slave:
                continue
            listed = 0 if known is None else known.read_queue_nums
            since_ms = 0 if known is None and topic in deleted else self._written_ms
            found = [queue_id for queue_id in queue_ids if queue_id >= listed]
            firsts = [first_stored_ms(store, topic, queue_id) for queue_id in found]
            if max(firsts, default=0) > since_ms:
                self._take_in(topic, known, max(found) + 1)

    def _take_in(self, topic: str, known: TopicConfig | None, queues: int) -> None:
        log.warning("topic found in the store alone topic=%s queues=%d", topic, queues)
        if known is not None:
            self.put(msgspec.structs.replace(known, read_queue_nums=queues))
        elif self._config.is_slave:
            self._table.add_default(topic, TopicConfig(topic, queues, queues, _READ_WRITE))
        else:
            self.put(TopicConfig(topic, queues, queues, _READ_WRITE))

    def life_begin(self, topic: str) -> int:
        """The physical offset from which on messages belong to the topic as it is: those before it
        are of a topic of this name that was deleted."""
        return self._table.notes().get(topic, 0)

    def former_ends(self) -> dict[str, int]:
        """Of topics that were deleted, where in the log their former life ended; lowest first."""
        return self._table.notes()

    def deleted(self) -> set[str]:
        """Topics that were deleted and not made anew since, as far as that is remembered."""
        return {topic for topic in self._table.notes() if topic not in self._table}

    async def saved(self) -> None:
        """Wait until all changes so far are on the device. Raises StoreError."""
        await self._table.file.saved()

    def when_announced(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once all changes made so far are on the device and name servers know of
        them.

        After a crash a topic is found again by its queues; a message that waits for its time, or
        for the end of its transaction, is in none of them yet.
        """

        async def wait() -> None:
            with suppress(StoreError):  # a full disk, say: logged; the next change tries again
                await self.saved()
            await self.announced()
            callback()

        self._tasks.spawn(wait(), name="announce topics")

    async def close(self) -> None:
        """Write what is not written yet."""
        await self._table.file.close()

    # --------------------------------------------------------------------------------- changes

    def put(self, config: TopicConfig) -> None:
        """Create or replace a topic."""
        if self._table.put(config.topic_name, config):
            self._tell()

    def replace(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> set[str]:
        """Have the topics of a master, at a version of its table; gives those that went."""
        gone = self._table.replace(topics, version)
        self._add_system_topics()
        self._tell()
        return gone - set(self._table)

    def delete(self, topic: str) -> bool:
        """Forget a topic; False when there was none."""
        deleted = self._table.delete(topic)
        if deleted:
            self._tell()
        return deleted

    def remember_deletion(self, topic: str, *, end: int, log_start: int) -> None:
        """A topic with messages was deleted: those before the physical offset ``end`` are of a
        former life, should it be made anew. ``log_start`` is where the log begins."""
        self._table.put_note(topic, end)
        self._forget_deletions(log_start)

    def _forget_deletions(self, log_start: int) -> None:
        """Forget those of which the log holds no message any more, and the oldest of too many."""
        notes = self._table.notes()
        surplus = len(notes) - _REMEMBERED_DELETIONS
        for topic, end in notes.items():  # in the order of their ends
            if end > log_start and surplus <= 0:
                return
            self._table.drop_note(topic)
            surplus -= 1

    def create_by_send(
        self, topic: str, default_topic: str, queue_nums: int, client: str, *, unit: bool = False
    ) -> TopicConfig | None:
        """Create ``topic`` after ``default_topic``, for a client that sent to it.

        None when there is no such default, or it lets nobody inherit.
        """
        default = self.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            return None
        queues = max(1, min(queue_nums, default.write_queue_nums))
        config = TopicConfig(
            topic,
            queues,
            queues,
            default.perm & ~PERM_INHERIT,
            default.topic_filter_type,
            UNIT if unit else 0,
        )
        log.info("topic created by a send topic=%s default=%s by=%s", topic, default_topic, client)
        self.put(config)
        return config

    def create_retry(self, topic: str, queue_nums: int, *, unit: bool = False) -> TopicConfig:
        """The retry topic ``topic`` ("%RETRY%group"), created when missing; not on a slave."""
        flag = UNIT_SUBSCRIPTION if unit else 0
        return self._ensure(
            TopicConfig(topic, queue_nums, queue_nums, _READ_WRITE, "SINGLE_TAG", flag)
        )

    def create_dead_letter(self, topic: str) -> TopicConfig:
        """The dead-letter topic ``topic`` ("%DLQ%group"), created when missing."""
        return self._ensure(TopicConfig(topic, 1, 1, _READ_WRITE))

    def permission_changed(self) -> None:
        """``brokerPermission`` or automatic creation changed: name servers are to hear of it."""
        self._add_system_topics()
        self._table.all_changed()
        self._tell()

    def is_system(self, topic: str) -> bool:
        """Whether ``topic`` belongs to the broker itself."""
        return topic in self.system_names or topic.startswith(SYSTEM_PREFIX)

    # ----------------------------------------------------------------------------------- views

    def registered(self, since: DataVersion | None = None) -> Mapping[str, TopicConfig]:
        """The topics as name servers see them, within ``brokerPermission``.

        Those that changed after the version ``since``, all of them when it is None or too old.
        """
        found = None if since is None else self._table.changed_since(since)
        if found is None:
            found = self._table.values()
        permission = self._config.broker_permission
        return found if permission & _READ_WRITE == _READ_WRITE else _Bounded(found, permission)

    def values(self) -> dict[str, TopicConfig]:
        """All topics as they were made."""
        return self._table.values()

    @property
    def data_version(self) -> DataVersion:
        """Changes with every change of the table."""
        return self._table.version

    # --------------------------------------------------------------------------------- internals

    def _add_system_topics(self) -> None:
        wanted = _system_topics(self._config)
        for config in wanted:
            self._table.add_default(config.topic_name, config)
        self.system_names = SYSTEM_TOPICS | {config.topic_name for config in wanted}

    def _ensure(self, config: TopicConfig) -> TopicConfig:
        known = self.get(config.topic_name)
        if known is not None:
            return known
        # A slave's table is its master's: with a version of its own a topic could count as older
        # than the table, and as deleted, that was only not copied yet.
        if not self._config.is_slave:
            self.put(config)
        return config

    def _tell(self) -> None:
        for callback in self.on_change:
            callback()


class _Bounded(Mapping[str, TopicConfig]):
    """Topics with what the broker's own permission leaves of theirs, made when one is looked at."""

    def __init__(self, topics: Mapping[str, TopicConfig], permission: int) -> None:
        self._topics = topics
        self._permission = permission

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __getitem__(self, topic: str) -> TopicConfig:
        config = self._topics[topic]
        return msgspec.structs.replace(config, perm=config.perm & self._permission)


async def _nobody_to_tell() -> None:
    """A broker without name servers."""


def _adapt(fields: dict[str, Any]) -> None:
    if "topicSynFlag" in fields:  # older releases
        fields.setdefault("topicSysFlag", fields["topicSynFlag"])


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    def named(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
        return TopicConfig(name, queues, queues, perm)

    all_may = PERM_INHERIT | _READ_WRITE
    cluster, broker = config.broker_cluster_name, config.broker_name
    topics = [
        named(SELF_TEST_TOPIC, 1),
        named(BENCHMARK_TOPIC, 1024),
        named(cluster, 16, all_may if config.cluster_topic_enable else PERM_INHERIT),
        named(broker, 1, all_may if config.broker_topic_enable else PERM_INHERIT),
        named(OFFSET_MOVED_TOPIC, 1),
        named(SCHEDULE_TOPIC, 18),
        named(f"{cluster}_REPLY_TOPIC", 1),
    ]
    if config.auto_create_topic_enable:
        topics.insert(1, named(AUTO_CREATE_TOPIC, config.default_topic_queue_nums, all_may))
    if config.trace_topic_enable:
        topics.append(named(config.msg_trace_topic_name, 1))
    return topics
