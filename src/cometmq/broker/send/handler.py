"""Send requests: check, park delayed messages, append, and respond once the turn is committed.

The order of the checks and the codes are upstream's (SendMessageProcessor.java,
AbstractSendMessageProcessor.java); a remark says how to fix the request. Steps of one message:

    header -> checks -> topic config -> property text -> store.append -> (end of turn) -> answer

Messages that are prepared, delayed or sent back are stored in another topic first (redirect.py).

A large batch is packed in a thread, so that it does not block the event loop. It gets its place in
the log, as a whole, once it is packed; until then the store knows nothing of it. Its connection is
not served meanwhile, so that later requests of that connection are stored after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.dedup import DeduplicatedSends, Stored
from cometmq.broker.send.admission import (
    MAX_WAITING_SENDS,
    Admission,
    Destinations,
    check_no_transaction,
    check_properties,
    choose_queue,
    has_own_ids,
    may_wait,
    without_id,
    without_wait,
)
from cometmq.broker.send.redirect import is_delayed
from cometmq.broker.transactions.endtransaction import committed_send
from cometmq.core.errors import BadRequest, CometError, MessageIllegal
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.batch import SharedFields
from cometmq.message.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    TIMER_TOPIC,
)
from cometmq.message.record import TRANSACTION_MASK
from cometmq.net.limits import Limit
from cometmq.net.router import begin_task, end_task
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fields import truth
from cometmq.protocol.framer import MANY

if TYPE_CHECKING:
    from cometmq.broker.acknowledgement import Appender, Fail
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.dedup import Deduplicator
    from cometmq.broker.hooks import SendHooks
    from cometmq.broker.send.answers import SendAnswers
    from cometmq.broker.send.redirect import SendRedirect
    from cometmq.broker.transactions.endtransaction import Transactions
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.bodies import TopicConfig
    from cometmq.protocol.frame import Reply, Request
    from cometmq.protocol.framer import BulkHandler
    from cometmq.protocol.headers import SendMessage
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.consumequeue import ConsumeQueue

log = logging.getLogger(__name__)

#: Minimum body of a batch that is packed in a thread; on the loop it would take up to 5 ms.
LARGE_BYTES: Final = 512 << 10
#: Internal topics of messages that wait for their time or for the end of their transaction. The
#: answer to a send that is stored there names the queue of its real topic.
_WAITING_ROOMS: Final = (HALF_TOPIC, TIMER_TOPIC)
#: Common prefix of the property names that set a timer.
_TIMER_PREFIX: Final = "TIMER_DE"


class LargeBatches:
    """Stores large batches, one at a time: each needs memory for a second copy of its records."""

    def __init__(
        self, *, store: MessageStore, appender: Appender, tasks: Tasks, fail: Fail
    ) -> None:
        self._store = store
        self._appender = appender
        self._tasks = tasks
        self._fail = fail
        self._one_at_a_time = asyncio.Lock()

    def begin(
        self,
        peer: Peer,
        request: Request[Any],
        queue_id: int,
        shared: SharedFields,
        *,
        wait_durable: bool,
    ) -> None:
        """Start to store a batch; it is answered once it is stored.

        No other request of the peer is served meanwhile. Raises BadRequest if too many slow
        requests are running.
        """
        begin_task(peer)
        peer.hold()
        self._tasks.spawn(
            self._store_it(peer, request, queue_id, shared, wait_durable=wait_durable),
            name=f"large batch {peer.address}",
        )

    async def _store_it(
        self,
        peer: Peer,
        request: Request[Any],
        queue_id: int,
        shared: SharedFields,
        *,
        wait_durable: bool,
    ) -> None:
        try:
            async with self._one_at_a_time:
                queue = self._store.queue(request.header.topic, queue_id)
                parts = await self._store.pack_batch(queue, request.body, shared)
                # The topic may have been deleted and recreated while the batch was packed.
                queue = self._store.queue(request.header.topic, queue_id)
                offset, rows = self._store.append_parts(queue, parts, shared)
            request.drop_body()
            send = (peer, request, queue_id, offset, rows)
            self._appender.add_large(send, wait_durable=wait_durable)
        except CometError as error:
            self._fail(peer, request, error)
        except Exception as error:
            log.exception("large_batch_failed peer=%s", peer.address)
            self._fail(peer, request, BadRequest(ResponseCode.SYSTEM_ERROR, str(error)))
        finally:
            end_task(peer)
            peer.go_on()


class SendHandler:
    """Serves SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        answers: SendAnswers,
        redirect: SendRedirect,
        transactions: Transactions,
        hooks: SendHooks,
        deduplicator: Deduplicator | None = None,
    ) -> None:
        config, store, appender = context.config, context.store, context.appender
        tasks, topics = context.tasks, context.tables.topics
        self._config = config
        self._store = store
        self._appender = appender
        self._topics = topics
        self._destinations = Destinations(topics, store.queues)
        self._redirect = redirect
        self._transactions = transactions
        self._clock = context.clock
        self._admission = Admission(config, topics, context.clock)
        self._hooks = hooks
        self._hooks_added = hooks.added
        self._inside_hooks = False
        self._cluster_property = f"{props.CLUSTER}\x01{config.broker_cluster_name}".encode()
        self._separated_cluster = b"\x02" + self._cluster_property
        self._answers = answers
        self._large = LargeBatches(
            store=store, appender=appender, tasks=tasks, fail=self._answers.fail
        )
        self._deduplicated = deduplicator and DeduplicatedSends(
            deduplicator,
            store=store,
            appender=appender,
            tasks=tasks,
            again=self._serve_again,
            fail=self._answers.fail,
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
        }

    def bulk_handlers(self) -> dict[int, BulkHandler[Peer]]:
        """Return the functions that serve undecoded frames, by request code."""
        return dict.fromkeys(
            (
                RequestCode.SEND_MESSAGE,
                RequestCode.SEND_MESSAGE_V2,
                RequestCode.SEND_BATCH_MESSAGE,
                RequestCode.END_TRANSACTION,
            ),
            self.take_sends,
        )

    def send(self, peer: Peer, request: Request[SendMessage]) -> Reply | None:
        """Append one message; it is answered at the end of the turn, or once it is durable."""
        header, batch = request.header, request.header.batch
        if batch is not None and batch != "false" and truth(batch):
            return self.send_batch(peer, request)
        self._admission.check_load(peer, self._appender.waiting_sends)
        topic, queue_id = header.topic, header.queue_id
        queues = self._destinations.get(topic)
        queue = queues[queue_id] if queues is not None and -1 < queue_id < len(queues) else None
        config = None if queue is not None else self._check_topic(peer, header)
        if self._hooks_added and not self._inside_hooks:
            return self._hooked(self.send, peer, request)
        queue_id = answered_id = queue_id if config is None else choose_queue(queue_id, config)
        text, sys_flag = without_wait(header.properties or ""), header.sys_flag
        properties = props.decode_text(text)
        if (
            sys_flag & TRANSACTION_MASK
            or props.TRAN_MSG in properties
            or props.DELAY in properties
            or _TIMER_PREFIX in text
            or topic.startswith(RETRY_PREFIX)
        ):
            self._passed(config, queue_id)
            place_for = self._redirect.place_for
            topic, queue_id, properties, text = place_for(header, queue_id, properties, text)
            queue, config, sys_flag = None, None, sys_flag & ~TRANSACTION_MASK
            answered_id = answered_id if topic in _WAITING_ROOMS else queue_id
        raw = text.encode("utf-8", "replace")
        raw = raw + self._separated_cluster if raw else self._cluster_property
        check_properties(raw)
        self._admission.check_body(request.body)
        unique = properties.get(props.UNIQ_KEY)
        wait_durable = properties.get(props.WAIT) != "false" or may_wait(header.properties or "")
        deduplicated = self._deduplicated
        if deduplicated and deduplicated.is_repeat(
            peer, request, (topic, unique), wait_durable=wait_durable
        ):
            return None
        keys = props.index_keys(properties) if props.KEYS in properties or not unique else (unique,)
        queue = queue or self._queue(topic, queue_id, config)
        physical, queue_offset = self._store.append(
            queue,
            request.body,
            raw,
            flag=header.flag,
            sys_flag=sys_flag,
            born_ms=header.born_timestamp,
            born_host=peer.host_bytes,
            reconsume_times=header.reconsume_times or 0,
            tag_code=tag_code(properties.get(props.TAGS)),
            keys=keys,
        )
        if deduplicated:
            deduplicated.stored(topic, unique, Stored(queue_id, queue_offset, physical))
        if topic == HALF_TOPIC:
            copy = committed_send(peer, request, answered_id, physical, properties, raw, keys)
            self._transactions.prepared(queue_offset, physical, properties, copy)
        elif topic == TIMER_TOPIC:
            self._keep_handle(physical, properties)
        elif props.SHARDING_KEY in properties:
            queue.fifo_count += 1
            queue.fifo_bytes += self._store.log.position - physical
        if request.charge is None:
            request.body = b""  # it is stored: free its memory while the send waits for the sync
        else:
            request.drop_body()
        waiting = (peer, request, answered_id, queue_offset, physical)
        self._appender.add_send(waiting, wait_durable=wait_durable)
        return None

    def take_sends(self, peer: Peer, data: bytes, at: int) -> tuple[int, int]:
        """Append the plain sends, half messages and transaction ends of a connection as a batch, as
        far as the peer may send them.

        Returns the position in ``data`` of the first frame not taken, and the number of frames
        from there on that must be served one by one.
        """
        store, config, appender = self._store, self._config, self._appender
        host, begin_ms = peer.host_bytes, config.start_accept_send_request_time_stamp
        if (
            store.state.refusal is not None
            or peer.congested
            or peer.is_checked_alone
            or peer.router.hooks
            or self._hooks_added
            or len(host) != 8
            or len(store.store_host) != 8
            or (begin_ms and self._clock.wall_ms() < begin_ms)
            or (appender.waiting_sends and not self._has_room(peer))
            or peer.memory.budget.is_exhausted
        ):
            return at, MANY
        index = None  # without it, half messages and transaction ends are served one by one
        if (
            not config.reject_transaction_message
            and appender.on_append is None
            and store.transient is None
        ):
            index = self._transactions.index
            index.immunity_ms = immunity_ms = config.transaction_time_out
            index.due_ms = peer.last_read_ms + immunity_ms
        rows, count, at, odd = store.append_sends(
            data,
            at,
            self._destinations.plain,
            host,
            self._cluster_property,
            config.max_message_size,
            index,
            None if peer.router.access is None else peer.router.access.cache(peer),
        )
        if count:
            appender.add_rows(peer, rows, count)
        return at, odd

    def _has_room(self, peer: Peer) -> bool:
        most = peer.memory.budget.max_waiting(MAX_WAITING_SENDS)
        return self._appender.waiting_sends <= most

    def _queue(self, topic: str, queue_id: int, config: TopicConfig | None) -> ConsumeQueue:
        """Return a queue of a topic.

        ``config`` is the topic's configuration if it was checked for this send; the queue is then
        remembered as one that later sends need not check.
        """
        queue = self._store.queue(topic, queue_id)
        if config is not None:
            self._learn(config, queue)
        return queue

    def _learn(self, config: TopicConfig, queue: ConsumeQueue) -> None:
        """Remember a checked queue for later sends, once name servers know its topic."""
        if config.topic_name not in self._answers.unannounced:
            is_deduplicated = bool(
                self._deduplicated and self._deduplicated.covers(config.topic_name)
            )
            is_retry = config.topic_name.startswith(RETRY_PREFIX)
            self._destinations.learn(config, queue, plain=not (is_deduplicated or is_retry))

    def _keep_handle(self, physical: int, properties: dict[str, str]) -> None:
        if handle := self._redirect.recall_handle(properties):
            self._answers.recall_handles[physical] = handle

    def send_batch(self, peer: Peer, request: Request[SendMessage]) -> Reply | None:
        """Append a batch: messages of one topic with consecutive queue offsets, all in one segment.

        A large batch is stored in a later turn of the loop, and a batch to a topic that drops
        repeated ids may be.
        """
        header = request.header
        self._admission.check_load(peer, self._appender.waiting_sends)
        config = self._check_topic(peer, header)
        if self._hooks and not self._inside_hooks:
            return self._hooked(self.send_batch, peer, request)
        topic = header.topic
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise BadRequest(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}"
            )
        check_no_transaction(header.sys_flag, "a batch")
        properties = props.decode_text(header.properties or "")
        if is_delayed(properties):
            raise MessageIllegal("a batch cannot be delayed: send delayed messages one by one")
        self._admission.check_body(request.body)
        text_of_all = without_wait(header.properties or "")
        if props.UNIQ_KEY in properties and has_own_ids(request.body):
            text_of_all = without_id(text_of_all)
        properties_of_all = text_of_all.encode("utf-8", "replace")
        queue_id = choose_queue(header.queue_id, config)
        store = self._store
        shared = SharedFields(
            header.sys_flag,
            header.born_timestamp,
            peer.host_bytes,
            store.store_host,
            header.reconsume_times or 0,
            props.joined(properties_of_all, self._cluster_property),
        )
        wait_durable = properties.get(props.WAIT) != "false"
        if self._deduplicated and self._deduplicated.covers(topic):
            self._deduplicated.store_batch(
                peer, request, queue_id, shared, wait_durable=wait_durable
            )
            return None
        if len(request.body) >= LARGE_BYTES:
            self._large.begin(peer, request, queue_id, shared, wait_durable=wait_durable)
            return None
        queue = self._queue(topic, queue_id, config)
        queue_offset, rows = store.append_batch(queue, request.body, shared)
        request.drop_body()
        send = (peer, request, queue_id, queue_offset, rows)
        self._appender.add_send(send, wait_durable=wait_durable)
        return None

    def _hooked(
        self,
        serve: Callable[[Peer, Request[SendMessage]], Reply | None],
        peer: Peer,
        request: Request[SendMessage],
    ) -> Reply | None:
        """Serve a send with its hooks. The hooks after a send run here if it is refused, otherwise
        when its response is written."""
        self._hooks.before_send(peer, request)
        self._inside_hooks = True
        try:
            return serve(peer, request)
        except CometError as error:
            self._hooks.after_send(peer, request, error.code, 0)
            raise
        finally:
            self._inside_hooks = False

    def _serve_again(self, peer: Peer, request: Request[SendMessage]) -> None:
        """Serve a send that had to wait for a read; its hooks before the send have run already."""
        self._inside_hooks = True
        batched = request.code == RequestCode.SEND_BATCH_MESSAGE
        try:
            (self.send_batch if batched else self.send)(peer, request)
        except CometError as error:
            self._answers.fail(peer, request, error)
        finally:
            self._inside_hooks = False

    # ------------------------------------------------------------------------------------ checks

    def _check_topic(self, peer: Peer, header: SendMessage) -> TopicConfig:
        """Return the configuration of a send's topic; create the topic if that is allowed.

        Raises BadRequest if clients may not send to it.
        """
        config, answers = self._admission.find_topic(header.topic), self._answers
        if answers.held_count and (config is None or header.topic in answers.unannounced):
            self._admission.check_new_topic(peer, answers.held_count, answers.held_bytes)
        if config is None:
            config = self._create_topic(peer, header)
            self._admission.check_writable(config)
        return config

    def _create_topic(self, peer: Peer, header: SendMessage) -> TopicConfig:
        topic = header.topic
        is_retry = topic.startswith(RETRY_PREFIX)
        if is_retry:
            # A topic that nobody may consume is not created. The limit of groups bounds the others.
            self._redirect.group(topic.removeprefix(RETRY_PREFIX))
        created = self._topics.create_by_send(
            topic,
            header.default_topic,
            header.default_topic_queue_nums,
            peer.address,
            unit=truth(header.unit_mode),
        )
        if created is None and is_retry:
            created = self._topics.create_retry(topic, 1, unit=truth(header.unit_mode))
        may_create = self._topics.may_create_from(header.default_topic)
        is_full = created is None and may_create and self._topics.is_full
        if is_full:
            reason = f"{len(self._topics)} topics exist, {topic} was not created"
            peer.limits.hit(Limit.TOPICS, peer.address, reason)
        if created is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! Create it with "
                "cometmq topic create or mqadmin updateTopic, or "
                + ("raise maxTopics" if is_full else "set autoCreateTopicEnable=true"),
            )
        self._answers.unannounced.add(topic)
        self._topics.when_announced(lambda: self._answers.unannounced.discard(topic))
        return created

    def _passed(self, config: TopicConfig | None, queue_id: int) -> None:
        """Remember the queue of a send that passed all checks and is stored in another topic first.

        The queue is not created: the message may never get there. Without ``config`` the queue is
        remembered already.
        """
        if config is None:
            return
        queue = self._store.find_queue(config.topic_name, queue_id)
        if queue is not None:
            self._learn(config, queue)
