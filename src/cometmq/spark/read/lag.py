"""Reports how far a query has come under a consumer group, so that tools show its lag.

The checkpoint alone decides where a query goes on; a report that fails is logged and made up for by
the next one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.core.errors import BrokerRefused, ClientError
from cometmq.spark.brokers import groups

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.offsets import Offsets

log = logging.getLogger(__name__)


class LagReport:
    """The offsets that brokers hold for a group, kept at the end of the last finished batch."""

    def __init__(self, group: str, access: Access) -> None:
        self._group = group
        self._access = access
        self._told: dict[MessageQueue, int] = {}

    def report(self, reached: Offsets) -> None:
        """Commit what has changed since the last report."""
        changed = {q: at for q, at in reached.items() if self._told.get(q) != at}
        if not changed:
            return
        # A broker that is away must not keep the others' lag from being seen.
        for name in sorted({queue.broker_name for queue in changed}):
            self._report({q: at for q, at in changed.items() if q.broker_name == name})

    def _report(self, changed: dict[MessageQueue, int]) -> None:
        try:
            self._make(changed)
            groups.commit(self._group, changed, self._access)
        except ClientError as error:
            log.warning("lag_not_reported group=%s error=%r", self._group, str(error))
            return
        self._told |= changed

    def _make(self, changed: Offsets) -> None:
        """See to it that the group exists, on brokers that are new to it; a broker may not allow
        that, and take its offsets all the same."""
        known = {queue.broker_name for queue in self._told}
        strange = [queue for queue in changed if queue.broker_name not in known]
        if not strange:
            return
        try:
            groups.ensure(self._group, strange, self._access)
        except BrokerRefused as error:
            log.warning("group_not_made group=%s error=%r", self._group, str(error))
