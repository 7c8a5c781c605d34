"""What a client knows about itself: connections, subscriptions, and what is unavailable. Values.

Everything is read from memory at one moment, without a request. Lag comes from what brokers said
with the last pull of each queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue

#: Stands for an offset that is not known yet.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """An open connection to a name server or broker."""

    address: str
    requests_in_flight: int


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A queue that a subscription reads.

    ``committed`` is the offset below which all messages are settled, ``position`` that of the next
    pull, ``end`` the end of the queue at the last pull (-1 before the first).
    """

    queue: MessageQueue
    committed: int
    position: int
    end: int
    waiting: int
    processing: int

    @property
    def lag(self) -> int | None:
        """Number of stored messages that are not settled; None before the first pull."""
        return None if self.end == UNKNOWN else max(self.end - self.committed, 0)


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """A subscription, or a pull consumer. ``queues`` has those of its retry topic too.

    ``refused`` is the error that ended it, "" while it may read. A pull consumer with queues that
    were assigned to it has no topics.
    """

    group: str
    topics: tuple[str, ...]
    queues: tuple[QueueProgress, ...]
    refused: str = ""

    @property
    def lag(self) -> int | None:
        """Sum over its queues; None if none was answered yet.

        A queue whose first pull has no answer yet counts as 0: a broker with messages answers at
        once.
        """
        known = [queue.lag for queue in self.queues if queue.lag is not None]
        return sum(known) if known else None

    def __str__(self) -> str:
        working = sum(queue.processing for queue in self.queues)
        waiting = sum(queue.waiting for queue in self.queues)
        lag = "unknown" if self.lag is None else str(self.lag)
        ended = f", ended: {self.refused}" if self.refused else ""
        return (
            f"{self.group} of {', '.join(self.topics) or 'assigned queues'}: "
            f"{len(self.queues)} queues, lag {lag}, "
            f"{working} in progress, {waiting} waiting{ended}"
        )


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A server (``topic`` is ""), a topic (``address`` is ""), or a topic on a server."""

    topic: str
    address: str
    seconds: int
    failures: int
    error: str

    def __str__(self) -> str:
        named = " on ".join(filter(None, (self.topic, self.address)))
        return f"{named} unavailable for {self.seconds} s: {self.error}"


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """The state of a client at one moment; ``str()`` of it is for people."""

    client_id: str
    name_servers: tuple[str, ...]
    connections: tuple[LinkStatus, ...]
    subscriptions: tuple[SubscriptionStatus, ...]
    unavailable: tuple[Unavailable, ...]
    pull_consumers: tuple[SubscriptionStatus, ...] = ()

    @property
    def problem(self) -> str:
        """The first reason why this client does not work as it should; "" for none.

        A check of readiness fails with it: something is unavailable, or a subscription has ended.
        """
        for each in self.unavailable:
            return str(each)
        return next((str(each) for each in self.consumers if each.refused), "")

    @property
    def consumers(self) -> tuple[SubscriptionStatus, ...]:
        """The subscriptions and the pull consumers."""
        return self.subscriptions + self.pull_consumers

    def __str__(self) -> str:
        links = [
            f"connected to {each.address}, {each.requests_in_flight} requests in flight"
            for each in self.connections
        ]
        lines = [*links, *map(str, self.consumers), *map(str, self.unavailable)]
        name = f"client {self.client_id} of {';'.join(self.name_servers)}"
        return "\n  ".join([name, *(lines or ["not connected"])])
