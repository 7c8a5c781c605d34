"""Storing waiting messages where they belong, once they are due: for delay levels and timers.

A batch is appended within one turn of the loop and answered for by one future. The stored
properties stay as they are, as upstream leaves them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import MessageIllegal, StoreCorrupt
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.message.record import BadRecord, Record, decode_one

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from cometmq.broker.send.acknowledgement import Appender
    from cometmq.core.clock import Clock
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.read.coldreads import Found

log = logging.getLogger(__name__)

#: A turn appends for so long at most.
TURN_NS: Final = 2_000_000
#: After a refused delivery whoever wanted it rests for so long.
REST_MS: Final = 1_000
#: Records read together: not more, and not more bytes unless the first alone has them.
GATHER_COUNT: Final = 256
GATHER_BYTES: Final = 1 << 20

#: Records between two looks at the clock.
_RECORDS_A_LOOK: Final = 16
_NOWHERE: Final = frozenset({"", HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})


class Redelivery:
    """Appends records; :meth:`stored` waits for those of this turn."""

    def __init__(self, store: MessageStore, appender: Appender, clock: Clock) -> None:
        self._store = store
        self._appender = appender
        self._clock = clock
        self._until_ns = 0
        self._appended = self._passed = 0

    def begin(self) -> None:
        """A turn begins."""
        self._appended = self._passed = 0
        self._until_ns = self._clock.monotonic_ns() + TURN_NS

    @property
    def is_over(self) -> bool:
        """Whether this turn has lasted long enough."""
        return self._clock.monotonic_ns() > self._until_ns

    def goes_on(self) -> bool:
        """Count a record that was appended or passed over; whether this turn may take another.
        Only every so many of them are worth a look at the clock."""
        self._passed += 1
        return self._passed % _RECORDS_A_LOOK != 0 or not self.is_over

    def stored(self) -> asyncio.Future[None]:
        """Done when what was appended in this turn is as safe as the flush policy promises, at
        once when that is nothing; with a StoreError when none of it was stored."""
        return self._appender.stored(nothing=not self._appended)

    def append(
        self,
        record: Record,
        place: tuple[str, int],
        properties: Mapping[str, str],
        raw: bytes,
        *,
        prepared_offset: int = 0,
    ) -> bool:
        """Append a copy of a record for another queue. False, and logged, for one that no queue
        takes. Raises StoreError when the store takes none."""
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
        if self._appender.on_append is not None:
            topic, queue_id = place
            self._appender.on_append(topic, properties, queue_id, physical, queue_offset)
        return True


def real_place(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """The queue that a waiting message is for; None, and logged, when it names none that may get
    it."""
    topic = properties.get(props.REAL_TOPIC, "")
    text = properties.get(props.REAL_QID, "0")
    if topic in _NOWHERE or not (text.isascii() and text.isdigit() and len(text) < 10):
        log.error("delayed message dropped reason=real topic %r queue %r", topic, text)
        return None
    return topic, int(text)


def record_in(found: Found, topic: str) -> Record | None:
    """The waiting record in bytes of the log; None when the log has it no longer.

    Raises StoreCorrupt for damage, which an operator may still undo.
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
