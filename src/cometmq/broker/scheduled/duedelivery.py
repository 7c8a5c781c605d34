"""Appends due messages to their real topics, for delay levels and timers.

The caller appends as many records as fit in one turn of the event loop. One future then reports
that all of them are stored. Their properties, with those of the delay, are stored unchanged, as
upstream does.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import MessageIllegal, StoreCorrupt
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.message.record import BadRecord, Record, decode_one

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from cometmq.broker.acknowledgement import Appender
    from cometmq.broker.stats import TopicCounts
    from cometmq.core.clock import Clock
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.read.coldreads import Found

log = logging.getLogger(__name__)

#: Longest time for which one turn appends.
TURN_NS: Final = 2_000_000
#: Pause of delivery after the store refused a record.
REST_MS: Final = 1_000
#: Maximum number of records that are read together, and of their bytes. A larger record is read
#: alone.
GATHER_COUNT: Final = 256
GATHER_BYTES: Final = 1 << 20

#: Records between two reads of the clock.
_CLOCK_INTERVAL_RECORDS: Final = 16
#: Topics that a waiting message cannot be for: none, and those where messages themselves wait.
_NOT_REAL_TOPICS: Final = frozenset({"", HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})


class DueDelivery:
    """Appends records, turn by turn.

    A turn: :meth:`begin`; :meth:`append` for each record while :meth:`goes_on` allows it; then
    :meth:`turn_outcome`, to wait for the records of the turn.

    ``counts`` counts the stored records by topic.
    """

    def __init__(
        self, store: MessageStore, appender: Appender, clock: Clock, counts: TopicCounts
    ) -> None:
        self._store = store
        self._appender = appender
        self._clock = clock
        self._until_ns = 0
        self._appended = self._handled = 0
        self._counts = counts
        #: Topic and size of each record that was appended in this turn.
        self._sizes: list[tuple[str, int]] = []

    def begin(self) -> None:
        """Start a turn."""
        self._appended = self._handled = 0
        self._sizes = []
        self._until_ns = self._clock.monotonic_ns() + TURN_NS

    @property
    def is_over(self) -> bool:
        """True if this turn has lasted long enough."""
        return self._clock.monotonic_ns() > self._until_ns

    def goes_on(self) -> bool:
        """Count one record, appended or skipped; return whether this turn may take another.

        Only every ``_CLOCK_INTERVAL_RECORDS``-th call reads the clock.
        """
        self._handled += 1
        return self._handled % _CLOCK_INTERVAL_RECORDS != 0 or not self.is_over

    def turn_outcome(self) -> asyncio.Future[None]:
        """Return a future for the records appended in this turn.

        It completes once the flush policy is met for them, or at once if there are none. It fails
        with a StoreError if they were not stored.
        """
        done = self._appender.turn_outcome(nothing=not self._appended)
        done.add_done_callback(partial(self._count, self._sizes))
        return done

    def _count(self, sizes: list[tuple[str, int]], done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            for topic, size_bytes in sizes:
                self._counts.add(topic, size_bytes)

    def append(
        self,
        record: Record,
        place: tuple[str, int],
        properties: Mapping[str, str],
        raw: bytes,
        *,
        prepared_offset: int = 0,
    ) -> bool:
        """Append a copy of a record to the queue ``place`` (topic and queue id).

        ``raw`` are the encoded ``properties``. Return False, after logging it, if the message is
        illegal, so that no later attempt can succeed. Raise StoreError if the store refuses it.
        """
        try:
            physical, queue_offset = self._store.append(
                self._store.queue(*place),
                record.body,
                raw,
                flag=record.flag,
                sys_flag=record.sys_flag,
                born_ms=record.born_ms,
                born_host=record.born_host,
                reconsume_times=record.reconsume_times,
                prepared_offset=prepared_offset,
                tag_code=tag_code(properties.get(props.TAGS)),
                keys=props.index_keys(properties),
            )
        except MessageIllegal as error:
            log.error("delayed message dropped topic=%s reason=%s", record.topic, error)
            return False
        self._appended += 1
        topic, queue_id = place
        self._sizes.append((topic, self._store.log.position - physical))
        if self._appender.on_append is not None:
            self._appender.on_append(topic, properties, queue_id, physical, queue_offset)
        return True


def real_place(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the topic and queue id that a waiting message is for.

    Return None, after logging it, if they are not valid.
    """
    topic = properties.get(props.REAL_TOPIC, "")
    text = properties.get(props.REAL_QID, "0")
    if topic in _NOT_REAL_TOPICS or not (text.isascii() and text.isdigit() and len(text) < 10):
        log.error("delayed message dropped reason=real topic %r queue %r", topic, text)
        return None
    return topic, int(text)


def record_in(found: Found, topic: str) -> Record | None:
    """Return the decoded record, which waits in ``topic``.

    Return None if the log does not hold it any longer, or has another topic's record there. Raise
    StoreCorrupt for damage, which an operator may still repair.
    """
    if found is None:
        return None
    if isinstance(found, StoreCorrupt):
        raise found
    try:
        record = decode_one(found)
    except BadRecord as error:
        raise StoreCorrupt("", -1, f"waiting record: {error.problem}") from error
    return record if record.topic == topic else None
