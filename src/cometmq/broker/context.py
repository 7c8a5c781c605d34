"""What the parts of one broker share: its settings, clock, tasks and store, and its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers.groups import GroupTable
    from cometmq.broker.consumers.members import Members
    from cometmq.broker.consumers.offsets import ConsumerOffsets
    from cometmq.broker.hooks import Hooks
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.net.watchdog import Watchdog
    from cometmq.store.files import Files
    from cometmq.store.messagestore import MessageStore


@dataclass(frozen=True, slots=True)
class Context:
    """The surroundings of a broker's parts.

    ``directory`` holds the files of tables. ``files`` is None for the real file system.
    """

    config: BrokerConfig
    clock: Clock
    tasks: Tasks
    watchdog: Watchdog
    store: MessageStore
    hooks: Hooks
    directory: str
    files: Files | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a broker: topics, consumer groups, their offsets and their online members."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    members: Members
