"""Pull requests: check, read, and respond with the stored bytes, or hold the pull until there are
new messages.

The body of a response consists of slices of the log; no record is decoded. filtering.py finds the
filter of a pull (upstream: PullMessageProcessor.java).

Most pulls are plain (speedups/plain/pullanswers.py). A plan holds what is checked once for all
plain pulls that differ in their offsets only. All plans are dropped by

- a change of a topic, of ``brokerPermission``, or of automatic creation (topics/table.py);
- a change of a group (consumers/groups.py);
- a change of a group's subscriptions (consumers/members.py) or stored filter (filterdata.py);
- the deletion of a queue (store/queue/table.py).

Other conditions are checked at each read of a connection (:meth:`PullHandler.take_pulls`): hooks,
among them access control; ``enablePropertyFilter``; the time spent on filters in this turn; and
whether slaves serve lagging readers.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from msgspec import structs

from cometmq.broker.pull.filtering import keep_matching, read_matching
from cometmq.broker.pull.longpoll import MAX_HOLD_MS, HeldPull, LongPoll
from cometmq.core.errors import BadRequest, CometError, StoreCorrupt
from cometmq.filter.sql92 import Budget
from cometmq.message.names import SYSTEM_GROUP_PREFIX
from cometmq.net.router import begin_task, end_task
from cometmq.protocol.bodies import PERM_READ
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import JSON, Reply, pull_pieces
from cometmq.protocol.framer import MANY
from cometmq.protocol.headers import PullMessage, PullMessageResponse
from cometmq.speedups import PullAnswers, PullPlan, answer_frame
from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.read.coldreads import RECENT_BYTES, FarTurns
from cometmq.store.read.reader import (
    Query,
    ReadStatus,
    empty,
    is_far,
    read,
    read_limits,
    read_matching_at_once,
)
from cometmq.store.read.validation import proof_of

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.hooks import ConsumeHooks
    from cometmq.broker.pull.filtering import Filters, PullFilter
    from cometmq.filter.sql92 import SqlFilter
    from cometmq.net.eventloop import Watchdog
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.framer import BulkHandler
    from cometmq.speedups import QueueState
    from cometmq.speedups.plain.pullanswers import PullFields
    from cometmq.store.read.reader import ReadLimits, ReadResult

log = logging.getLogger(__name__)

# Bits of the pull sysFlag (upstream: PullSysFlag.java).
COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2

#: A filtered read that takes longer makes further filtered reads wait for the next turn.
LONG_LOOK_NS: Final = 2_000_000
#: Weight of an expression above which a pull that waits for the next turn counts as a slow request.
LIGHT_WEIGHT: Final = 64
#: Maximum number of concurrent cold reads: each holds its bytes in memory.
MAX_COLD_READS: Final = 16

#: Limits of one response (upstream: maxTransferBytesOnMessageInMemory and -Count).
MAX_BYTES: Final = 262_144
MAX_MESSAGES: Final = 32
#: The same limit for a system group that asks for more, as the Spark source does: it reads whole
#: queues, and the fixed cost of a pull equals that of thirty messages.
MAX_BULK_MESSAGES: Final = 1_024
#: Maximum memory of the filters that all plans keep alive.
MAX_PLANNED_BYTES: Final = 16 << 20
#: Budget of a pull without a filter, which is not limited.
_NO_BUDGET: Final = (0, 0)

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}

#: Statuses of queues without messages: an empty queue, and one that does not exist.
_EMPTY: Final = (ReadStatus.NO_MESSAGE_IN_QUEUE, ReadStatus.NO_MATCHED_LOGIC_QUEUE)
_HOLDABLE: Final = (ReadStatus.OFFSET_OVERFLOW_ONE, *_EMPTY)


class ReplicationRole(Protocol):
    """The broker's part in replication, as far as pulls depend on it."""

    def relieved(self) -> bool:
        """Return True while slaves serve readers far from the end of the log."""
        ...

    def serves(self) -> bool:
        """Return True while this broker may be read."""
        ...

    def is_alone(self) -> bool:
        """Return True on a slave without a connection to its master."""
        ...


class PullPlans:
    """Checks pulls and makes plans for plain ones; ``answers`` serves pulls by these plans.

    ``heads`` are the fixed pieces of two responses: messages found, and none that matches.
    """

    def __init__(
        self,
        context: BrokerContext,
        filters: Filters,
        heads: tuple[tuple[bytes, ...], tuple[bytes, ...]],
    ) -> None:
        store, tables = context.store, context.tables
        self._config = context.config
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._stats = context.stats
        self._filters = filters
        self._planned_bytes = 0
        self._bulk_limits = structs.replace(store.limits, hot_max_count=MAX_BULK_MESSAGES)
        self.answers = PullAnswers(
            store.reads,
            RECENT_BYTES,
            heads,
            context.stats.pulled,
            self.plan_of,
            entries_of,
            context.stats.counter,
            tables.offsets.commit_of_client,
        )
        self._forget = forget = self.answers.forget
        tables.topics.on_change.append(forget)
        tables.groups.on_change.append(forget)
        filters.when_changed(forget)
        store.queues.on_gone.append(lambda _: forget())

    def plan_of(self, fields: PullFields) -> PullPlan | None:
        """Return the plan of a plain pull; None if it is refused, or its queue does not exist.

        None also for a new filter expression: it is parsed when the pull is served alone, and its
        words count for the pull's connection then.
        """
        header = PullMessage(*fields)
        queue = self._store.queues.get((header.topic, header.queue_id))
        if queue is None:
            return None
        try:
            self.check(header)
            wanted = self._filters.wanted(header, None)
        except CometError:
            return None  # the pull is served alone then, which raises the error again
        group = self._groups.get(header.consumer_group)
        if group is None:
            return None
        count, limits = self.most(header)
        budget = _NO_BUDGET
        if wanted.sql is not None:
            count, limits = min(count, MAX_MESSAGES), self._store.limits
            left = Budget(wanted.sql.weight)
            budget = left.count, left.size_bytes
            self._planned_bytes += wanted.size_bytes
            if self._planned_bytes > MAX_PLANNED_BYTES:
                self._forget()
                self._planned_bytes = wanted.size_bytes
        return PullPlan(
            queue,
            fields,
            (min(count, limits.hot_max_count), min(MAX_BYTES, limits.hot_max_bytes)),
            wanted,
            budget,
            proof_of(queue),
            (group.broker_id, group.which_broker_when_consume_slowly),
            self._stats.position(header.consumer_group, header.topic, header.queue_id),
        )

    def settings_changed(self) -> None:
        """Take changed limits of responses into use."""
        limits = self._store.limits = read_limits(self._store.config)
        self._bulk_limits = structs.replace(limits, hot_max_count=MAX_BULK_MESSAGES)
        self._forget()

    def most(self, header: PullMessage) -> tuple[int, ReadLimits]:
        """Return the maximum number of messages of a pull, and the limits of its read."""
        asked = header.max_msg_nums
        if asked > MAX_MESSAGES and header.consumer_group.startswith(SYSTEM_GROUP_PREFIX):
            return min(asked, MAX_BULK_MESSAGES), self._bulk_limits
        return max(1, min(asked, MAX_MESSAGES)), self._store.limits

    def check(self, header: PullMessage) -> None:
        """Raise BadRequest for a pull that is refused."""
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
                f"subscription group [{name}] does not exist: {self._groups.advice(name)}",
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


def entries_of(queue: QueueState, offset: int, count: int) -> bytes | bytearray | None:
    """Return entries of a queue that can be read without waiting; None if they cannot.

    None also stands for a corrupt file: the pull is served alone then, and that raises the error.
    """
    assert isinstance(queue, ConsumeQueue)
    try:
        return queue.read_at_once(offset, count)
    except StoreCorrupt:
        return None


class PullHandler:
    """Serves PULL_MESSAGE and LITE_PULL_MESSAGE."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        filters: Filters,
        hooks: ConsumeHooks,
        role: ReplicationRole,
        watchdog: Watchdog,
    ) -> None:
        store, clock, tasks = context.store, context.clock, context.tasks
        self._config = context.config
        self._store = store
        self._groups = context.tables.groups
        self._filters = filters
        self._offsets = context.tables.offsets
        self._stats = context.stats
        self._pull_seconds = context.stats.pull_seconds
        self._hooks = hooks
        self._clock = clock
        self._tasks = tasks
        self._relieved = role.relieved
        self._serves = role.serves
        self._is_alone = role.is_alone
        heads = _pieces(ReadStatus.FOUND), _pieces(ReadStatus.NO_MATCHED_MESSAGE)
        self._plans = PullPlans(context, filters, heads)
        self._answers = self._plans.answers
        self._cold_reads = asyncio.Semaphore(MAX_COLD_READS)
        self._far = FarTurns(clock, tasks, lambda: store.written_offset)
        soon = asyncio.get_running_loop().call_soon
        self.longpoll = LongPoll(
            clock,
            self._serve_held,
            self._serve_plain,
            lambda serve: soon(watchdog.watched("held pulls", serve)),
            store.listeners,
        )

    def settings_changed(self) -> None:
        """Take changed limits of responses into use."""
        self._plans.settings_changed()

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code; pulls of lite pull consumers have their own code."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def bulk_handlers(self) -> dict[int, BulkHandler[Peer]]:
        """Return the functions that serve undecoded frames, by request code."""
        return dict.fromkeys(self.handlers(), self.take_pulls)

    def pull(self, peer: Peer, request: Request[PullMessage]) -> Reply | None:
        """Answer a pull or hold it. Returns None: this handler writes the response itself."""
        header = request.header
        self._plans.check(header)
        if self._hooks:
            self._hooks.before_pull(peer, request)
        try:
            self._pull(peer, request)
        except CometError as error:
            self._hooks.after_pull(peer, request, error.code, 0, 0)
            raise
        return None

    def take_pulls(self, peer: Peer, data: bytes, at: int) -> tuple[int, int]:
        """Answer the plain pulls of a connection whose messages are in memory, and hold those at
        the end of their queues, as far as the peer may send them.

        Returns the position in ``data`` of the first frame not taken, and the number of frames
        from there on that must be served one by one.
        """
        if peer.router.hooks or self._hooks.added or peer.is_checked_alone:
            return at, MANY
        begun_ns, found = self._clock.monotonic_ns(), self._stats.pulled.found
        may_match = not self.longpoll.rests and self._config.enable_property_filter
        access = None if peer.router.access is None else peer.router.access.cache(peer)
        frames, at, odd, waiting = self._answers.take(data, at, self._suggests(), may_match, access)
        if frames:
            peer.write(frames)
        for each in waiting:
            self._wait(peer, *each)
        self._looked(begun_ns, self._stats.pulled.found - found)
        return at, odd

    def _wait(self, peer: Peer, plan: PullPlan, offset: int, opaque: int, hold_ms: int) -> None:
        """Hold a plain pull that is at the end of its queue; answer it if it cannot be held."""
        self._stats.pulled.missed += 1
        hold_ms = min(hold_ms, MAX_HOLD_MS)
        if not self._config.long_polling_enable:
            hold_ms = self._config.short_polling_time_mills
        deadline_ms = self._clock.monotonic_ms() + hold_ms
        queue, wanted = plan.queue, cast("PullFilter", plan.wanted)
        key = plan.fields[1], plan.fields[2]
        pull = HeldPull(peer, None, key, offset, wanted, deadline_ms, plan, opaque)
        pull.rules = _rules_of(peer)
        if (wanted.sql is None or self._filters.has_room) and self.longpoll.hold(pull):
            return
        status = ReadStatus.OFFSET_OVERFLOW_ONE if offset else ReadStatus.NO_MESSAGE_IN_QUEUE
        self._answer(pull, empty(status, offset, queue.min_offset, queue.max_offset), ())

    def _serve_plain(self, pulls: list[HeldPull]) -> list[HeldPull]:
        """Answer plain pulls whose queues grew; return those that must be served one by one."""
        if self._hooks.added or pulls[0].peer.router.hooks:
            return pulls
        odd = [pull for pull in pulls if not _may_get_messages(pull)]
        if odd:
            pulls = [pull for pull in pulls if _may_get_messages(pull)]
        begun_ns, found = self._clock.monotonic_ns(), self._stats.pulled.found
        try:
            frames = self._answers.serve(pulls, self._suggests())
        except Exception:  # served one by one, each of them is answered
            log.exception("held pulls failed count=%d", len(pulls))
            return odd + pulls
        for pull, frame in zip(pulls, frames, strict=True):
            if frame is None:
                odd.append(pull)
            else:
                pull.peer.write(frame)
        took_s = (self._clock.monotonic_ns() - begun_ns) / 1e9
        self._pull_seconds.add(took_s, self._stats.pulled.found - found)
        return odd

    def _suggests(self) -> int:
        """Return the broker to suggest to plain pulls: 0 for none, 1 for the group's usual broker,
        2 for its broker of slow consumers (:meth:`_suggested`)."""
        if not self._config.slave_read_enable or not self._relieved():
            return 0
        return 2 if self._cold_reads.locked() else 1

    def _look(
        self, queue: ConsumeQueue, offset: int, header: PullMessage, sql: SqlFilter
    ) -> ReadResult | None:
        """Return the matching messages from ``offset`` on, without waiting for the device; None if
        they are not in memory."""
        count = max(1, min(header.max_msg_nums, MAX_MESSAGES))
        query = Query(queue, offset, count, MAX_BYTES, None)
        return read_matching_at_once(query, self._store.reads, self._store.limits, sql)

    def _looked(self, begun_ns: int, found: int = 0) -> None:
        """Make further filtered reads wait for the next turn if the work since ``begun_ns`` took
        long. Count the time of the ``found`` pulls that were answered with messages since then."""
        took_ns = self._clock.monotonic_ns() - begun_ns
        if found:  # Histogram.add inlined: most pulls pass here
            seconds, took_s = self._pull_seconds, took_ns / 1e9
            seconds.counts[bisect_left(seconds.bounds, took_s)] += found
            seconds.total += took_s * found
        if took_ns > LONG_LOOK_NS:
            self.longpoll.rest()

    def _pull(self, peer: Peer, request: Request[PullMessage]) -> None:
        header = request.header
        wanted = self._filters.wanted(header, peer)
        if not self._serves():
            peer.reply(
                request,
                Reply(
                    ResponseCode.PULL_RETRY_IMMEDIATELY,
                    header=PullMessageResponse(0, header.queue_offset, 0, 0),
                    remark=(
                        "this slave serves pulls only while its master is unavailable "
                        "(slaveReadEnable)"
                    ),
                ),
            )
            return
        is_slave = self._config.is_slave
        if header.sys_flag & COMMIT_OFFSET and header.commit_offset >= 0 and not is_slave:
            self._offsets.commit_of_client(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        pull = HeldPull(
            peer, request, (header.topic, header.queue_id), header.queue_offset, wanted, 0
        )
        pull.rules = _rules_of(peer)
        pull.position = self._stats.position(header.consumer_group, header.topic, header.queue_id)
        if peer.is_behind:
            self._send_away(pull)
            return
        # Filters have used up this turn: evaluate this one in a later turn.
        has_room = self._filters.has_room and not self.longpoll.is_full_for(peer)
        if wanted.sql is not None and self.longpoll.rests and has_room:
            if wanted.sql.weight > LIGHT_WEIGHT:
                begin_task(peer)
                pull.is_task = True
            self.longpoll.look_on(pull)
            return
        self._read(pull, final=False)

    def _serve_held(self, pull: HeldPull, final: bool) -> None:
        try:
            if _may_get_messages(pull):
                self._read(pull, final)
            else:
                self._send_away(pull)
        except Exception as error:  # no caller answers a pull that was held
            self._fail(pull, error)

    def _send_away(self, pull: HeldPull) -> None:
        """Answer a pull as if there were no new messages; its client pulls again.

        That is for peers that do not read their answers, and for pulls that were held under former
        access-control rules. The next pull is checked by the rules in force. A held plain pull does
        not keep the fields that its signature covers, so it cannot be checked again.
        """
        self._stats.on_pull_missed()
        status = (
            ReadStatus.NO_MATCHED_MESSAGE if pull.peer.is_behind else ReadStatus.OFFSET_OVERFLOW_ONE
        )
        result = empty(status, pull.offset, 0, pull.offset)
        self._answer(pull, result, ())

    def _serve_far(self, pull: HeldPull, final: bool) -> None:
        if not pull.peer.closed:
            self._serve_held(pull, final)

    def _fail(self, pull: HeldPull, error: Exception) -> None:
        if not isinstance(error, StoreCorrupt):  # the store has logged the corruption already
            log.error("pull failed queue=%s peer=%s error=%r", pull.queue, pull.peer.address, error)
        code = error.code if isinstance(error, CometError) else ResponseCode.SYSTEM_ERROR
        self._hooks.after_pull(pull.peer, pull.request, code, 0, 0)
        pull.peer.reply(pull.request, Reply(code, remark=str(error)))

    def _find(self, pull: HeldPull) -> ReadResult:
        """Read at the pull's offset with its filter; cold messages are not loaded."""
        wanted, header = pull.wanted, pull.request.header
        topic, queue_id = pull.queue
        queue = self._store.find_queue(topic, queue_id)
        count, limits = self._plans.most(header)
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
        """Read for a pull; answer it, hold it unless ``final``, or begin to load cold messages."""
        begun_ns = self._clock.monotonic_ns()
        pull.begun_ns = pull.begun_ns or begun_ns
        if self._far.must_wait(begun_ns) and self._is_far(pull):
            self._far.wait(partial(self._serve_far, pull, final))
            return
        result = self._find(pull)
        if pull.wanted.sql is not None:
            self._looked(begun_ns)
        if result.status is ReadStatus.NO_MATCHED_MESSAGE and pull.key >= 0 and not final:
            # The new messages do not match: the pull moves past them. It waits again, or reads the
            # rest in a later turn.
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
        """Hold a pull that found nothing; return False if it must be answered now."""
        header = pull.request.header
        # A consumer that is ahead of this slave would retry at once while the master is gone.
        is_ahead = result.status is ReadStatus.OFFSET_OVERFLOW_BADLY and self._is_alone()
        if not (result.status in _HOLDABLE or is_ahead):
            return False
        if final or not header.sys_flag & SUSPEND or header.suspend_timeout_millis <= 0:
            return False
        # In an empty queue only offset 0 is right; the response must correct any other.
        if result.status in _EMPTY and pull.offset != 0 and not self._config.is_slave:
            return False
        if pull.wanted.sql is not None and not self._filters.has_room:
            return False
        if not pull.deadline_ms:
            hold_ms = min(header.suspend_timeout_millis, MAX_HOLD_MS)
            if is_ahead or not self._config.long_polling_enable:
                hold_ms = self._config.short_polling_time_mills
            pull.deadline_ms = self._clock.monotonic_ms() + hold_ms
        pull.position.offset = pull.offset
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
        except Exception as error:  # no caller answers a pull that was loaded in a task
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
        self._pull_seconds.add((self._clock.monotonic_ns() - pull.begun_ns) / 1e9)
        self._far_read(result, begun_ns)

    def _far_read(self, result: ReadResult, begun_ns: int) -> None:
        """Count the time since ``begun_ns`` as spent on far reads, if the read was far from the end
        of the log."""
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
            # A slave may lack records of its master: only the master may move a consumer's offset.
            code, onward = ResponseCode.PULL_RETRY_IMMEDIATELY, request.header.queue_offset
        pull.position.offset = onward
        suggested = self._suggested(request.header, result)
        if request.codec != JSON or request.oneway or peer.router.hooks or self._hooks:
            self._answer_slowly(pull, result, code, onward, suggested)
            return
        numbers = (result.max_offset, result.min_offset, onward, suggested, request.opaque)
        peer.write(answer_frame(pull_pieces(code, status.name), numbers, chunks))

    def _suggested(self, header: PullMessage, result: ReadResult) -> int:
        """Return the id of the broker to ask next; 0 for no suggestion.

        While slaves serve reads, it is the group's broker of slow consumers if this read is far
        from the end of the log or all cold reads are in use, otherwise the group's usual broker. A
        slave suggests itself instead of the former.
        """
        config = self._config
        if not (result.count or result.far):
            return 0
        if not config.slave_read_enable or not self._relieved():
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


def _rules_of(peer: Peer) -> object:
    access = peer.router.access
    return None if access is None else access.rules


def _may_get_messages(pull: HeldPull) -> bool:
    """Decide whether the rules by which a pull was allowed are still in force, and its peer reads
    its answers.
    """
    peer = pull.peer
    return not peer.is_behind and (pull.rules is None or pull.rules is _rules_of(peer))


def _pieces(status: ReadStatus) -> tuple[bytes, ...]:
    return pull_pieces(_CODES[status], status.name)
