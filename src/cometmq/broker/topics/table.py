"""The topics of this broker: config/topics.json, system topics, automatic creation (upstream:
TopicConfigManager.java, TopicValidator.java).

    {"dataVersion":{"counter","timestamp"},"topicConfigTable":{name:{order,perm,readQueueNums,
     topicFilterType,topicName,topicSysFlag,writeQueueNums}},"cometmqDeleted":{name:end}}

"cometmqDeleted" is CometMQ's own. It holds, for each deleted topic, the log offset at which its
messages end, for as long as the log may hold some of them. It is present only if not empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from cometmq.broker.lookup import first_stored_ms
from cometmq.broker.tables import TableFormat, VersionedTable
from cometmq.core.errors import BadRequest, StoreError
from cometmq.message.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    MAX_NAME_CHARACTERS,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    has_legal_characters,
)
from cometmq.protocol.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.tables import TableDirectory
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

_FORMAT: Final = TableFormat(
    "topics.json", "topicConfigTable", TopicConfig, "topic", notes="cometmqDeleted"
)
#: Number of deletions remembered. After a crash of the machine, messages of an older deletion may
#: reappear in a new topic with the same name.
_REMEMBERED_DELETIONS: Final = 10_000
_READ_WRITE: Final = PERM_READ | PERM_WRITE
#: Limit of queues in one topic; a higher number is taken for a typing error.
MAX_QUEUES: Final = 65_536
#: topicSysFlag of a unit's topics, and of the retry topics of a unit's groups.
UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2


#: The broker's own topics that may have queues although the table does not list them.
UNLISTED: Final = (HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC)


def check_name(topic: str) -> None:
    """Raise BadRequest if ``topic`` is not a legal topic name."""
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


class Announcer(Protocol):
    """Registers the changes of topics with name servers (registration.py)."""

    def changed(self) -> None:
        """Schedule the registration of changed topics."""
        ...

    async def announced(self) -> None:
        """Wait until every reachable name server has the current topics."""
        ...


class TopicTable:
    """All topics of the broker.

    ``on_change`` callbacks run after each change, in the same turn of the event loop.
    ``announcer`` registers changes with name servers; None without name servers. ``get`` is the
    hot lookup: the configuration of a name, or None.
    """

    def __init__(
        self,
        directory: TableDirectory,
        config: BrokerConfig,
        *,
        announcer: Announcer | None = None,
    ) -> None:
        self._config = config
        self._tasks = directory.tasks
        self._table = VersionedTable(directory, _FORMAT)
        #: Wall-clock time of the last change in the file that was loaded; 0 without a file.
        self._written_ms = 0
        #: A version of the table, and its number of retry topics.
        self._retry_topics_at: tuple[DataVersion | None, int] = None, 0
        #: True after a start at which the log had lost its end: deletions were recorded by offsets
        #: that will be assigned again, so the table must be saved before the next append.
        self.must_be_saved = False
        self.get = self._table.get
        self.on_change: list[Callable[[], None]] = []
        self._announcer = announcer
        self.system_names: frozenset[str] = SYSTEM_TOPICS

    def __len__(self) -> int:
        return len(self._table)

    @property
    def is_full(self) -> bool:
        """True if sends may not create further topics.

        Retry topics do not count: a group has one, and groups have a limit of their own.
        """
        most = self._config.max_topics
        if not 0 < most <= len(self):
            return False
        version = self._table.version
        if version != self._retry_topics_at[0]:
            self._retry_topics_at = version, sum(topic.startswith(RETRY_PREFIX) for topic in self)
        return most <= len(self) - self._retry_topics_at[1]

    def may_create_from(self, default_topic: str) -> bool:
        """Return whether sends may create topics like ``default_topic`` at all."""
        default = self.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return False
        return default_topic != AUTO_CREATE_TOPIC or self._config.auto_create_topic_enable

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __contains__(self, topic: str) -> bool:
        return topic in self._table

    # ----------------------------------------------------------------------------- loading, saving

    def load(self) -> None:
        """Read the file and add the system topics. Raise StoreCorrupt if it cannot be read."""
        if self._table.load(_adapt):
            self._written_ms = self._table.version.timestamp
        self._add_system_topics()

    def adopt(self, store: MessageStore) -> None:
        """Reconcile the store and the table after a start, which may follow a crash.

        Drop the queue entries of deleted topics that recovery dispatched again. Add the topics that
        the store has and the file lacks: a crash may come between a topic's first message and the
        write of the file. If the file records no deletions, because another broker wrote it, topics
        whose messages are all older than the file count as deleted. By the same rule, extend a
        topic's read queues to those found in the store beyond the listed ones: a slave that became
        the master may not know of the latest ones yet.

        On a slave, topics found this way get no new table version, because its file is a copy of
        its master's. With a version of its own, queues that are copied later would count as
        deleted.
        """
        for topic, end in self._table.notes().items():
            if end > store.written_offset:
                # The log lost its end, and will assign these offsets again.
                end = store.written_offset
                self._table.put_note(topic, end)
                self.must_be_saved = True
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
        log.warning("topic found only in the store topic=%s queues=%d", topic, queues)
        if known is not None:
            self.put(msgspec.structs.replace(known, read_queue_nums=queues))
        elif self._config.is_slave:
            self._table.add_default(topic, TopicConfig(topic, queues, queues, _READ_WRITE))
        else:
            self.put(TopicConfig(topic, queues, queues, _READ_WRITE))

    def life_begin(self, topic: str) -> int:
        """Return the physical offset at which the topic's current messages begin. Earlier ones
        belong to a deleted topic with the same name."""
        return self._table.notes().get(topic, 0)

    def former_ends(self) -> dict[str, int]:
        """Return, for each deleted topic, the log offset at which its messages end; lowest
        first."""
        return self._table.notes()

    def deleted(self) -> set[str]:
        """Return the remembered deleted topics that were not created again."""
        return {topic for topic in self._table.notes() if topic not in self._table}

    async def saved(self) -> None:
        """Wait until all changes so far are on the device. Raise StoreError if that fails."""
        await self._table.file.saved()

    async def announced(self) -> None:
        """Wait until name servers have all changes made so far, at most a second."""
        if self._announcer is not None:
            await self._announcer.announced()

    def when_announced(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once all changes made so far are on the device and known to name
        servers.

        Recovery after a crash finds a topic by its queues. A message that waits for its delivery
        time or for the end of its transaction is in none of the topic's queues yet.
        """

        async def wait() -> None:
            with suppress(StoreError):  # such as a full disk: logged, and the next change retries
                await self.saved()
            try:
                await self.announced()
            except Exception:  # the callback must run: counted requests wait for it
                log.exception("topics not announced")
            callback()

        self._tasks.spawn(wait(), name="announce topics")

    async def close(self) -> None:
        """Write pending changes."""
        await self._table.file.close()

    # --------------------------------------------------------------------------------- changes

    def put(self, config: TopicConfig) -> None:
        """Create or replace a topic."""
        if self._table.put(config.topic_name, config):
            self._notify()

    def replace(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> set[str]:
        """Replace all topics by those of the master at ``version`` of its table; return those that
        were removed."""
        gone = self._table.replace(topics, version)
        self._add_system_topics()
        self._notify()
        return gone - set(self._table)

    def delete(self, topic: str) -> bool:
        """Delete a topic; return False if there was none."""
        deleted = self._table.delete(topic)
        if deleted:
            self._notify()
        return deleted

    def remember_deletion(self, topic: str, *, end: int, log_start: int) -> None:
        """Record the deletion of a topic with messages: those before the physical offset ``end``
        belong to the deleted topic. ``log_start`` is the first offset of the log."""
        self._table.put_note(topic, end)
        self._forget_deletions(log_start)

    def _forget_deletions(self, log_start: int) -> None:
        """Drop deletions whose messages have left the log, and the oldest ones over the limit."""
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
        """Create ``topic`` from ``default_topic``, for a client that sent to it.

        Return None if the default topic does not exist or has no inherit permission, or if there
        are ``maxTopics`` already and it is not the retry topic of a group.
        """
        default = self.get(default_topic)
        if default is None or not self.may_create_from(default_topic):
            return None
        if not topic.startswith(RETRY_PREFIX) and self.is_full:
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
        """Return the retry topic ``topic`` ("%RETRY%group"); create it if missing. A slave does not
        add it to its table."""
        flag = UNIT_SUBSCRIPTION if unit else 0
        return self._ensure(
            TopicConfig(topic, queue_nums, queue_nums, _READ_WRITE, "SINGLE_TAG", flag)
        )

    def create_dead_letter(self, topic: str) -> TopicConfig:
        """Return the dead-letter topic ``topic`` ("%DLQ%group"); create it if missing."""
        return self._ensure(TopicConfig(topic, 1, 1, _READ_WRITE))

    def permission_changed(self) -> None:
        """Announce all topics again, after ``brokerPermission`` or automatic creation was
        changed."""
        self._add_system_topics()
        self._table.all_changed()
        self._notify()

    def is_system(self, topic: str) -> bool:
        """Decide whether ``topic`` belongs to the broker itself."""
        return topic in self.system_names or topic.startswith(SYSTEM_PREFIX)

    # ----------------------------------------------------------------------------------- views

    def registered(self, since: DataVersion | None = None) -> Mapping[str, TopicConfig]:
        """Return the topics as name servers may see them, limited by ``brokerPermission``.

        Only those that changed after the version ``since``; all if it is None or too old.
        """
        found = None if since is None else self._table.changed_since(since)
        if found is None:
            found = self._table.values()
        permission = self._config.broker_permission
        return found if permission & _READ_WRITE == _READ_WRITE else _Bounded(found, permission)

    def values(self) -> dict[str, TopicConfig]:
        """Return all topics with their own permissions."""
        return self._table.values()

    @property
    def data_version(self) -> DataVersion:
        """Version of the table, which changes with every change."""
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
        # A slave's table is a copy of its master's. With a version of its own, a topic that was not
        # copied yet could count as older than the table, and so as deleted.
        if not self._config.is_slave:
            self.put(config)
        return config

    def _notify(self) -> None:
        if self._announcer is not None:
            self._announcer.changed()
        for callback in self.on_change:
            callback()


class _Bounded(Mapping[str, TopicConfig]):
    """Topics whose permissions are limited by the broker's own, computed at lookup."""

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
