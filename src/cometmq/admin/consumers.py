"""Operations on consumers while they run: where they go on, what they hold, what they make of a
message. A broker passes them on; the consumers may be of any language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client.queuekeys import by_queue, queue_of
from cometmq.core.errors import BrokerRefused, RouteNotFound
from cometmq.message.ids import decode_offset_id
from cometmq.message.names import RETRY_PREFIX
from cometmq.protocol import headers as h
from cometmq.protocol.clientbodies import parse_client_body
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.consumerbodies import (
    ConsumerStatusRead,
    ConsumeTimeSpans,
    DirectResult,
    RunningInfoRead,
    read_offsets,
    reset_to,
)
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.admin.api import Admin
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.consumerbodies import ProcessQueueInfo, QueueTimeSpan
    from cometmq.protocol.frame import Response

#: The moment that means the end of every queue.
END: Final = -1
#: Brokers wait 10 s for a consumer.
_RELAY_TIMEOUT_MS: Final = 15_000


class ConsumerAdmin:
    """The part of ``admin`` that is about running consumers: ``Admin(session).consumers``.

    All methods raise NotConnected, RequestTimedOut and BrokerRefused where a server cannot be
    reached or refuses, and RouteNotFound.
    """

    def __init__(self, admin: Admin, session: Session, timeout_ms: int) -> None:
        self._admin = admin
        self._session = session
        self._timeout_ms = timeout_ms

    async def reset(
        self, group: str, topic: str, at_ms: int = END, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Have a group go on at the messages stored at ``at_ms`` (since the epoch; END is after all
        that is there); gives the offset of each queue.

        Consumers that run drop what they hold and go on there, Java's after 10 s; without any, the
        committed offsets are set. Unless ``force``, no message is skipped.
        """
        header = h.ResetOffset(topic, group, at_ms, force)
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        found: dict[MessageQueue, int] = {}
        for name, address in await self._masters(topic):
            try:
                response = await self._call(address, code, header)
            except BrokerRefused as refusal:
                if refusal.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                found.update(await self._set(group, topic, name, at_ms, force=force))
            else:
                found.update((queue_of(key), at) for key, at in read_offsets(response.body).items())
        return dict(sorted(found.items()))

    async def positions(
        self, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Where the members of a group stand in a topic, by client id, as they say themselves;
        those that do not answer are left out."""
        header = h.GetConsumerStatus(topic, group, client_id or None)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        # Members are connected to all brokers of the topic: one knows them all.
        (_, address), *_ = await self._masters(topic)
        response = await self._call(address, code, header)
        table = parse_json(response.body, ConsumerStatusRead).consumer_table
        return {client: by_queue(queues) for client, queues in table.items()}

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> RunningInfoRead:
        """What one member of a group says of itself; :func:`held` reads its queues. ``stacks`` asks
        for what its threads and tasks are doing."""
        header = h.GetConsumerRunningInfo(group, client_id, stacks)
        (_, address), *_ = await self._masters(RETRY_PREFIX + group)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        response = await self._call(address, code, header, _RELAY_TIMEOUT_MS)
        return read_running_info(response, client_id)

    async def consume_directly(self, group: str, client_id: str, offset_id: str) -> DirectResult:
        """Have one member of a group consume a stored message now, whatever its offset; tells what
        came of it. Raises ValueError when ``offset_id`` is none."""
        place = decode_offset_id(offset_id)
        host = f"[{place.host}]" if ":" in place.host else place.host
        header = h.ConsumeMessageDirectly(group, client_id, offset_id)
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        response = await self._call(f"{host}:{place.port}", code, header, _RELAY_TIMEOUT_MS)
        return parse_client_body(response.body, DirectResult)

    async def clone(self, source: str, target: str, topic: str = "") -> None:
        """Give the group ``target`` the progress of ``source``, in one topic or in all. Nobody of
        ``target`` should run: its members would overwrite it."""
        header = h.CloneGroupOffset(source, target, topic or None)
        masters = await self._masters(topic or RETRY_PREFIX + source)
        for _, address in masters:
            await self._call(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def time_span(self, group: str, topic: str) -> dict[MessageQueue, QueueTimeSpan]:
        """From when the messages of each queue are, and of when those that the group is at."""
        found: dict[MessageQueue, QueueTimeSpan] = {}
        header = h.ConsumeTimeSpan(topic, group)
        for _, address in await self._masters(topic):
            response = await self._call(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            spans = parse_json(response.body, ConsumeTimeSpans).consume_time_span_set
            found.update((queue_of(span.message_queue), span) for span in spans)
        return dict(sorted(found.items()))

    async def _set(
        self, group: str, topic: str, broker: str, at_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        """Set the offsets of a group that has nobody online, on one broker."""
        found: dict[MessageQueue, int] = {}
        for queue in await self._session.subscribe_queues(topic):
            if queue.broker_name != broker:
                continue
            if at_ms == END:
                offset = await self._admin.puller.max_offset(queue)
            else:
                offset = await self._admin.puller.search_offset(queue, at_ms)
            committed = await self._admin.group_offset(group, queue)
            found[queue] = reset_to(offset, -1 if committed is None else committed, force=force)
        await self._admin.commit_group_offsets(group, found)
        return found

    async def _masters(self, topic: str) -> list[tuple[str, str]]:
        """Name and address of the masters that have a topic."""
        route = await self._session.route(topic)
        masters = [
            (each.broker_name, address) for each in route.broker_datas if (address := each.master())
        ]
        if not masters:
            raise RouteNotFound(topic, "none of its masters is up")
        return masters

    async def _call(
        self, address: str, code: RequestCode, header: h.Header, timeout_ms: int = 0
    ) -> Response:
        return await self._session.remoting.call(
            address, code, header, timeout_ms=timeout_ms or self._timeout_ms
        )


def read_running_info(response: Response, client_id: str) -> RunningInfoRead:
    """What a member answered. Raises BrokerRefused with what it says where it had nothing: Go's
    client answers so while it has no rates yet, and calls that a success."""
    if not response.body and response.remark:
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        raise BrokerRefused(client_id, code, response.code, response.remark)
    return parse_json(response.body, RunningInfoRead)


def held(info: RunningInfoRead) -> dict[MessageQueue, ProcessQueueInfo]:
    """What a consumer holds of each queue that it reads."""
    return dict(sorted(by_queue(info.mq_table).items()))
