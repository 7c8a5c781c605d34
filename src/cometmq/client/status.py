"""Status of a client: connections, subscriptions, and unavailable servers and topics.

It is read from memory, without a request. Lag is computed from the response to the last pull of
each queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue

#: An offset that is not known yet.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """An open connection to a name server or broker."""

    address: str
    requests_in_flight: int


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A queue that a subscription reads.

    ``committed`` is the offset before which all messages are settled, ``position`` that of the next
    pull, ``end`` the end of the queue at the last pull (-1 before the first). ``waiting`` messages
    were pulled and not delivered, ``processing`` ones are delivered and not settled.
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
    """A subscription or a pull consumer. ``queues`` includes those of its retry topic.

    ``refused`` is the error that ended it, "" while it may read. ``topics`` is empty for a pull
    consumer with manually assigned queues.
    """

    group: str
    topics: tuple[str, ...]
    queues: tuple[QueueProgress, ...]
    refused: str = ""

    @property
    def lag(self) -> int | None:
        """Sum of the lags of its queues; None before the first response to a pull.

        A queue without a response to its first pull counts as 0, because a broker that has messages
        responds at once.
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
    """Outage of a server (``topic`` is ""), a topic (``address`` is ""), or a topic on a server.

    ``seconds`` is its duration, ``failures`` the number of failed requests.
    """

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
    """State of a client; ``str()`` returns a text for people."""

    client_id: str
    name_servers: tuple[str, ...]
    connections: tuple[LinkStatus, ...]
    subscriptions: tuple[SubscriptionStatus, ...]
    unavailable: tuple[Unavailable, ...]
    pull_consumers: tuple[SubscriptionStatus, ...] = ()

    @property
    def problem(self) -> str:
        """First reason why this client does not work fully; "" if there is none.

        It is an outage, or an error that ended a subscription. Use it in a readiness check.
        """
        for each in self.unavailable:
            return str(each)
        return next((str(each) for each in self.consumers if each.refused), "")

    @property
    def consumers(self) -> tuple[SubscriptionStatus, ...]:
        """Subscriptions and pull consumers."""
        return self.subscriptions + self.pull_consumers

    def __str__(self) -> str:
        links = [
            f"connected to {each.address}, {each.requests_in_flight} requests in flight"
            for each in self.connections
        ]
        lines = [*links, *map(str, self.consumers), *map(str, self.unavailable)]
        name = f"client {self.client_id} of {';'.join(self.name_servers)}"
        return "\n  ".join([name, *(lines or ["not connected"])])
