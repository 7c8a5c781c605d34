"""Progress and lag of consumer groups, in messages and in time, and the copying of offsets from
group to group (upstream: AdminBrokerProcessor.java)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cometmq.broker.lookup import bounds
from cometmq.core.errors import BadRequest
from cometmq.core.slices import Slices
from cometmq.net.reply import Reply
from cometmq.protocol.bodies import ConsumeOffset, ConsumeStats, QueueKey
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.consumerbodies import (
    BrokerConsumeStats,
    CorrectionOffsets,
    QueueTimeSpan,
)
from cometmq.protocol.fastjson import encode_json, map_entry
from cometmq.protocol.fields import truth

if TYPE_CHECKING:
    from cometmq.broker.admin.longanswers import LongAnswer, LongAnswers
    from cometmq.broker.context import BrokerContext
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol import headers as h
    from cometmq.protocol.frame import Request

#: Correction that leaves the offset of a queue unchanged.
_NO_CORRECTION = 2**63 - 1


class ProgressAdmin:
    """Serves the codes that describe, compare and copy the offsets of groups.

    ``store_address`` is the "ip:port" that this broker reports to clients.
    """

    def __init__(self, context: BrokerContext, *, answers: LongAnswers, store_address: str) -> None:
        tables = context.tables
        self._config = context.config
        self._store = context.store
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._members = tables.members
        self._stats = context.stats
        self._answers = answers
        self._clock = answers.clock
        self._store_address = store_address

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_CONSUME_STATS: self.progress,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_progress,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self.corrections,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    async def progress(self, _peer: Peer, request: Request[h.GetConsumeStats]) -> Reply:
        """Return a group's offset in each queue, beside the end offset of the queue."""
        header = request.header
        topics = self._topics_of(header.consumer_group, header.topic)
        async with self._answers.one() as answer:
            tps = 0.0
            for topic in topics:
                if topic in self._topics:
                    await self._add_progress(answer, header.consumer_group, topic)
                    tps += self._stats.consume_tps(header.consumer_group, topic)
            return Reply(body=encode_json(_stats(tps, answer)))

    async def all_progress(self, _peer: Peer, request: Request[h.BrokerConsumeStats]) -> Reply:
        """Return the progress of every group in every topic that it has read."""
        only_ordered = truth(request.header.is_order)
        described: list[dict[str, list[ConsumeStats]]] = []
        total_diff = 0
        async with self._answers.one() as answer:
            for group in sorted(self._groups.values()):
                each: list[ConsumeStats] = []
                for topic in self._topics_of(group, None):
                    config = self._topics.get(topic)
                    if config is None or (only_ordered and not config.order):
                        continue
                    total_diff += await self._add_progress(answer, group, topic)
                    each.append(_stats(self._stats.consume_tps(group, topic), answer))
                described.append({group: each})
                await answer.pause()
            body = BrokerConsumeStats(self._store_address, described, total_diff)
            return Reply(body=encode_json(body))

    async def time_span(self, _peer: Peer, request: Request[h.ConsumeTimeSpan]) -> Reply:
        """Return store times for each queue of a topic: those of its oldest and newest message and
        of the message that the group read last, and the age of the message that it reads next."""
        topic, group = request.header.topic, request.header.group
        config = self._topics.get(topic)
        if config is None:
            raise BadRequest(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        async with self._answers.one() as answer:
            for queue_id in range(config.write_queue_nums):
                await answer.add(encode_json(await self._span(group, topic, queue_id)))
            return Reply(body=b'{"consumeTimeSpanSet":[' + answer.take() + b"]}")

    async def corrections(self, _peer: Peer, request: Request[h.QueryCorrectionOffset]) -> Reply:
        """Return, for each queue of a topic, the least offset of all groups except the filtered
        ones.

        For a queue where the compared group's offset is lower than that already, or where no other
        group has an offset, the value is 2**63 - 1: "no correction".
        """
        header = request.header
        left_out = {group.strip() for group in (header.filter_groups or "").split(",")}
        least: dict[int, int] = {}
        slices = Slices(self._clock)
        for group in self._offsets.groups_of(header.topic):
            if group in left_out:
                continue
            for queue_id, offset in self._offsets.queues_of(group, header.topic).items():
                low, _ = bounds(self._store, header.topic, queue_id)
                if offset >= low:
                    least[queue_id] = min(offset, least.get(queue_id, offset))
            await slices.pause()
        compared = self._offsets.queues_of(header.compare_group, header.topic)
        for queue_id, offset in compared.items():
            if least.get(queue_id, _NO_CORRECTION) > offset:
                least[queue_id] = _NO_CORRECTION
        return Reply(body=encode_json(CorrectionOffsets(least)))

    async def clone(self, _peer: Peer, request: Request[h.CloneGroupOffset]) -> Reply:
        """Copy a group's offsets to another group, in one topic or in all topics that the source
        group has read; answer once they are on the device."""
        header = request.header
        topics = [header.topic] if header.topic else self._offsets.topics_of(header.src_group)
        for topic in topics:
            if topic not in self._topics:
                continue
            if not truth(header.offline) and self._left(header.src_group, topic):
                continue
            for queue_id, offset in self._offsets.queues_of(header.src_group, topic).items():
                self._offsets.commit(header.dest_group, topic, queue_id, offset)
        await self._offsets.saved()
        return Reply()

    # ------------------------------------------------------------------------------------ internals

    def _topics_of(self, group: str, topic: str | None) -> list[str]:
        """Return the topics of a group: ``topic`` alone unless it is None, otherwise all that it
        has read. Topics that :meth:`_left` excludes are left out."""
        wanted = [topic] if topic else self._offsets.topics_of(group)
        return sorted(each for each in wanted if not self._left(group, each))

    def _left(self, group: str, topic: str) -> bool:
        """Decide whether the group is online with subscriptions, but none to the topic."""
        online = self._members.group(group)
        return (
            online is not None and bool(online.subscriptions) and topic not in online.subscriptions
        )

    async def _add_progress(self, answer: LongAnswer, group: str, topic: str) -> int:
        """Append a group's offset in each queue of a topic to the answer; return the total lag in
        messages."""
        config = self._topics.get(topic)
        behind = 0
        for queue_id in range(config.read_queue_nums if config else 0):
            found = await self._queue_progress(group, topic, queue_id)
            behind += found.broker_offset - found.consumer_offset
            key = QueueKey(topic, self._config.broker_name, queue_id)
            await answer.add(map_entry(key, found))
        return behind

    async def _queue_progress(self, group: str, topic: str, queue_id: int) -> ConsumeOffset:
        _, end = bounds(self._store, topic, queue_id)
        offset = max(self._offsets.query(group, topic, queue_id), 0)
        last_ms = 0
        if offset > 0:
            last_ms = max(await self._store.store_time_at(topic, queue_id, offset - 1), 0)
        return ConsumeOffset(end, offset, last_ms)

    async def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        time_at = self._store.store_time_at
        low, high = bounds(self._store, topic, queue_id)
        oldest_ms = await time_at(topic, queue_id, low)
        offset = self._offsets.query(group, topic, queue_id)
        delay_ms = 0
        if max(offset, low) < high:
            next_ms = await time_at(topic, queue_id, max(offset, low))
            delay_ms = max(self._clock.wall_ms() - next_ms, 0)
        return QueueTimeSpan(
            QueueKey(topic, self._config.broker_name, queue_id),
            oldest_ms,
            await time_at(topic, queue_id, high - 1),
            await time_at(topic, queue_id, offset - 1) if offset > 0 else oldest_ms,
            delay_ms,
        )


def _stats(tps: float, answer: LongAnswer) -> ConsumeStats:
    return ConsumeStats(tps, msgspec.Raw(b"{" + answer.take() + b"}"))
