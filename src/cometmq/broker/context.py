"""Values and tables that most parts of a broker share; made once, at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.broker.config import join
from cometmq.message.ids import unpack_host

if TYPE_CHECKING:
    from cometmq.broker.acknowledgement import Appender
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers.groups import GroupTable
    from cometmq.broker.consumers.members import Members
    from cometmq.broker.consumers.offsets import ConsumerOffsets
    from cometmq.broker.stats import BrokerStats
    from cometmq.broker.tables import TableDirectory
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.store.messagestore import MessageStore


@dataclass(frozen=True, slots=True)
class BrokerTables:
    """Tables of topics, consumer groups, their offsets, and online clients."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    members: Members


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Configuration, clock, tasks, store and tables of one broker. Further tables are kept in
    ``directory``."""

    config: BrokerConfig
    clock: Clock
    tasks: Tasks
    directory: TableDirectory
    store: MessageStore
    appender: Appender
    stats: BrokerStats
    tables: BrokerTables

    @property
    def store_address(self) -> str:
        """Address of this broker that is written into stored messages: "ip:port"."""
        return join(*unpack_host(self.store.store_host))
