"""Batches of thousands of messages, which no single turn of the loop could store or answer.

They are stored one after the other, each in slices (store/bulk.py), while other sends go on. Their
bodies wait in memory, so their bytes are bound, and each counts as a slow request of its
connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import BadRequest, CometError
from cometmq.net.router import begin_task, end_task
from cometmq.protocol.codes import ResponseCode
from cometmq.store.bulk import Bulk

if TYPE_CHECKING:
    from cometmq.broker.durability import Appender
    from cometmq.broker.sendanswers import SendAnswers
    from cometmq.broker.turns import WaitingSend
    from cometmq.net.peer import Peer
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.frame import Request
    from cometmq.store.batching import Shared
    from cometmq.store.engine import MessageStore

log = logging.getLogger(__name__)

#: Bodies that wait. While a batch is stored, it takes up to thirty times its bytes.
MAX_WAITING_BYTES: Final = 32 * 1024 * 1024


class LargeBatches:
    """Stores and answers them."""

    def __init__(
        self,
        answers: SendAnswers,
        *,
        store: MessageStore,
        appender: Appender,
        tasks: Tasks,
    ) -> None:
        self._answers = answers
        self._store = store
        self._appender = appender
        self._tasks = tasks
        self._one = asyncio.Lock()
        self._waiting_bytes = 0

    def store(
        self,
        peer: Peer,
        request: Request[Any],
        place: tuple[str, int],
        shared: Shared,
        *,
        wait_durable: bool,
    ) -> None:
        """Store the batch that is the request's body in the queue at ``place``; its answer follows.

        Raises BadRequest (SYSTEM_BUSY) when too much waits.
        """
        size_bytes = len(request.body)
        if self._waiting_bytes and self._waiting_bytes + size_bytes > MAX_WAITING_BYTES:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{self._waiting_bytes} bytes of batches with thousands of messages wait "
                "to be stored: send smaller batches, or send again later",
            )
        begin_task(peer)
        self._waiting_bytes += size_bytes
        self._tasks.spawn(
            self._serve(peer, request, place, shared, wait_durable=wait_durable),
            name=f"large batch {peer.address}",
        )

    async def _serve(
        self,
        peer: Peer,
        request: Request[Any],
        place: tuple[str, int],
        shared: Shared,
        *,
        wait_durable: bool,
    ) -> None:
        size_bytes = len(request.body)
        try:
            async with self._one:
                bulk = Bulk(self._store, *place, shared)
                await bulk.prepare(request.body)
                request.drop_body()
                self._appender.end_turn()
                runs = await bulk.put()
        except CometError as error:
            self._answers.fail(peer, request, error)
        except Exception as error:
            log.exception("large batch failed peer=%s", peer.address)
            problem = f"{type(error).__name__}: {error}"
            self._answers.fail(peer, request, BadRequest(ResponseCode.SYSTEM_ERROR, problem))
        else:
            # Without a pause since the last piece: the commit that follows is also of this send.
            places = [run.places for run in runs]
            send: WaitingSend = (peer, request, place[1], runs[0].first_offset, places)
            self._appender.add_send(send, wait_durable=wait_durable)
        finally:
            self._waiting_bytes -= size_bytes
            end_task(peer)
