"""Transactional messages: stored first, and visible to consumers once the sender's work succeeded.

    send the half message -> run the block -> commit or roll back
                                           -> neither arrives: the broker asks the group's checker

The block runs only if the half message was stored as safely as the broker's flush and replication
settings require (upstream: DefaultMQProducerImpl.sendMessageInTransaction). Commit and rollback are
one-way requests; if one is lost, the broker asks the checker.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.client.consumer.callbackerrors import note
from cometmq.client.hooks import TransactionEnd, tell
from cometmq.client.sendrequests import SendStatus
from cometmq.core.errors import (
    AlreadyInUse,
    BrokerRefused,
    ClientError,
    MessageIllegal,
    NotOpen,
)
from cometmq.message import properties as props
from cometmq.message.ids import decode_offset_id
from cometmq.message.model import MessageView, from_record
from cometmq.message.record import BadRecord, TransactionType, decode_one
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import EndTransaction

if TYPE_CHECKING:
    from cometmq.client.arguments import Key
    from cometmq.client.delivery import QueueSelector
    from cometmq.client.hooks import TransactionHook
    from cometmq.client.producer import Producer
    from cometmq.client.sendrequests import SendResult
    from cometmq.client.session import Session
    from cometmq.message.model import Message, MessageQueue, StoredMessage
    from cometmq.protocol.frame import Reply, Request
    from cometmq.protocol.headers import CheckTransactionState

log = logging.getLogger(__name__)

#: Returns the state of a half message's transaction: True for committed, False for rolled back,
#: None if it is not known yet. After None the broker asks again.
Checker = Callable[[MessageView], Awaitable[bool | None]]

_END_OF: Final = {
    True: TransactionType.COMMIT,
    False: TransactionType.ROLLBACK,
    None: TransactionType.NONE,
}


class Transaction:
    """Transactional message around a block with the sender's work.

    Entering the block sends the half message. Leaving it commits, or rolls back if it raised.
    """

    def __init__(
        self,
        session: Session,
        producer: Producer,
        message: Message,
        *,
        order_key: Key | None,
        queue: MessageQueue | QueueSelector | None,
        timeout_ms: int,
        attempts: int = 0,
    ) -> None:
        self._session = session
        self._producer = producer
        self._message = message
        self._order_key = order_key
        self._queue = queue
        self._timeout_ms = timeout_ms
        self._attempts = attempts
        self._left_open = False
        self._sent: SendResult | None = None

    @property
    def result(self) -> SendResult:
        """Location of the stored half message. Raises NotOpen before it is stored."""
        if self._sent is None:
            raise NotOpen("the half message has not been sent yet: use `async with`")
        return self._sent

    @property
    def message_id(self) -> str:
        """Unique key of the message, by which a checker can look up the outcome of the block."""
        return self.result.message_id

    def leave_open(self) -> None:
        """End the block without commit or rollback; the broker then asks the group's checker."""
        self._left_open = True

    async def __aenter__(self) -> Transaction:
        """Send the half message.

        Raises the errors of Producer.send, and BrokerRefused if the message is stored less safely
        than the broker's settings require; it is then rolled back.
        """
        if self._message.is_delayed:
            raise MessageIllegal(
                "a transactional message cannot be delayed: it is delivered at its commit"
            )
        if self._message.born_ms:
            # Brokers compute from the birth time when to check a half message and when to drop it.
            raise MessageIllegal(
                "a transactional message gets its born time at the send: leave born_ms at 0"
            )
        sent = await self._producer.send_prepared(
            self._message,
            order_key=self._order_key,
            queue=self._queue,
            timeout_ms=self._timeout_ms,
            attempts=self._attempts,
        )
        self._sent = sent
        self._session.hold(self._session.namespace.wrap(self._message.topic))
        if sent.status is not SendStatus.OK:
            await self._end(TransactionType.ROLLBACK)
            raise BrokerRefused(
                sent.queue.broker_name,
                RequestCode.SEND_MESSAGE_V2,
                sent.status.value,
                f"the half message is not durable ({sent.status.name}): it was rolled back",
            )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if not self._left_open:
            committed = kind is None
            await self._end(TransactionType.COMMIT if committed else TransactionType.ROLLBACK)

    async def _end(self, kind: TransactionType) -> None:
        sent = self.result
        header = EndTransaction(
            producer_group=self._producer.known_as,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=decode_offset_id(sent.offset_id).physical_offset,
            commit_or_rollback=kind,
            msg_id=sent.message_id,
            from_transaction_check=False,
            transaction_id=sent.transaction_id or sent.message_id,
        )
        try:
            address = await self._session.master_of(self._session.namespace.wrap_queue(sent.queue))
            await self._session.remoting.oneway(address, RequestCode.END_TRANSACTION, header)
            if hooks := self._producer.transaction_hooks:
                message = self._message
                end = TransactionEnd(
                    sent.message_id, message.topic, message.tag, message.keys,
                    self._producer.group, address, header.transaction_id or "",
                    kind is TransactionType.COMMIT, False, self._session.clock.wall_ms(),
                )  # fmt: skip
                tell(hooks, end)
        except ClientError as error:
            log.warning(

                    "transaction_end_not_sent message=%s end=%s error=%s reason=the broker will "
                    "check the transaction",
                sent.message_id, kind.name, error,
            )  # fmt: skip


class CheckerTable:
    """Checkers of one client; answers the brokers' CHECK_TRANSACTION_STATE requests."""

    def __init__(self, session: Session, hooks: Sequence[TransactionHook] = ()) -> None:
        self._session = session
        self._hooks = hooks
        self._checkers: dict[str, Checker] = {}
        session.remoting.on_request[RequestCode.CHECK_TRANSACTION_STATE] = self._checked

    def add(self, group: str, checker: Checker) -> None:
        """Register the checker of a producer group (its broker name).

        Raises AlreadyInUse if the group already has one.
        """
        if group in self._checkers:
            raise AlreadyInUse("transaction checker", group, "it has one for all its transactions")
        self._checkers[group] = checker

    async def _checked(self, address: str, request: Request[CheckTransactionState]) -> Reply | None:
        try:
            record = decode_one(request.body)
            stored = from_record(record)
        except BadRecord as error:
            log.error("transaction_check_unreadable address=%s error=%s", address, error)
            return None
        group = stored.properties.get(props.PRODUCER_GROUP, "")
        checker = self._checkers.get(group)
        if checker is None:
            log.warning("transaction_checker_missing group=%s message=%s", group, stored.message_id)
            return None
        verdict = await self._ask(checker, stored)
        header = EndTransaction(
            producer_group=group,
            tran_state_table_offset=request.header.tran_state_table_offset,
            commit_log_offset=request.header.commit_log_offset,
            commit_or_rollback=_END_OF[verdict],
            msg_id=stored.message_id,
            from_transaction_check=True,
            transaction_id=request.header.transaction_id or stored.message_id,
        )
        try:
            await self._session.remoting.oneway(address, RequestCode.END_TRANSACTION, header)
            if self._hooks:
                names = self._session.namespace
                end = TransactionEnd(
                    stored.message_id, names.unwrap(stored.topic), stored.tag, stored.keys,
                    names.unwrap(group), address, header.transaction_id or "",
                    verdict, True, self._session.clock.wall_ms(),
                )  # fmt: skip
                tell(self._hooks, end)
        except ClientError as error:
            log.warning("transaction_end_not_sent message=%s error=%s", header.msg_id, error)
        return None

    async def _ask(self, checker: Checker, stored: StoredMessage) -> bool | None:
        try:
            verdict = await checker(MessageView(self._session.namespace.unwrap_message(stored)))
        except Exception as error:
            log.exception("transaction_checker_failed message=%s", stored.message_id)
            note(error)
            return None
        return None if verdict is None else bool(verdict)
