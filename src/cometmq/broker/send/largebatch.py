"""Batches that are too large to be packed on the event loop.

A large batch is packed in a thread. It gets its place in the log, as a whole, once it is packed;
until then the store knows nothing of it. Its connection is not served meanwhile, so that later
requests of that connection are stored after it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import BadRequest, CometError
from cometmq.net.router import begin_task, end_task
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.broker.acknowledgement import Appender, Fail
    from cometmq.message.batch import SharedFields
    from cometmq.net.peer import Peer
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.frame import Request
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

#: Minimum body of a batch that is packed in a thread; on the loop it would take up to 5 ms.
LARGE_BYTES: Final = 512 << 10


class LargeBatches:
    """Stores large batches, one at a time: each needs memory for a second copy of its records."""

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
        shared: SharedFields,
        *,
        wait_durable: bool,
    ) -> None:
        """Start to store a batch; it is answered once it is stored.

        Raises BadRequest if too many slow requests are running. The peer is held meanwhile.
        """
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
        shared: SharedFields,
        *,
        wait_durable: bool,
    ) -> None:
        try:
            async with self._one_at_a_time:
                queue = self._store.queue(request.header.topic, queue_id)
                parts = await self._store.pack_batch(queue, request.body, shared)
                # The topic may have been deleted and recreated while the batch was packed.
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
