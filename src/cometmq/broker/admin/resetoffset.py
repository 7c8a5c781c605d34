"""Reset of a group's offsets while its consumers run (upstream: Broker2Client.resetOffset).

    administrator --222--> broker --220, one-way--> every consumer of the group

Each consumer drops the prefetched messages of the queues that it reads, and continues at the new
offsets; it ignores the other queues. The broker stores the offsets too, for queues that no consumer
reads at the moment. If a consumer commits an old offset before it receives the new one, it
overwrites the stored offset, and corrects it afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cometmq.broker.lookup import bounds
from cometmq.core.errors import BadRequest
from cometmq.net.reply import Reply
from cometmq.protocol.bodies import QueueKey
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.consumerbodies import offset_entry, offset_table, reset_to
from cometmq.protocol.fields import truth
from cometmq.protocol.headers import ResetOffset

if TYPE_CHECKING:
    from cometmq.broker.admin.longanswers import LongAnswer, LongAnswers
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers.members import Members
    from cometmq.broker.consumers.membertable import Member, OnlineGroup
    from cometmq.broker.consumers.offsets import ConsumerOffsets
    from cometmq.broker.topics.table import TopicTable
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

#: Timestamp that means the end of each queue.
NOW: Final = -1


class ResetHandler:
    """Serves INVOKE_BROKER_TO_RESET_OFFSET."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        members: Members,
        answers: LongAnswers,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._members = members
        self._answers = answers

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    async def reset(self, peer: Peer, request: Request[ResetOffset]) -> Reply:
        """Set a group's offsets by time, or to one offset, and notify its consumers; return the new
        offsets.

        Raise BadRequest with CONSUMER_NOT_ONLINE for a group without online consumers: its offsets
        can be set one by one, as there is no consumer to notify.
        """
        header = request.header
        log.info(
            "offset reset requested group=%s topic=%s time=%d force=%s peer=%s",
            header.group, header.topic, header.timestamp, header.is_force, peer.address,
        )  # fmt: skip
        queue_ids = self._queues(header)
        self._online(header)
        async with self._answers.one() as answer:
            wanted: dict[int, int] = {}
            for queue_id in queue_ids:
                wanted[queue_id] = await self._wanted(header, queue_id)
                await answer.pause()
            group = self._online(header)
            offsets: dict[QueueKey, int] = {}
            for queue_id, at in wanted.items():
                committed = self._offsets.query(header.group, header.topic, queue_id)
                key = QueueKey(header.topic, self._config.broker_name, queue_id)
                offsets[key] = reset_to(at, committed, force=truth(header.is_force))
                if group.message_model == "CLUSTERING":
                    self._offsets.commit(header.group, header.topic, queue_id, offsets[key])
                await answer.pause()
            languages = {_dialect(member) for member in group.members.values()}
            bodies = {
                language: await _table(offsets, language, answer)
                for language in ("JAVA", *(languages - {"JAVA"}))
            }
        for member_peer, member in group.members.items():
            _notify(member_peer, member, header, bodies[_dialect(member)])
        return Reply(body=bodies["JAVA"])

    def _queues(self, header: ResetOffset) -> range | list[int]:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                "[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
            )
        queue_ids = range(max(topic.read_queue_nums, topic.write_queue_nums))
        if header.queue_id is None or header.queue_id < 0:
            return queue_ids
        if header.queue_id not in queue_ids:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"queue {header.queue_id}: topic {header.topic} has {len(queue_ids)} queues",
            )
        return [header.queue_id]

    def _online(self, header: ResetOffset) -> OnlineGroup[Peer]:
        group = self._members.group(header.group)
        if group is None:
            raise BadRequest(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        return group

    async def _wanted(self, header: ResetOffset, queue_id: int) -> int:
        """Return the requested offset of a queue, within the queue's bounds."""
        low, high = bounds(self._store, header.topic, queue_id)
        if header.queue_id == queue_id and header.offset is not None and header.offset >= 0:
            return min(max(header.offset, low), high)
        if header.timestamp == NOW:
            return high
        return await self._store.offset_by_time(header.topic, queue_id, header.timestamp)


def _dialect(member: Member) -> str:
    """Return the language whose form of an offset table a member reads."""
    return "CPP" if member.language == "CPP" else "JAVA"


async def _table(offsets: Mapping[QueueKey, int], language: str, answer: LongAnswer) -> bytes:
    for key, at in offsets.items():
        await answer.add(offset_entry(key, at, language))
    return offset_table(answer.take(), language)


def _notify(peer: Peer, member: Member, header: ResetOffset, body: bytes) -> None:
    header_sent = ResetOffset(header.topic, header.group, header.timestamp, header.is_force)
    peer.send_oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header_sent, body)
    log.info(
        "consumer notified of offset reset group=%s topic=%s client=%s",
        header.group, header.topic, member.client_id,
    )  # fmt: skip
