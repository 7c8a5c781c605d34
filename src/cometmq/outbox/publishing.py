"""Sending of a page of the outbox: the rows of each key in order, different queues in parallel.

Rows with an order key go in batches to the queue that a Java producer would choose for the key. A
batch is sent once the previous one of the queue is stored. All rows of a topic without a key form
one more such sequence. Results of a batch:

    stored, SEND_OK              published
    stored less safely           sent again later; it may be stored twice
    a broker or network failed   sent again later, before any later row of the queue
    a message breaks a limit     refused; later rows of its key are held back

Rows may be sent as transactional messages instead: a message is visible if and only if its row is
published.

    1  send the half message, with an attempt id as property
    2  store the attempt id in the row, in the transaction that settles the page
    3  commit. If the commit is lost, the broker asks the checker, which looks up the row

A row that was sent twice, because a relay died or a response was lost, is delivered once: only one
of its half messages has the attempt id of the row. A send of a half message is not retried, because
a retry could store two half messages with the same attempt id.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.client.delivery import by_key
from cometmq.client.limits import check_message, check_target, goes_alone, plan_batches
from cometmq.client.producer import Producer
from cometmq.client.sendrequests import SendStatus
from cometmq.client.transactions import Transaction
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    CometError,
    LocalProtocolError,
    MessageIllegal,
)
from cometmq.message.ids import lasting_number
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.client.client import Client
    from cometmq.client.transactions import Checker
    from cometmq.message.model import Message, MessageQueue, MessageView
    from cometmq.outbox.row import Row

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """Results of the rows sent so far.

    ``published`` maps row ids to the attempt id of the half message (empty without transactions),
    ``refused`` maps row ids to reasons, ``failed`` maps each failed topic to its last error.
    """

    published: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    failed: dict[str, CometError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ready:
    row: Row
    message: Message


class _Held:
    """Set of the rows of a page that are held back: an earlier row of their key was refused."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, str | None], int] = {}

    def hold_behind(self, row: Row) -> None:
        if row.order_key is not None:
            self._refused.setdefault((row.topic, row.order_key), row.id)

    def __contains__(self, row: Row) -> bool:
        refused = self._refused.get((row.topic, row.order_key))
        return refused is not None and refused < row.id


class Publisher:
    """Sends rows as plain messages over ``client``.

    With ``hold_keys``, rows after a refused row of their key are not sent.
    """

    def __init__(self, client: Client, *, hold_keys: bool = True) -> None:
        self._client = client
        self._hold_keys = hold_keys

    async def publish(
        self, rows: Iterable[Row], outcome: Outcome, until_ms: float = math.inf
    ) -> None:
        """Send rows, which are in the order of their ids, and record the results in ``outcome``.

        No batch is begun after ``until_ms`` (monotonic), except for the first one of each queue.
        Rows that were not sent have no result.
        """
        held = _Held()
        lanes: dict[tuple[str, MessageQueue | None], list[_Ready]] = {}
        # Look queues up once per page: a route that changes in between must not split a key's rows.
        queues: dict[str, Sequence[MessageQueue]] = {}
        for row in rows:
            ready = self._ready(row, outcome, held)
            if ready is None or row.topic in outcome.failed:
                continue
            try:
                if row.topic not in queues:
                    queues[row.topic] = await self._client.queues(row.topic, "write")
            except ClientError as error:
                outcome.failed[row.topic] = error
                continue
            queue = None if row.order_key is None else by_key(queues[row.topic], row.order_key)
            lanes.setdefault((row.topic, queue), []).append(ready)
        async with asyncio.TaskGroup() as group:
            for (topic, queue), waiting in lanes.items():
                if topic not in outcome.failed:
                    group.create_task(self._send_lane(queue, waiting, outcome, held, until_ms))

    def _ready(self, row: Row, outcome: Outcome, held: _Held) -> _Ready | None:
        """Return a row with its message; None if it is held back, or refused here."""
        if row in held:
            return None
        try:
            return _Ready(row, check_row(self._client, row))
        except MessageIllegal as error:
            self._refuse(row, error, outcome, held)
            return None

    async def _send_lane(
        self,
        queue: MessageQueue | None,
        waiting: Sequence[_Ready],
        outcome: Outcome,
        held: _Held,
        until_ms: float,
    ) -> None:
        """Send the rows of one queue, or those without a key, batch after batch."""
        messages = [ready.message for ready in waiting]
        limit = self._client.config.max_batch_bytes
        for positions, _ in plan_batches(messages, lambda _: None, limit):
            part = [waiting[at] for at in positions if waiting[at].row not in held]
            if part and not await self._send(queue, part, outcome, held):
                return
            if self._client.session.clock.monotonic_ms() >= until_ms:
                return

    async def _send(
        self,
        queue: MessageQueue | None,
        part: Sequence[_Ready],
        outcome: Outcome,
        held: _Held,
    ) -> bool:
        """Send one batch; return False when the queue's later rows must not be sent for now."""
        try:
            if len(part) == 1:
                result = await self._client.producer.send(part[0].message, queue=queue)
            else:
                messages = [ready.message for ready in part]
                result = (await self._client.producer.send_batch(messages, queue=queue))[0]
        except CometError as error:
            if not is_refusal(error):
                outcome.failed[part[0].row.topic] = error
                return False
            if len(part) == 1:
                self._refuse(part[0].row, error, outcome, held)
                return True
            return await self._send_apart(queue, part, outcome, held)
        if result.status is not SendStatus.OK:
            outcome.failed[part[0].row.topic] = not_safe(result.queue.broker_name, result.status)
            return False
        outcome.published.update((ready.row.id, "") for ready in part)
        return True

    async def _send_apart(
        self,
        queue: MessageQueue | None,
        part: Sequence[_Ready],
        outcome: Outcome,
        held: _Held,
    ) -> bool:
        """Send the rows of a refused batch one by one, to find the row that is refused."""
        for ready in part:
            if ready.row in held:
                continue
            if not await self._send(queue, [ready], outcome, held):
                return False
        return True

    def _refuse(self, row: Row, error: CometError, outcome: Outcome, held: _Held) -> None:
        outcome.refused[row.id] = str(error)
        if self._hold_keys:
            held.hold_behind(row)
        log.error("outbox_row_refused row=%d topic=%s error=%s", row.id, row.topic, error)


def check_row(client: Client, row: Row) -> Message:
    """Return the message of a row. Raises MessageIllegal if no broker would accept it."""
    message = row.message()
    check_target(client.session.namespace.wrap(message.topic))
    check_message(message, client.config.max_message_bytes)
    return message


def is_refusal(error: CometError) -> bool:
    """Return whether the message itself causes an error, so that every retry would fail."""
    if isinstance(error, BrokerRefused):
        return error.code == ResponseCode.MESSAGE_ILLEGAL
    return isinstance(error, MessageIllegal | LocalProtocolError)


def not_safe(broker: str, status: SendStatus) -> BrokerRefused:
    """Return the error for a message that a broker stored without the durability it requires."""
    return BrokerRefused(broker, 0, status.value, f"stored, but not durable: {status.name}")


#: Property of a half message with the attempt id.
ATTEMPT: Final = "outbox_attempt"
#: Maximum number of half messages in flight.
_CONCURRENCY: Final = 64


def may_be_half(row: Row) -> bool:
    """Return whether a row can be sent as a transactional message.

    A row with an order key cannot, because commits are not ordered. Nor can a row with a delay or a
    birth time, because transactional messages support neither.
    """
    try:
        message = row.message()
    except MessageIllegal:
        return False
    return row.order_key is None and not goes_alone(message) and not message.born_ms


class Halves:
    """Half messages of one page, for use as ``async with``.

    The end of the block commits them, and an error in the block rolls them back. After
    :meth:`leave_open` neither happens.
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
        """Neither commit nor roll back, because it is unknown whether the rows were marked.

        The broker then asks the checker, which looks up the rows.
        """
        for transaction in self._open:
            transaction.leave_open()

    async def send(self, rows: Iterable[Row], outcome: Outcome, until_ms: float = math.inf) -> None:
        """Send a half message for each row, and record the results in ``outcome``.

        No send is begun after ``until_ms`` (monotonic), once one has succeeded.
        """
        async with asyncio.TaskGroup() as group:
            for row in rows:
                group.create_task(self._send(row, outcome, until_ms))

    async def _send(self, row: Row, outcome: Outcome, until_ms: float) -> None:
        clock = self._client.session.clock
        attempt = uuid.uuid4().hex
        try:
            message = check_row(self._client, row)
            message = msgspec.structs.replace(
                message, properties={**message.properties, ATTEMPT: attempt}
            )
            transaction = self._transaction(message)
            async with self._room:
                if outcome.published and clock.monotonic_ms() >= until_ms:
                    return
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
    """Return a checker that commits a half message if its row has the same attempt id.

    If the row has another one, it rolls the message back. ``sent_as`` returns the attempt id of a
    published row, otherwise None.
    """

    async def check(message: MessageView) -> bool | None:
        marked = await sent_as(lasting_number(message.message_id))
        if marked is None:
            # Undecided: the row may still be marked. (A row that was discarded never is.)
            return None
        return marked == message.properties.get(ATTEMPT)

    return check
