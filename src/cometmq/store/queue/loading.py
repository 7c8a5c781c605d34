"""Loading of queues on first use, from their files or from the journal.

A start does not read the files of queues that are not used yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.core.errors import MessageIllegal
from cometmq.store.layout import SCHEDULE_TOPIC
from cometmq.store.queue.consumequeue import ConsumeQueue

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.consumequeue import Mark
    from cometmq.store.queue.journal import Tail


def load_queue(store: MessageStore, topic: str, queue_id: int) -> ConsumeQueue:
    """Load a queue that is not in memory, new or with the entries of its files.

    Raises MessageIllegal for a bad name.
    """
    queue = store.resumed.pop((topic, queue_id), None)
    log_start = store.log.segments.start
    if queue is not None:
        store.check_queue(queue)
        queue.find_first(log_start)
    else:
        queue = _made(store, topic, queue_id)
        ids = store.known.setdefault(topic, set())
        if queue_id in ids:
            store.check_queue(queue)
            queue.load(store.load_below, log_start)
            if not store.recovering:
                queue.settle()
        ids.add(queue_id)
    store.queues.add(queue)
    store.pool.share_memory(len(store.queues) + len(store.resumed))
    return queue


def resume_queues(store: MessageStore, tails: Mapping[tuple[str, int], Tail], since: Mark) -> None:
    """Take over the queues whose last entries the journal had.

    Their files are complete up to ``since`` and are read when a queue is first used.
    """
    for (topic, queue_id), tail in tails.items():
        queue = store.resumed[topic, queue_id] = _made(store, topic, queue_id)
        queue.resume(tail.first, tail.entries)
        store.dispatcher.resume(queue, since)
        store.known.setdefault(topic, set()).add(queue_id)


def _made(store: MessageStore, topic: str, queue_id: int) -> ConsumeQueue:
    delay_ms = 0
    if topic == SCHEDULE_TOPIC and store.delays_ms:
        delay_ms = store.delays_ms[min(queue_id, len(store.delays_ms) - 1)]
    try:
        return ConsumeQueue(store.pool, topic, queue_id, delay_ms, store.queues.like(topic))
    except ValueError as error:
        raise MessageIllegal(str(error)) from None
