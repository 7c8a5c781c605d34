"""Requests on their way to the parts of a broker: the router, and busy polling for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.replication import as_slave
from cometmq.net.eventloop import BusyPoll
from cometmq.net.router import Router, handlers_of
from cometmq.protocol.registry import Side
from cometmq.speedups import CORE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cometmq.broker.context import BrokerContext
    from cometmq.net.peer import Peer
    from cometmq.net.router import HandlerPart
    from cometmq.protocol.framer import TakeFrames


def make_router(
    context: BrokerContext,
    parts: Iterable[HandlerPart],
    takers: Mapping[int, TakeFrames[Peer]],
    master: Callable[[], str],
) -> Router:
    """Return the router to the handlers of all parts; on a slave, what only a master may serve is
    refused.

    ``takers`` take many requests from a connection at once, by request code. ``master`` returns the
    address of a slave's master.
    """
    config, handlers = context.config, handlers_of(parts)
    if config.is_slave:
        handlers = as_slave(handlers, master)
    return Router(
        Side.BROKER,
        handlers,
        tasks=context.tasks,
        remote_admin=config.remote_admin_enable,
        takers=takers if CORE == "compiled" and not config.is_slave else {},
    )


def busy_poll(context: BrokerContext) -> BusyPoll | None:
    """Return the polling for the next request; None if ``lookoutMicros`` is 0."""
    if not context.config.lookout_micros:
        return None
    # The sync thread needs the interpreter lock to report that it is done.
    return BusyPoll(
        context.config.lookout_micros, context.clock, waits=context.store.sync_waiters.parked
    )
