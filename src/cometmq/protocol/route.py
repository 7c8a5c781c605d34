"""Topic routes as name servers return them (upstream: TopicRouteData.java), and the permission bits
of a topic (PermName.java).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from cometmq.protocol.bodies import Int32

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

MASTER_ID: Final = 0


class QueueData(Struct, rename="camel", frozen=True):
    """Queues of a topic on one broker. Peers before 4.9 send topicSynFlag, which is ignored."""

    broker_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_sys_flag: Int32 = 0


class BrokerData(Struct, rename="camel", frozen=True):
    """Broker name with its addresses by broker id, as text ("0" is the master)."""

    broker_name: str
    broker_addrs: dict[str, str]
    cluster: str = ""

    def master(self) -> str | None:
        """Return the master's address, or None if there is no master."""
        return self.broker_addrs.get("0")


class TopicRoute(Struct, rename="camel", frozen=True):
    """Response body of 105 (GET_ROUTEINFO_BY_TOPIC)."""

    broker_datas: list[BrokerData] = field(default_factory=list)
    queue_datas: list[QueueData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None


def readable(perm: int) -> bool:
    """Return whether consumers may read."""
    return perm & PERM_READ != 0


def writable(perm: int) -> bool:
    """Return whether producers may write."""
    return perm & PERM_WRITE != 0
