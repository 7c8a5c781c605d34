"""Offsets of queues and of consumer groups for administrators: progress and lag, in messages and in
time, copies from group to group, and resets (upstream: AdminBrokerProcessor.java,
Broker2Client.resetOffset).

A topic may have 65 536 queues, and a connection may ask for them many times at once. An answer with
one part for each queue stays in memory until it is complete. So the broker builds only one of them
at a time, in slices, and at most one frame long (:class:`LongAnswers`).

A reset while the consumers of the group run:

    administrator --222--> broker --220, one-way--> every consumer of the group

Each consumer drops the prefetched messages of the queues that it reads, and continues at the new
offsets; it ignores the other queues. The broker stores the offsets too, for queues that no consumer
reads at the moment. If a consumer commits an old offset before it receives the new one, it
overwrites the stored offset, and corrects it afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.lookup import bounds
from cometmq.core.clock import Slices
from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import (
    BrokerConsumeStats,
    ConsumeOffset,
    ConsumeStats,
    CorrectionOffsets,
    QueueKey,
    QueueTimeSpan,
    TopicConfig,
    TopicOffset,
    TopicStats,
    offset_entry,
    offset_table,
    reset_to,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json, map_entry
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply
from cometmq.protocol.framer import MAX_FRAME_BYTES
from cometmq.protocol.headers import ResetOffset

if TYPE_CHECKING:
    from cometmq.broker.consumers.members import Member, OnlineGroup
    from cometmq.broker.context import BrokerContext
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol import headers as h
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

#: Limit of all parts together; the rest of the frame is for its header and the enclosing JSON.
ANSWER_MAX_BYTES: Final = MAX_FRAME_BYTES - (1 << 20)
#: Limit of new offsets that were sent to a group's consumers and are not read yet; each consumer
#: gets up to a frame. At the limit, the broker waits this long for them; administrators wait 5 s.
MAX_UNREAD_BYTES: Final = 16 << 20
NOTIFY_TIMEOUT_MS: Final = 3_000
_READING_MS: Final = 10
#: Timestamp that means the end of each queue.
NOW: Final = -1
#: Correction that leaves the offset of a queue unchanged.
_NO_CORRECTION = 2**63 - 1


class LongAnswers:
    """Builds long answers, one at a time."""

    def __init__(self, clock: Clock, max_bytes: int = ANSWER_MAX_BYTES) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[LongAnswer]:
        """Wait until no other long answer is being built, then yield an empty one."""
        async with self._lock:
            yield LongAnswer(self._clock, self._max_bytes)


class LongAnswer:
    """Parts of the answer under construction."""

    __slots__ = ("_bytes_left", "_max_bytes", "_parts", "_slices")

    def __init__(self, clock: Clock, max_bytes: int) -> None:
        self._slices = Slices(clock)
        self._parts: list[bytes] = []
        self._max_bytes = self._bytes_left = max_bytes

    async def add(self, part: bytes) -> None:
        """Append one part, and yield to the event loop if this turn has lasted long enough.

        Raise BadRequest if the parts together are longer than a frame allows.
        """
        self._bytes_left -= len(part) + 1
        if self._bytes_left < 0:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"the answer would be longer than {self._max_bytes} bytes, more than a client "
                "accepts: ask for one group or one topic",
            )
        self._parts.append(part)
        await self._slices.pause()

    async def pause(self) -> None:
        """Yield to the event loop if this turn has lasted long enough."""
        await self._slices.pause()

    def take(self) -> bytes:
        """Return the parts added since the last call, joined by commas."""
        taken = b",".join(self._parts)
        self._parts.clear()
        return taken


class ProgressAdmin:
    """Serves the codes that show the offsets of a topic's queues, and those that show, compare and
    copy the offsets of groups."""

    def __init__(self, context: BrokerContext, answers: LongAnswers) -> None:
        tables = context.tables
        self._config = context.config
        self._store = context.store
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._members = tables.members
        self._stats = context.stats
        self._answers = answers
        self._clock = context.clock
        self._store_address = context.store_address

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.progress,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_progress,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self.corrections,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    async def topic_stats(self, _peer: Peer, request: Request[h.Topic]) -> Reply:
        """Return the first and end offset of each queue of a topic, and the store time of its last
        message."""
        topic = request.header.topic
        config = self._existing(topic)
        async with self._answers.one() as answer:
            for queue_id in range(config.write_queue_nums):
                low, high = bounds(self._store, topic, queue_id)
                last_ms = 0
                if high > low:
                    last_ms = max(await self._store.store_time_at(topic, queue_id, high - 1), 0)
                key = QueueKey(topic, self._config.broker_name, queue_id)
                await answer.add(map_entry(key, TopicOffset(low, high, last_ms)))
            return Reply(body=encode_json(TopicStats(msgspec.Raw(b"{" + answer.take() + b"}"))))

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
        config = self._existing(topic)
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

    def _existing(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise BadRequest(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

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


class ResetHandler:
    """Serves INVOKE_BROKER_TO_RESET_OFFSET."""

    def __init__(self, context: BrokerContext, answers: LongAnswers) -> None:
        self._config = context.config
        self._store = context.store
        self._topics = context.tables.topics
        self._offsets = context.tables.offsets
        self._members = context.tables.members
        self._clock = context.clock
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
            members = list(group.members.items())
            languages = {_dialect(member) for _, member in members}
            bodies = {
                language: await _table(offsets, language, answer)
                for language in ("JAVA", *(languages - {"JAVA"}))
            }
        await self._notify_all(members, header, bodies)
        return Reply(body=bodies["JAVA"])

    async def _notify_all(
        self, members: list[tuple[Peer, Member]], header: ResetOffset, bodies: Mapping[str, bytes]
    ) -> None:
        """Send the new offsets to the members, waiting while too many of the sent bytes are unread.

        Raise BadRequest if members do not read them in time.
        """
        deadline_ms = self._clock.monotonic_ms() + NOTIFY_TIMEOUT_MS
        reading: list[tuple[Peer, int]] = []
        new_bytes = 0
        for count, (peer, member) in enumerate(members):
            while new_bytes > MAX_UNREAD_BYTES:
                if self._clock.monotonic_ms() > deadline_ms:
                    raise BadRequest(
                        ResponseCode.SYSTEM_BUSY,
                        f"[OVERLOAD]the offsets of group {header.group} are reset, but only "
                        f"{count} of its {len(members)} consumers were told, as they do not read "
                        "what they are sent: reset them again",
                    )
                await self._clock.sleep_ms(_READING_MS)
                # The buffer of a connection also holds other data, such as answers to pulls.
                reading = [
                    (each, min(size_bytes, each.buffered_bytes))
                    for each, size_bytes in reading
                    if each.buffered_bytes
                ]
                new_bytes = sum(size_bytes for _, size_bytes in reading)
            body = bodies[_dialect(member)]
            _notify(peer, member, header, body)
            new_bytes += len(body)
            reading.append((peer, len(body)))

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
