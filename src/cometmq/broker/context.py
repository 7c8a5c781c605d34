"""Values and tables that most parts of a broker share; made once, at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.broker.acknowledgement import Appender
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers.groups import GroupTable
    from cometmq.broker.consumers.members import Members
    from cometmq.broker.consumers.offsets import ConsumerOffsets
    from cometmq.broker.stats import BrokerStats
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.store.files import Files
    from cometmq.store.messagestore import MessageStore


@dataclass(frozen=True, slots=True)
class BrokerTables:
    """Topics, and what the broker knows of consumer groups."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    members: Members


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Configuration, clock, tasks, files, store and tables of one broker.

    ``files`` is None for those of the operating system.
    """

    config: BrokerConfig
    clock: Clock
    tasks: Tasks
    files: Files | None
    store: MessageStore
    appender: Appender
    stats: BrokerStats
    tables: BrokerTables
