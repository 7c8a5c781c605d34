"""Administration of the store: removal of expired log files and queues on request (upstream:
AdminBrokerProcessor.java, DefaultMessageStore.cleanExpiredConsumerQueue)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import StoreError
from cometmq.message.names import is_system_topic
from cometmq.net.reply import Reply
from cometmq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from cometmq.broker.append.acknowledgement import Appender
    from cometmq.broker.consumers.offsets import ConsumerOffsets
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

_TOPICS_A_SLICE: Final = 16


class StoreAdmin:
    """Serves the codes that delete expired log files, and queues without messages."""

    def __init__(
        self, *, store: MessageStore, offsets: ConsumerOffsets, appender: Appender, clock: Clock
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._appender = appender
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_log,
        }

    async def delete_expired_log(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Delete the log files that are older than fileReservedTime, at any hour of the day."""
        try:
            await self._store.maintenance.expiry.make_room(at_once=True)
        except OSError as error:
            raise StoreError(f"cannot remove old log files: {error}") from error
        return Reply()

    async def clean_expired_queues(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Remove the queues whose messages have all been deleted from the log.

        The offsets of a removed queue begin at 0 again, so each group's offset in it is reset to 0.
        """
        dropped = 0
        for number, topic in enumerate(list(self._store.queues.known), 1):
            if not is_system_topic(topic):
                dropped += await self._drop(topic)
            if not number % _TOPICS_A_SLICE:
                await self._clock.sleep_ms(0)
        if dropped:
            log.warning("expired queues removed count=%d", dropped)
            await self._offsets.saved()
            await self._store.maintenance.note_soon()
        return Reply()

    async def _drop(self, topic: str) -> int:
        gone: list[int] = []
        try:
            await self._appender.between_turns(
                lambda: gone.extend(self._store.deletions.drop_expired(topic))
            )
        except OSError as error:
            raise StoreError(f"cannot remove the queues of topic {topic}: {error}") from error
        for group in self._offsets.groups_of(topic) if gone else ():
            for queue_id in gone:
                if self._offsets.query(group, topic, queue_id) > 0:
                    self._offsets.commit(group, topic, queue_id, 0)
        return len(gone)
