"""Messages that wait for their delivery time: delay levels and timers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.scheduled.delaylevels import DelayDelivery, DelayLevels
from cometmq.broker.scheduled.timers.rules import RecallHandler, TimerRules
from cometmq.broker.scheduled.timers.service import Timers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.context import BrokerContext
    from cometmq.net.router import Handler


class ScheduleService:
    """Delayed and timed messages, and the handler of recalls.

    A slave delivers nothing. It uses only ``levels``, ``rules``, and ``delay`` for the positions
    that it copies from its master.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self.levels = DelayLevels(context.config.message_delay_level)
        self.delay = DelayDelivery(context, self.levels)
        self.rules = TimerRules(context.config)
        self.timers = Timers(
            store=context.store,
            appender=context.appender,
            clock=context.clock,
            delayed=context.stats.delayed,
        )
        self._recall = RecallHandler(context, self.rules)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return self._recall.handlers()

    async def recover(self) -> None:
        """Recover the timed messages at a start. Raise OSError if their files cannot be read."""
        await self.timers.recover()
        self._context.store.maintenance.expiry.release_with(self.timers.release)

    def start(self) -> None:
        """Begin to deliver."""
        tasks, clock = self._context.tasks, self._context.clock
        tasks.keep(self.delay.run_forever, name="deliver delayed messages", clock=clock)
        self.timers.start(tasks)

    def facts(self) -> Mapping[str, str]:
        """Return entries for the broker's runtime information."""
        return self.timers.facts()
