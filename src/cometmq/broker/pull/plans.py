"""What becomes of pulls: the checks that each has to pass, and plans for those that are plain.

A plan (speedups, `pullanswers`) holds for all pulls of a group that ask a queue for the same, until
something changes that decided it. All plans go with

- a change of a topic, of ``brokerPermission``, or of automatic creation (topics.py);
- a change of a group (groups.py);
- a change of what a group's members want (membertable.py), or of its stored filter (filterdata.py);
- a queue that is given up (store/queue/table.py).

What may change without such a call is asked at each read of a connection (pull.py): hooks, access
control among them, ``enablePropertyFilter``, the time that filters took in this turn, and whether
slaves serve who is behind. How much one answer holds stays as it is until the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from cometmq.core.errors import BadRequest, CometError, StoreCorrupt
from cometmq.filter.budget import Budget
from cometmq.message.names import SYSTEM_GROUP_PREFIX
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import PullMessage
from cometmq.protocol.route import PERM_READ
from cometmq.speedups import PullPlan
from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.read.validation import proof_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers.groups import GroupTable
    from cometmq.broker.pull.filtering import Filters
    from cometmq.broker.topics.table import TopicTable
    from cometmq.speedups import QueueState
    from cometmq.speedups.plain.pullframes import PullFields
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.read.reader import ReadLimits

#: What one answer holds at the most (upstream: maxTransferBytesOnMessageInMemory and -Count).
MAX_BYTES: Final = 262_144
MAX_MESSAGES: Final = 32
#: The same for a group of the system that asks for more, as the Spark source does: it reads all
#: there is, and a pull costs a broker as much as thirty messages.
MAX_BULK_MESSAGES: Final = 1_024
#: Filters that plans keep, together.
MAX_PLANNED_BYTES: Final = 16 << 20
#: The budget of a pull without a filter, which needs none.
_NO_BUDGET: Final = (0, 0)


class PullPlans:
    """Checks pulls, and makes plans of those that pass."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        filters: Filters,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._planned_bytes = 0
        self._forget: Callable[[], None] = lambda: None
        self._bulk_limits = structs.replace(store.limits, hot_max_count=MAX_BULK_MESSAGES)

    def when_changed(self, forget: Callable[[], None]) -> None:
        """Have ``forget`` called when plans do not hold any more."""
        self._forget = forget
        self._topics.on_change.append(forget)
        self._groups.on_change.append(forget)
        self._filters.when_changed(forget)
        self._store.queues.on_gone.append(lambda _: forget())

    def plan_of(self, fields: PullFields) -> PullPlan | None:
        """The plan for a plain pull; None when it is refused, or its queue has nothing yet."""
        header = PullMessage(*fields)
        queue = self._store.queues.get((header.topic, header.queue_id))
        if queue is None:
            return None
        try:
            self.check(header)
            wanted = self._filters.wanted(header)
        except CometError:
            return None  # whoever serves it alone meets it again
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
        """How many messages a pull gets at the most, and other limits."""
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
    """Entries of a queue that are in memory or in its file; None where that takes a wait, or the
    file cannot be read: whoever serves the pull alone meets that again."""
    assert isinstance(queue, ConsumeQueue)
    try:
        return queue.read_at_once(offset, count)
    except StoreCorrupt:
        return None
