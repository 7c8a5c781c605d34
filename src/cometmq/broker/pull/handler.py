"""Pulling: check, read, answer with the stored bytes, or hold until there is something.

The answer's body is sliced out of the log; nothing is decoded. What a pull wants is read in
filtering.py (upstream: PullMessageProcessor.java).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import structs

from cometmq.broker.pull.filtering import keep_matching, read_matching
from cometmq.broker.pull.longpoll import MAX_HOLD_MS, HeldPull, LongPoll
from cometmq.core.errors import BadRequest, CometError, StoreCorrupt
from cometmq.message.names import SYSTEM_GROUP_PREFIX
from cometmq.net.router import Reply, begin_task, end_task
from cometmq.protocol.answers import pull_pieces
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import JSON
from cometmq.protocol.framer import MANY
from cometmq.protocol.headers import PullMessage, PullMessageResponse
from cometmq.protocol.route import PERM_READ
from cometmq.speedups import answer_frame, read_pull
from cometmq.store.read.coldreads import FarTurns
from cometmq.store.read.filtered import read_matching_at_once
from cometmq.store.read.reader import Query, ReadStatus, empty, is_far, read, read_near

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers.groups import GroupTable
    from cometmq.broker.consumers.offsets import ConsumerOffsets
    from cometmq.broker.hooks import ConsumeHooks
    from cometmq.broker.pull.filtering import Filters
    from cometmq.broker.stats import BrokerStats
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.filter.sql92 import SqlFilter
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.net.tasks import Tasks
    from cometmq.net.watchdog import Watchdog
    from cometmq.protocol.frame import Request
    from cometmq.protocol.framer import TakeFrames
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from cometmq.store.read.reader import ReadLimits, ReadResult

log = logging.getLogger(__name__)

# Bits of the pull sysFlag (upstream: PullSysFlag.java).
COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2

#: What one answer holds at the most (upstream: maxTransferBytesOnMessageInMemory and -Count).
MAX_BYTES: Final = 262_144
MAX_MESSAGES: Final = 32
#: The same for a group of the system that asks for more, as the Spark source does: it reads all
#: there is, and a pull costs a broker as much as thirty messages.
MAX_BULK_MESSAGES: Final = 1_024
#: A look at messages by an expression that took longer ends the turn of all who filter.
LONG_LOOK_NS: Final = 2_000_000
#: Pulls that wait so count as slow requests when their expression has more parts.
LIGHT_WEIGHT: Final = 64
#: Cold reads under way at once: each holds its bytes in memory.
MAX_COLD_READS: Final = 16

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}

#: Queues without a message yet, on disk or not even there.
_EMPTY: Final = (ReadStatus.NO_MESSAGE_IN_QUEUE, ReadStatus.NO_MATCHED_LOGIC_QUEUE)
_HOLDABLE: Final = (ReadStatus.OFFSET_OVERFLOW_ONE, *_EMPTY)

#: Plain pulls of a connection that are served before others get their turn.
_AT_ONCE: Final = 8


class PullHandler:
    """Serves PULL_MESSAGE and LITE_PULL_MESSAGE."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        filters: Filters,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        hooks: ConsumeHooks,
        clock: Clock,
        tasks: Tasks,
        watchdog: Watchdog,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._offsets = offsets
        self._stats = stats
        self._hooks = hooks
        self._clock = clock
        self._tasks = tasks
        #: Whether slaves serve who reads far behind the end; and on a slave, whether it may be
        #: read now, and whether its master is gone.
        self.relieved: Callable[[], bool] = lambda: False
        self.serves: Callable[[], bool] = lambda: True
        self.is_alone: Callable[[], bool] = lambda: False
        self._bulk_limits = structs.replace(store.limits, hot_max_count=MAX_BULK_MESSAGES)
        self._cold_reads = asyncio.Semaphore(MAX_COLD_READS)
        self._far = FarTurns(clock, tasks, lambda: store.written_offset)
        soon = asyncio.get_running_loop().call_soon
        self.longpoll = LongPoll(
            clock,
            self._serve_held,
            lambda serve: soon(watchdog.watched("held pulls", serve)),
            store.listeners,
        )

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code; a lite pull consumer's pulls have a code of their own."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def takers(self) -> dict[int, TakeFrames[Peer]]:
        """What takes frames before they are requests, by request code."""
        return dict.fromkeys(self.handlers(), self.take_pulls)

    def pull(self, peer: Peer, request: Request[PullMessage]) -> Reply | None:
        """Answer a pull, or hold it; the answer is written by this handler."""
        header = request.header
        self._check(header)
        if self._hooks:
            self._hooks.before_pull(peer, request)
        try:
            self._pull(peer, request)
        except CometError as error:
            self._hooks.after_pull(peer, request, error.code, 0, 0)
            raise
        return None

    def take_pulls(self, peer: Peer, data: bytes, at: int) -> tuple[int, int]:
        """Answer the plain pulls of a connection that find their messages in memory.

        Gives where in ``data`` the first frame begins that was not answered, and how many from
        there on have to be served one by one.
        """
        if peer.router.hooks or self._hooks.added:
            return at, MANY
        for _ in range(_AT_ONCE):
            found = read_pull(data, at)
            if isinstance(found, int):
                return at, found
            fields, opaque, stop = found
            if not self._answer_at_once(peer, PullMessage(*fields), opaque):
                return at, 1
            at = stop
        return at, 0

    def _answer_at_once(self, peer: Peer, header: PullMessage, opaque: int) -> bool:
        """Answer a pull if what it asks for is in memory; nothing has happened otherwise."""
        store = self._store
        queues = store.queues.by_topic.get(header.topic)
        queue = None if queues is None else queues.get(header.queue_id)
        if queue is None:
            return False
        try:
            self._check(header)
            wanted = self._filters.wanted(header)
        except CometError:
            return False  # whoever serves it alone meets it again
        if wanted.sql is not None:
            result = self._look_at_once(queue, header, wanted.sql)
        else:
            count, limits = max(1, header.max_msg_nums), store.limits
            if count > MAX_MESSAGES:
                count, limits = self._most(header)
            query = Query(queue, header.queue_offset, count, MAX_BYTES, wanted.codes)
            result = read_near(query, store.reads, limits)
            if result is not None and not result.count:
                return False
        if result is None:
            return False
        if header.sys_flag & COMMIT_OFFSET:
            self._offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        if result.count:
            self._stats.on_pull(
                header.consumer_group, header.topic, result.count, result.size_bytes
            )
        else:
            self._stats.on_pull_missed()
        numbers = (
            result.max_offset, result.min_offset, result.next_offset,
            self._suggested(header, result), opaque,
        )  # fmt: skip
        pieces = pull_pieces(_CODES[result.status], result.status.name)
        peer.write(answer_frame(pieces, numbers, result.chunks))
        return True

    def _look_at_once(
        self, queue: ConsumeQueue, header: PullMessage, sql: SqlFilter
    ) -> ReadResult | None:
        """What matches of messages in memory, or that none of many does; None otherwise, and while
        others have to get their turns."""
        if self.longpoll.rests:
            return None
        begun_ns = self._clock.monotonic_ns()
        found = self._look(queue, header.queue_offset, header, sql)
        self._looked(begun_ns)
        return found

    def _look(
        self, queue: ConsumeQueue, offset: int, header: PullMessage, sql: SqlFilter
    ) -> ReadResult | None:
        """What matches of messages in memory; None when these are not there."""
        count = max(1, min(header.max_msg_nums, MAX_MESSAGES))
        query = Query(queue, offset, count, MAX_BYTES, None)
        return read_matching_at_once(query, self._store.reads, self._store.limits, sql)

    def _looked(self, begun_ns: int) -> None:
        """A look by an expression that began at that moment is over."""
        if self._clock.monotonic_ns() - begun_ns > LONG_LOOK_NS:
            self.longpoll.rest()

    def _most(self, header: PullMessage) -> tuple[int, ReadLimits]:
        """How many messages a pull gets that asks by tags at the most, and other limits."""
        if _is_bulk(header):
            return min(header.max_msg_nums, MAX_BULK_MESSAGES), self._bulk_limits
        return max(1, min(header.max_msg_nums, MAX_MESSAGES)), self._store.limits

    def _pull(self, peer: Peer, request: Request[PullMessage]) -> None:
        header = request.header
        wanted = self._filters.wanted(header)
        if not self.serves():
            peer.reply(
                request,
                Reply(
                    ResponseCode.PULL_RETRY_IMMEDIATELY,
                    header=PullMessageResponse(0, header.queue_offset, 0, 0),
                    remark="this slave is read only while its master is gone (slaveReadEnable)",
                ),
            )
            return
        is_slave = self._config.is_slave
        if header.sys_flag & COMMIT_OFFSET and header.commit_offset >= 0 and not is_slave:
            self._offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        pull = HeldPull(
            peer, request, (header.topic, header.queue_id), header.queue_offset, wanted, 0
        )
        if wanted.sql is not None and self.longpoll.rests and self._filters.has_room:
            if wanted.sql.weight > LIGHT_WEIGHT:
                begin_task(peer)
                pull.is_task = True
            self.longpoll.look_on(pull)
            return
        self._read(pull, final=False)

    def _serve_held(self, pull: HeldPull, final: bool) -> None:
        if pull.is_task:
            pull.is_task = False
            pull.peer.running_tasks -= 1
        try:
            self._read(pull, final)
        except Exception as error:  # nobody else is there to answer it
            self._fail(pull, error)

    def _serve_far(self, pull: HeldPull, final: bool) -> None:
        if not pull.peer.closed:
            self._serve_held(pull, final)

    def _fail(self, pull: HeldPull, error: Exception) -> None:
        if not isinstance(error, StoreCorrupt):  # the store has said that once, for everybody
            log.error("pull failed queue=%s peer=%s error=%r", pull.queue, pull.peer.address, error)
        code = error.code if isinstance(error, CometError) else ResponseCode.SYSTEM_ERROR
        self._hooks.after_pull(pull.peer, pull.request, code, 0, 0)
        pull.peer.reply(pull.request, Reply(code, remark=str(error)))

    def _find(self, pull: HeldPull) -> ReadResult:
        wanted, header = pull.wanted, pull.request.header
        topic, queue_id = pull.queue
        queue = self._store.find_queue(topic, queue_id)
        count, limits = self._most(header)
        if wanted.sql is None:
            if queue is None:
                return empty(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
            query = Query(queue, pull.offset, count, MAX_BYTES, wanted.codes)
            return read(query, self._store.reads, limits)
        if queue is not None:
            found = self._look(queue, pull.offset, header, wanted.sql)
            if found is not None:
                return found
        read_some = partial(self._store.read, topic, queue_id)
        count = min(count, MAX_MESSAGES)
        return read_matching(read_some, pull.offset, count, MAX_BYTES, wanted.sql)

    def _is_far(self, pull: HeldPull) -> bool:
        queue = self._store.find_queue(*pull.queue)
        return queue is not None and is_far(queue, pull.offset, self._store.reads)

    def _read(self, pull: HeldPull, final: bool) -> None:
        begun_ns = self._clock.monotonic_ns()
        if self._far.must_wait(begun_ns) and self._is_far(pull):
            self._far.wait(partial(self._serve_far, pull, final))
            return
        result = self._find(pull)
        if pull.wanted.sql is not None:
            self._looked(begun_ns)
        if result.status is ReadStatus.NO_MATCHED_MESSAGE and pull.key >= 0 and not final:
            # What woke it does not match: it waits on behind that, or looks on in a later turn.
            pull.offset = result.next_offset
            if pull.offset < result.max_offset:
                self._far_read(result, begun_ns)
                self.longpoll.look_on(pull)
                return
            result = self._find(pull)
        if result.status is ReadStatus.FOUND:
            if result.cold:
                self._start_loading(pull, result)
            else:
                self._found(pull, result, begun_ns)
            return
        self._stats.on_pull_missed()
        self._far_read(result, begun_ns)
        if not self._hold(pull, result, final):
            self._answer(pull, result, ())

    def _hold(self, pull: HeldPull, result: ReadResult, final: bool) -> bool:
        header = pull.request.header
        # Who is ahead of a slave would ask it again and again while the master is gone.
        is_ahead = result.status is ReadStatus.OFFSET_OVERFLOW_BADLY and self.is_alone()
        if not (result.status in _HOLDABLE or is_ahead):
            return False
        if final or not header.sys_flag & SUSPEND or header.suspend_timeout_millis <= 0:
            return False
        if result.status in _EMPTY and pull.offset != 0 and not self._config.is_slave:
            return False
        if pull.wanted.sql is not None and not self._filters.has_room:
            return False
        if not pull.deadline_ms:
            hold_ms = min(header.suspend_timeout_millis, MAX_HOLD_MS)
            if is_ahead or not self._config.long_polling_enable:
                hold_ms = self._config.short_polling_time_mills
            pull.deadline_ms = self._clock.monotonic_ms() + hold_ms
        return self.longpoll.hold(pull)

    def _start_loading(self, pull: HeldPull, result: ReadResult) -> None:
        begin_task(pull.peer)
        self._tasks.spawn(self._load(pull, result), name=f"cold read {pull.queue}")

    async def _load(self, pull: HeldPull, result: ReadResult) -> None:
        try:
            async with self._cold_reads:
                if not pull.peer.closed:
                    await self._store.load(result)
                    self._loaded(pull, result)
        except Exception as error:  # nobody else is there to answer it
            self._fail(pull, error)
        finally:
            end_task(pull.peer)

    def _loaded(self, pull: HeldPull, result: ReadResult) -> None:
        begun_ns = self._clock.monotonic_ns()
        if pull.wanted.sql is not None:
            keep_matching(result, pull.wanted.sql)
            if not result.count and result.status is ReadStatus.FOUND:
                result.status = ReadStatus.NO_MATCHED_MESSAGE
        self._found(pull, result, begun_ns)

    def _found(self, pull: HeldPull, result: ReadResult, begun_ns: int) -> None:
        header = pull.request.header
        self._stats.on_pull(header.consumer_group, header.topic, result.count, result.size_bytes)
        self._answer(pull, result, result.chunks)
        self._far_read(result, begun_ns)

    def _far_read(self, result: ReadResult, begun_ns: int) -> None:
        """Count a read that began at that moment, if it was far behind the end."""
        if result.far:
            self._far.spent(begun_ns)

    def _answer(
        self, pull: HeldPull, result: ReadResult, chunks: tuple[memoryview, ...] | list[memoryview]
    ) -> None:
        peer, request = pull.peer, pull.request
        status = result.status
        if status in _EMPTY:
            moved = request.header.queue_offset != 0
            code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
        else:
            code = _CODES[status]
        onward = result.next_offset
        if code == ResponseCode.PULL_OFFSET_MOVED and self._config.is_slave:
            # It may lack what its master has: where a queue begins and ends only that one says.
            code, onward = ResponseCode.PULL_RETRY_IMMEDIATELY, request.header.queue_offset
        suggested = self._suggested(request.header, result)
        if request.codec != JSON or request.oneway or peer.router.hooks or self._hooks:
            self._answer_slowly(pull, result, code, onward, suggested)
            return
        numbers = (result.max_offset, result.min_offset, onward, suggested, request.opaque)
        peer.write(answer_frame(pull_pieces(code, status.name), numbers, chunks))

    def _suggested(self, header: PullMessage, result: ReadResult) -> int:
        """The id of the broker that is to be asked next: a slave while the reader is far behind,
        or this master busy with others who are."""
        config = self._config
        if not (result.count or result.far):
            return 0
        if not config.slave_read_enable or not self.relieved():
            return 0
        is_far = result.far or self._cold_reads.locked()
        if is_far and config.is_slave:
            return config.broker_id
        group = self._groups.get(header.consumer_group)
        if group is None:
            return 0
        return group.which_broker_when_consume_slowly if is_far else group.broker_id

    def _answer_slowly(
        self, pull: HeldPull, result: ReadResult, code: int, onward: int, suggested: int
    ) -> None:
        header = PullMessageResponse(suggested, onward, result.min_offset, result.max_offset)
        body = b"".join(result.chunks) if result.status is ReadStatus.FOUND else b""
        self._hooks.after_pull(pull.peer, pull.request, code, result.count, result.size_bytes)
        pull.peer.reply(
            pull.request, Reply(code, header=header, body=body, remark=result.status.name)
        )

    # ------------------------------------------------------------------------------------ checks

    def _check(self, header: PullMessage) -> None:
        if not self._config.broker_permission & PERM_READ:
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] pulling message is forbidden",
            )
        name = header.consumer_group
        group = self._groups.get(name) or self._groups.find(name)
        if group is None:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist: create it with "
                "mqadmin updateSubGroup, or set autoCreateSubscriptionGroup=true",
            )
        if not group.consume_enable:
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {header.consumer_group}",
            )
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please!",
            )
        if not topic.perm & PERM_READ:
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] pulling message is forbidden",
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )


def _is_bulk(header: PullMessage) -> bool:
    return header.max_msg_nums > MAX_MESSAGES and header.consumer_group.startswith(
        SYSTEM_GROUP_PREFIX
    )
