"""Checks of pulls, and cached plans for plain pulls.

A plan (speedups, `pullanswers`) serves all pulls of a group that ask a queue for the same. All
plans are dropped by

- a change of a topic, of ``brokerPermission``, or of automatic creation (topics/table.py);
- a change of a group (consumers/groups.py);
- a change of a group's subscriptions (consumers/membertable.py) or stored filter (filterdata.py);
- the deletion of a queue (store/queue/table.py).

Other conditions are checked at each read of a connection (handler.py): hooks, among them access
control; ``enablePropertyFilter``; the time spent on filters in this turn; and whether slaves serve
lagging readers. The limits of one response stay the same until the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from cometmq.core.errors import BadRequest, CometError, StoreCorrupt
from cometmq.filter.sql92 import Budget
from cometmq.message.names import SYSTEM_GROUP_PREFIX
from cometmq.protocol.bodies import PERM_READ
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import PullMessage
from cometmq.speedups import PullAnswers, PullPlan
from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.read.coldreads import RECENT_BYTES
from cometmq.store.read.validation import proof_of

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.pull.filtering import Filters
    from cometmq.speedups import QueueState
    from cometmq.speedups.plain.pullanswers import PullFields
    from cometmq.store.read.reader import ReadLimits

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
            tables.offsets.commit,
        )
        self._forget = forget = self.answers.forget
        tables.topics.on_change.append(forget)
        tables.groups.on_change.append(forget)
        filters.when_changed(forget)
        store.queues.on_gone.append(lambda _: forget())

    def plan_of(self, fields: PullFields) -> PullPlan | None:
        """Return the plan of a plain pull; None if it is refused or its queue does not exist."""
        header = PullMessage(*fields)
        queue = self._store.queues.get((header.topic, header.queue_id))
        if queue is None:
            return None
        try:
            self.check(header)
            wanted = self._filters.wanted(header)
        except CometError:
            return None  # the pull is served alone then, and that raises the error again
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
        )

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


def entries_of(queue: QueueState, offset: int, count: int) -> bytes | bytearray | None:
    """Return entries of a queue that can be read without waiting; None if they cannot.

    None also stands for a corrupt file: the pull is served alone then, and that raises the error.
    """
    assert isinstance(queue, ConsumeQueue)
    try:
        return queue.read_at_once(offset, count)
    except StoreCorrupt:
        return None
