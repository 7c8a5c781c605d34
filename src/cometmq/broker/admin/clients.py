"""Connected clients for administrators: the producers of groups, and requests that the broker
passes on to consumers (upstream: ProducerManager.java, AdminBrokerProcessor.callConsumer,
Broker2Client.getConsumeStatus). consumers/members.py lists the consumers of groups.

Request codes of the administrator and of the broker, and the answer:

    223 -> 221 to one or all consumers of a group    offsets of each, joined into one answer
    307 -> 307 to one consumer                       its running info, passed on unchanged
    309 -> 309 to one consumer, with a message       the result of consuming it at once
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.lookup import find_bytes
from cometmq.core.errors import BadRequest, ClientError, CometError, RequestTimedOut
from cometmq.message.ids import decode_offset_id
from cometmq.protocol.bodies import (
    ClientConnection,
    ClientStatusRead,
    ConsumerStatus,
    ProducerConnections,
    ProducerInfo,
    queue_table,
)
from cometmq.protocol.codes import VERSION_3_1_8, RequestCode, ResponseCode, version_name
from cometmq.protocol.fastjson import (
    REQUEST_DIALECT_MAX_BYTES,
    encode_json,
    map_entry,
    object_map,
    parse_json,
)
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import GetConsumerStatus

if TYPE_CHECKING:
    from cometmq.broker.admin.offsets import LongAnswers
    from cometmq.broker.consumers.members import Member
    from cometmq.broker.context import BrokerContext
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import (
        ConsumeMessageDirectly,
        GetConsumerRunningInfo,
        Header,
        ProducerGroup,
    )


log = logging.getLogger(__name__)

#: Time that one consumer, and all of a group together, have to answer; administrators wait 5 s for
#: the joined answer.
STATUS_TIMEOUT_MS: Final = 3_000
STATUS_TOTAL_MS: Final = 4_000
#: Maximum number of consumers that one request asks at once, and of requests that ask at once.
MAX_ASKED: Final = 64
MAX_STATUSES: Final = 4
#: Time that a consumer has to answer requests 307 and 309; administrators wait 15 s.
RELAY_TIMEOUT_MS: Final = 10_000
#: Limit of messages sent to consumers and of answers waiting for other consumers' answers, summed
#: over all administrators.
MAX_WAITING_BYTES: Final = 16 << 20
#: Maximum number of messages read from the store at the same time.
MAX_READS: Final = 2


class ClientAdmin:
    """Serves GET_PRODUCER_CONNECTION_LIST and GET_ALL_PRODUCER_INFO."""

    def __init__(self, context: BrokerContext, answers: LongAnswers) -> None:
        self._answers = answers
        self._members = context.tables.members
        self._clock = context.clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    def producers(self, _peer: Peer, request: Request[ProducerGroup]) -> Reply:
        """Return the connections of one producer group."""
        name = request.header.producer_group
        members = self._members.table.producers.get(name)
        if members is None:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        clients = [
            ClientConnection(member.client_id, peer.address, member.language, member.version)
            for peer, member in members.items()
        ]
        return Reply(body=encode_json(ProducerConnections(clients)))

    async def all_producers(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return the connections of every producer group."""
        # Heartbeat times are monotonic; tools expect wall-clock times.
        began_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        producers = self._members.table.producers
        async with self._answers.one() as answer:
            for group in sorted(producers):
                infos = [
                    ProducerInfo(
                        member.client_id,
                        peer.address,
                        member.language,
                        member.version,
                        began_ms + member.seen_ms,
                    )
                    for peer, member in producers.get(group, {}).items()
                ]
                await answer.add(map_entry(group, infos))
            return Reply(body=b'{"data":{' + answer.take() + b"}}")


class RelayHandler:
    """Serves INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GET_CONSUMER_RUNNING_INFO and
    CONSUME_MESSAGE_DIRECTLY."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._store = context.store
        self._members = context.tables.members
        self._reads = asyncio.Semaphore(MAX_READS)
        self._statuses = asyncio.Semaphore(MAX_STATUSES)
        self._waiting_bytes = 0

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    async def status(self, _peer: Peer, request: Request[GetConsumerStatus]) -> Reply:
        """Return the offsets of a group's consumers in a topic, as each consumer reports them;
        consumers that do not answer, or are not asked in time, are left out."""
        header = request.header
        group = self._members.group(header.group)
        if group is None:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        asked = [
            (peer, member)
            for peer, member in group.members.items()
            if not header.client_addr or header.client_addr == member.client_id
        ]
        found: dict[str, msgspec.Raw] = {}
        waiting = iter(asked)
        is_asking = False
        try:
            async with asyncio.timeout(STATUS_TOTAL_MS / 1000), self._statuses:
                is_asking = True
                await asyncio.gather(
                    *(self._ask_each(waiting, header, found) for _ in asked[:MAX_ASKED])
                )
        except TimeoutError:
            if not is_asking:
                raise BadRequest(
                    ResponseCode.SYSTEM_BUSY,
                    f"[OVERLOAD]{MAX_STATUSES} requests ask consumers already: ask again",
                ) from None
            log.warning(
                "consumer status incomplete group=%s consumers=%d not_asked=%d answered=%d",
                header.group, len(asked), len(list(waiting)), len(found),
            )  # fmt: skip
        finally:
            self._waiting_bytes -= sum(map(len, found.values()))
        return Reply(body=encode_json(ConsumerStatus(found)))

    async def _ask_each(
        self,
        waiting: Iterator[tuple[Peer, Member]],
        header: GetConsumerStatus,
        found: dict[str, msgspec.Raw],
    ) -> None:
        """Ask consumers one after another, taking them from ``waiting``, which tasks share."""
        for peer, member in waiting:
            await self._ask_one(peer, member, header, found)

    async def _ask_one(
        self,
        peer: Peer,
        member: Member,
        header: GetConsumerStatus,
        found: dict[str, msgspec.Raw],
    ) -> None:
        """Ask one consumer, and add its offsets to ``found`` if it answers and there is room."""
        table = await self._status(peer, member, header)
        if table is None or member.client_id in found:
            return
        if self._waiting_bytes + len(table) > MAX_WAITING_BYTES:
            log.warning(
                "consumer status omitted group=%s client=%s reason=%d bytes of answers are waiting",
                header.group, member.client_id, self._waiting_bytes,
            )  # fmt: skip
            return
        self._waiting_bytes += len(table)
        found[member.client_id] = table

    async def _status(
        self, peer: Peer, member: Member, header: GetConsumerStatus
    ) -> msgspec.Raw | None:
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        question = GetConsumerStatus(header.topic, header.group)
        try:
            answer = await peer.request(code, question, timeout_ms=STATUS_TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                raise BadRequest(answer.code, answer.remark or "the consumer gave no reason")
            body = parse_json(
                answer.body, ClientStatusRead, dialect_max_bytes=2 * REQUEST_DIALECT_MAX_BYTES
            )
            return object_map(queue_table(body.message_queue_table).items())
        except CometError as error:
            log.warning(
                "consumer status unavailable group=%s client=%s reason=%s",
                header.group, member.client_id, error,
            )  # fmt: skip
            return None

    async def running_info(self, _peer: Peer, request: Request[GetConsumerRunningInfo]) -> Reply:
        """Return the running info that one consumer reports."""
        header = request.header
        peer = self._consumer(header.consumer_group, header.client_id)
        return await self._ask(peer, request, header, b"")

    async def consume_directly(self, peer: Peer, request: Request[ConsumeMessageDirectly]) -> Reply:
        """Have one consumer consume the message of an offset id now; return the result."""
        header = request.header
        consumer = self._consumer(header.consumer_group, header.client_id)
        try:
            offset = decode_offset_id(header.msg_id or "").physical_offset
        except ValueError as error:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"msgId {header.msg_id!r} is not an offset id: {error}"
            ) from None
        async with self._reads:
            record = await find_bytes(self._store, offset, peer, request)
            if record is None:
                raise BadRequest(
                    ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
                )
            size_bytes = len(record)
            if self._waiting_bytes and self._waiting_bytes + size_bytes > MAX_WAITING_BYTES:
                raise BadRequest(
                    ResponseCode.SYSTEM_BUSY,
                    f"[OVERLOAD]{self._waiting_bytes} bytes of messages are waiting for direct "
                    "consumption: ask again later",
                )
            self._waiting_bytes += size_bytes
        try:
            asked = msgspec.structs.replace(header, broker_name=self._config.broker_name)
            return await self._ask(consumer, request, asked, record)
        finally:
            self._waiting_bytes -= size_bytes

    def _consumer(self, group: str, client_id: str | None) -> Peer:
        known = self._members.group(group)
        for peer, member in () if known is None else known.members.items():
            if member.client_id == client_id and not peer.closed:
                if member.version < VERSION_3_1_8:
                    raise BadRequest(
                        ResponseCode.SYSTEM_ERROR,
                        f"The Consumer <{client_id}> Version <{version_name(member.version)}> too "
                        "low to finish, please upgrade it to V3_1_8_SNAPSHOT",
                    )
                return peer
        raise BadRequest(
            ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
        )

    async def _ask(self, peer: Peer, request: Request[Any], header: Header, body: bytes) -> Reply:
        try:
            answer = await peer.request(request.code, header, body, timeout_ms=RELAY_TIMEOUT_MS)
        except RequestTimedOut as error:
            raise BadRequest(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {peer.address} Timeout: {error}"
            ) from None
        except ClientError as error:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer {peer.address} Exception: {error}"
            ) from None
        return Reply(answer.code, body=answer.body, remark=answer.remark, ext=answer.ext)
