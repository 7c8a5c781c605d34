"""Commits the progress of a query as offsets of a consumer group, so that tools show its lag.

Only the checkpoint decides where a query continues. A failed commit is logged; the next one covers
it.
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
    """Keeps the committed offsets of a group at the end of the last finished batch."""

    def __init__(self, group: str, access: Access) -> None:
        self._group = group
        self._access = access
        self._told: dict[MessageQueue, int] = {}

    def report(self, reached: Offsets) -> None:
        """Commit the offsets that changed since the last report."""
        changed = {q: at for q, at in reached.items() if self._told.get(q) != at}
        if not changed:
            return
        # One request per broker: a broker that is away must not prevent commits on the others.
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
        """Create the group on brokers where this query has not reported yet.

        A broker may refuse that and still accept offsets of the group.
        """
        known = {queue.broker_name for queue in self._told}
        strange = [queue for queue in changed if queue.broker_name not in known]
        if not strange:
            return
        try:
            groups.ensure(self._group, strange, self._access)
        except BrokerRefused as error:
            log.warning("group_not_made group=%s error=%r", self._group, str(error))
