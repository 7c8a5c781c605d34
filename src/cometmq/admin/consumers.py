"""Operations on running consumers: reset offsets, read their state, process a message directly.

A broker relays the requests; the consumers may be clients in any language.
"""

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

#: Timestamp that stands for the end of every queue.
END: Final = -1
#: Brokers wait 10 s for a consumer.
_RELAY_TIMEOUT_MS: Final = 15_000


class ConsumerAdmin:
    """Operations on running consumers: ``Admin(session).consumers``.

    All methods raise NotConnected or RequestTimedOut when a server cannot be reached, BrokerRefused
    when it refuses, and RouteNotFound.
    """

    def __init__(self, admin: Admin, session: Session, timeout_ms: int) -> None:
        self._admin = admin
        self._session = session
        self._timeout_ms = timeout_ms

    async def reset(
        self, group: str, topic: str, at_ms: int = END, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Reset a group to the messages stored at ``at_ms``; return the new offset of each queue.

        ``at_ms`` is milliseconds since the epoch; END is the end of each queue. Running consumers
        drop their prefetched messages and continue there, Java consumers after 10 s. Without
        running consumers the committed offsets are set. Unless ``force``, no offset is moved
        forward.
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
        """Return the offsets in a topic by client id, as the members of the group report them.

        Members that do not respond are omitted.
        """
        header = h.GetConsumerStatus(topic, group, client_id or None)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        # Members are connected to all brokers of the topic, so any one broker knows them all.
        (_, address), *_ = await self._masters(topic)
        response = await self._call(address, code, header)
        table = parse_json(response.body, ConsumerStatusRead).consumer_table
        return {client: by_queue(queues) for client, queues in table.items()}

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> RunningInfoRead:
        """Return the state that one member of a group reports; :func:`held` reads its queues.

        ``stacks`` requests the stack traces of its threads and tasks.
        """
        header = h.GetConsumerRunningInfo(group, client_id, stacks)
        (_, address), *_ = await self._masters(RETRY_PREFIX + group)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        response = await self._call(address, code, header, _RELAY_TIMEOUT_MS)
        return read_running_info(response, client_id)

    async def consume_directly(self, group: str, client_id: str, offset_id: str) -> DirectResult:
        """Have one member of a group process a stored message now; return the result.

        The offset of the message does not matter. Raises ValueError if ``offset_id`` is invalid.
        """
        place = decode_offset_id(offset_id)
        host = f"[{place.host}]" if ":" in place.host else place.host
        header = h.ConsumeMessageDirectly(group, client_id, offset_id)
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        response = await self._call(f"{host}:{place.port}", code, header, _RELAY_TIMEOUT_MS)
        return parse_client_body(response.body, DirectResult)

    async def clone(self, source: str, target: str, topic: str = "") -> None:
        """Copy the committed offsets of group ``source`` to ``target``, in one topic or in all.

        No member of ``target`` should be running, because it would overwrite the offsets.
        """
        header = h.CloneGroupOffset(source, target, topic or None)
        masters = await self._masters(topic or RETRY_PREFIX + source)
        for _, address in masters:
            await self._call(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def time_span(self, group: str, topic: str) -> dict[MessageQueue, QueueTimeSpan]:
        """Return store times of messages in each queue.

        They are those of the oldest and the newest message, and of the group's next one.
        """
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
        """Set the offsets on one broker of a group without connected members."""
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
        """Return name and address of the masters that have a topic."""
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
    """Parse a member's response. Raises BrokerRefused with its remark if it has no body.

    The Go client sends an empty response with code SUCCESS while it has no rates yet.
    """
    if not response.body and response.remark:
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        raise BrokerRefused(client_id, code, response.code, response.remark)
    return parse_json(response.body, RunningInfoRead)


def held(info: RunningInfoRead) -> dict[MessageQueue, ProcessQueueInfo]:
    """Return the prefetch state of each queue that a consumer reads."""
    return dict(sorted(by_queue(info.mq_table).items()))
