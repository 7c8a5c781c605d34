"""Queries of a broker's state: messages, lag of groups, open transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.message.record import iter_decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.broker.app import Broker
    from tests.simulation.cluster.history import Group

_READ_AT_ONCE: Final = 32


async def bodies(broker: Broker, topic: str) -> list[str]:
    """Return the bodies in the first queue of a topic."""
    store = broker.store
    found: list[str] = []
    offset = 0
    while True:
        result = store.read(topic, 0, offset, _READ_AT_ONCE)
        if result.cold:
            await store.load(result)
        if not result.count or not result.chunks:
            return found
        body = b"".join(result.chunks)
        found += [record.body.decode() for record in iter_decode(body)]
        offset = result.next_offset


def behind(broker: Broker, groups: Sequence[Group]) -> list[str]:
    """Return descriptions of the queues in which a group's offset is not at the end."""
    found = []
    for group in groups:
        for topic in (*group.topics, group.retry_topic):
            for queue_id in broker.store.topics().get(topic, ()):
                queue = broker.store.find_queue(topic, queue_id)
                end = 0 if queue is None else queue.max_offset
                offset = broker.consumers.offsets.query(group.name, topic, queue_id)
                if offset != end and end:
                    found.append(f"{group.name} {topic}-{queue_id} at {offset} of {end}")
    return found


def ahead(broker: Broker) -> list[str]:
    """Return descriptions of the queues in which a group's offset is past the end."""
    found = []
    for topic, queue_ids in broker.store.topics().items():
        for group in broker.consumers.offsets.groups_of(topic):
            for queue_id, offset in broker.consumers.offsets.queues_of(group, topic).items():
                queue = broker.store.find_queue(topic, queue_id) if queue_id in queue_ids else None
                end = 0 if queue is None else queue.max_offset
                if offset > end:
                    found.append(f"{group} {topic}-{queue_id} at {offset}, the queue ends at {end}")
    return found


def open_transactions(broker: Broker) -> int:
    """Return the number of transactions that the broker holds open."""
    return len(broker.transactions.open.index)
