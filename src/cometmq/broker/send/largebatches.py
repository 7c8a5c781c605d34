"""Batches of very many messages: packed in a thread, so that nobody waits for that.

Such a batch gets its place in the log, whole, when it is packed; until then the store knows nothing
of it, and the connection that it came from is not served, so that what follows on that connection
is stored behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import BadRequest, CometError
from cometmq.net.router import begin_task, end_task
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.broker.send.acknowledgement import Appender
    from cometmq.net.peer import Peer
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.frame import Request
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.write.batching import Shared

log = logging.getLogger(__name__)

#: The body of a batch that is packed in a thread: one of these in the loop takes up to 5 ms.
LARGE_BYTES: Final = 512 << 10

#: Answers a request with the error that kept it from being stored.
Fail = Callable[["Peer", "Request[Any]", CometError], None]


class LargeBatches:
    """Stores them, one after the other: each has its records in memory a second time."""

    def __init__(
        self, *, store: MessageStore, appender: Appender, tasks: Tasks, fail: Fail
    ) -> None:
        self._store = store
        self._appender = appender
        self._tasks = tasks
        self._fail = fail
        self._one_at_a_time = asyncio.Lock()

    def begin(
        self,
        peer: Peer,
        request: Request[Any],
        queue_id: int,
        shared: Shared,
        *,
        wait_durable: bool,
    ) -> None:
        """Store a batch soon; it is answered then. Raises BadRequest where too much is running."""
        begin_task(peer)
        peer.hold()
        self._tasks.spawn(
            self._store_it(peer, request, queue_id, shared, wait_durable=wait_durable),
            name=f"large batch {peer.address}",
        )

    async def _store_it(
        self,
        peer: Peer,
        request: Request[Any],
        queue_id: int,
        shared: Shared,
        *,
        wait_durable: bool,
    ) -> None:
        try:
            async with self._one_at_a_time:
                queue = self._store.queue(request.header.topic, queue_id)
                parts = await self._store.pack_batch(queue, request.body, shared)
                # Its topic may have been deleted, and made anew, meanwhile.
                queue = self._store.queue(request.header.topic, queue_id)
                offset, rows = self._store.append_parts(queue, parts, shared)
            request.drop_body()
            send = (peer, request, queue_id, offset, rows)
            self._appender.add_large(send, wait_durable=wait_durable)
        except CometError as error:
            self._fail(peer, request, error)
        except Exception as error:
            log.exception("large_batch_failed peer=%s", peer.address)
            self._fail(peer, request, BadRequest(ResponseCode.SYSTEM_ERROR, str(error)))
        finally:
            end_task(peer)
            peer.go_on()
