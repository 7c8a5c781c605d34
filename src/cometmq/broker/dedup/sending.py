"""Sends to topics with repeat detection: a message that is stored already is only answered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.append.commitbatch import Scattered
from cometmq.broker.dedup.batches import sift
from cometmq.broker.dedup.guard import Cold, Stored
from cometmq.core.errors import BadRequest, CometError, MessageIllegal
from cometmq.message.batch import has_more_than
from cometmq.net.router import begin_task, end_task
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.broker.append.acknowledgement import Appender
    from cometmq.broker.dedup.guard import RepeatGuard
    from cometmq.net.peer import Peer
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.frame import Request
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.write.batching import Shared

log = logging.getLogger(__name__)

#: Limit of messages in a batch, because the lookup of each id takes some microseconds.
MESSAGES_MAX: Final = 1_024

#: Again serves a request once more; Fail answers it with an error.
Again = Callable[["Peer", "Request[Any]"], None]
Fail = Callable[["Peer", "Request[Any]", CometError], None]


class GuardedSends:
    """Sends to topics that the broker's guard watches. ``again`` and ``fail`` are the send
    handler's."""

    def __init__(
        self,
        guard: RepeatGuard,
        *,
        store: MessageStore,
        appender: Appender,
        tasks: Tasks,
        again: Again,
        fail: Fail,
    ) -> None:
        self.guards = guard.guards
        self._guard = guard
        self._store = store
        self._appender = appender
        self._tasks = tasks
        self._again = again
        self._fail = fail

    def is_repeat(
        self,
        peer: Peer,
        request: Request[Any],
        message: tuple[str, str | None],
        *,
        wait_durable: bool,
    ) -> bool:
        """Decide whether a single send is handled here and must not be stored by the caller.

        True for a repeat, which is answered as the first message was, and for a send that waits
        until a record was read to decide that. ``message`` is the topic in which the message would
        be stored, and its unique key.
        """
        topic, unique = message
        if not unique or topic != request.header.topic or not self.guards(topic):
            return False
        found = self._guard.first(topic, unique)
        if found is None or self._store.state.refusal is not None:
            return False
        if isinstance(found, Cold):
            self._serve_later(peer, request, [found])
            return True
        self._guard.dropped += 1
        request.drop_body()
        send = (peer, request, found.queue_id, found.queue_offset, found.place)
        self._appender.add_repeat(send, found.place, wait_durable=wait_durable)
        return True

    def stored(self, topic: str, unique: str | None, stored: Stored) -> None:
        """Remember a single message that was appended in this turn of the event loop."""
        if unique and self.guards(topic):
            self._guard.remember(topic, unique, stored)

    def store_batch(
        self,
        peer: Peer,
        request: Request[Any],
        queue_id: int,
        shared: Shared,
        *,
        wait_durable: bool,
    ) -> None:
        """Store the new messages of a batch, and answer for all of them.

        Raise MessageIllegal for more than MESSAGES_MAX messages, and whatever
        ``MessageStore.append_batch`` raises.
        """
        if has_more_than(request.body, MESSAGES_MAX):
            raise MessageIllegal(
                f"a batch for a topic that drops repeated ids may contain at most {MESSAGES_MAX} "
                "messages: send smaller batches"
            )
        topic = request.header.topic
        sifted = sift(request.body, partial(self._guard.first, topic))
        if sifted.cold:
            self._serve_later(peer, request, sifted.cold)
            return
        new: list[Stored] = []
        first_offset, rows = 0, None
        if sifted.body:
            queue = self._store.queue(topic, queue_id)
            first_offset, rows = self._store.append_batch(queue, sifted.body, shared)
            batch, first, stop = rows
            new = [
                Stored(queue_id, first_offset + at, place)
                for at, place in enumerate(batch.places(first, stop))
            ]
        for unique, stored in zip(sifted.ids, new, strict=True):
            if unique is not None:
                self._guard.remember(topic, unique, stored)
        request.drop_body()
        if rows is not None and len(new) == len(sifted.places):
            self._appender.add_send(
                (peer, request, queue_id, first_offset, rows), wait_durable=wait_durable
            )
            return
        all_of_it = [where if isinstance(where, Stored) else new[where] for where in sifted.places]
        self._guard.dropped += len(all_of_it) - len(new)
        scattered = Scattered(
            [stored.place for stored in all_of_it], [stored.queue_offset for stored in all_of_it]
        )
        answered_queue = queue_id if new else all_of_it[0].queue_id
        send = (peer, request, answered_queue, all_of_it[0].queue_offset, scattered)
        self._appender.add_repeat(send, max(scattered.places), wait_durable=wait_durable)

    def _serve_later(self, peer: Peer, request: Request[Any], cold: Sequence[Cold]) -> None:
        begin_task(peer)
        self._tasks.spawn(
            self._read_and_serve(peer, request, cold), name=f"repeated send {peer.address}"
        )

    async def _read_and_serve(
        self, peer: Peer, request: Request[Any], cold: Sequence[Cold]
    ) -> None:
        try:
            for each in cold:
                await self._guard.read(each.place)
        except CometError as error:
            self._fail(peer, request, error)
        except OSError as error:
            log.exception("repeated_send_unreadable peer=%s", peer.address)
            self._fail(peer, request, BadRequest(ResponseCode.SYSTEM_ERROR, str(error)))
        else:
            self._again(peer, request)
        finally:
            end_task(peer)
