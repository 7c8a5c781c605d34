"""Sends rows as transactional messages: a message is visible if and only if its row is published.

    send the half message, with the id of this attempt -> mark the row with it -> commit
                            -> no end arrives, the broker asks: look the row up

A row that was sent twice, because a relay died or a response was lost, is delivered once: only one
of its half messages has the attempt id that marks the row. An attempt makes a single send attempt,
because a retry could store two half messages with the same attempt id.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.client.limits import goes_alone
from cometmq.client.producer import Producer
from cometmq.client.transactions import Transaction
from cometmq.core.errors import CometError, MessageIllegal
from cometmq.message.ids import lasting_number
from cometmq.outbox.publishing import Outcome, check_row, is_refusal

if TYPE_CHECKING:
    from cometmq.client.client import Client
    from cometmq.client.consumer.messageview import MessageView
    from cometmq.client.transactions import Checker
    from cometmq.message.model import Message
    from cometmq.outbox.row import Row

log = logging.getLogger(__name__)

#: Property that holds the attempt id.
ATTEMPT: Final = "outbox_attempt"
#: Maximum number of half messages in flight.
_CONCURRENCY: Final = 64


def may_be_half(row: Row) -> bool:
    """Return whether a row can be sent as a transactional message.

    Commits are not ordered, so it must have no order key. A transactional message has no delay and
    no birth time of its own.
    """
    try:
        message = row.message()
    except MessageIllegal:
        return False
    return row.order_key is None and not goes_alone(message) and not message.born_ms


class Halves:
    """Half messages of one page.

    Leaving commits them, unless :meth:`leave_open` was called; an error in the block rolls them
    back.
    """

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._producer = Producer(client.session, group)
        self._producer.share_hooks(client.producer)
        self._stack = AsyncExitStack()
        self._open: list[Transaction] = []
        self._room = asyncio.Semaphore(_CONCURRENCY)

    async def __aenter__(self) -> Halves:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.__aexit__(*error)  # type: ignore[arg-type]

    def leave_open(self) -> None:
        """Leave the transactions open, because it is unknown whether the rows are marked.

        The checker will look them up.
        """
        for transaction in self._open:
            transaction.leave_open()

    async def send(self, rows: Iterable[Row], outcome: Outcome) -> None:
        """Send a half message for each row and record the results in ``outcome``."""
        async with asyncio.TaskGroup() as group:
            for row in rows:
                group.create_task(self._send(row, outcome))

    async def _send(self, row: Row, outcome: Outcome) -> None:
        attempt = uuid.uuid4().hex
        try:
            message = check_row(self._client, row)
            message = msgspec.structs.replace(
                message, properties={**message.properties, ATTEMPT: attempt}
            )
            transaction = self._transaction(message)
            async with self._room:
                await self._stack.enter_async_context(transaction)
        except CometError as error:
            if is_refusal(error):
                outcome.refused[row.id] = str(error)
                log.error("outbox_row_refused row=%d topic=%s error=%s", row.id, row.topic, error)
            else:
                outcome.failed[row.topic] = error
            return
        self._open.append(transaction)
        outcome.published[row.id] = attempt

    def _transaction(self, message: Message) -> Transaction:
        return Transaction(
            self._client.session,
            self._producer,
            message,
            order_key=None,
            queue=None,
            timeout_ms=0,
            attempts=1,
        )


def checker(sent_as: Callable[[int], Awaitable[str | None]]) -> Checker:
    """Return a checker that ends a half message's transaction as its row is marked.

    ``sent_as`` returns the attempt of a row, or None.
    """

    async def check(message: MessageView) -> bool | None:
        marked = await sent_as(lasting_number(message.message_id))
        if marked is None:
            # The row still waits, and may be marked soon; or it was discarded, and stays unsent.
            return None
        return marked == message.properties.get(ATTEMPT)

    return check
