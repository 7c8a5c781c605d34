"""Requests on their way to the parts of a broker: access control, the router, and busy polling for
the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.acl.control import AccessControl
from cometmq.acl.files import AclFiles
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
    *,
    takers: Mapping[int, TakeFrames[Peer]],
    access: AccessControl | None,
    master: Callable[[], str],
) -> Router:
    """Return the router to the handlers of all parts; on a slave, what only a master may serve is
    refused.

    ``takers`` take many requests from a connection at once, by request code. ``access`` decides
    who may send what; None without access control. ``master`` returns the address of a slave's
    master.
    """
    config, handlers = context.config, handlers_of(parts)
    if config.is_slave:
        handlers = as_slave(handlers, master)
    return Router(
        Side.BROKER,
        handlers,
        tasks=context.tasks,
        remote_admin=config.remote_admin_enable,
        access=access,
        takers=takers if CORE == "compiled" and not config.is_slave else {},
    )


def access_control(context: BrokerContext) -> AccessControl | None:
    """Return access control with its files read; None without ``aclEnable``.

    Raises AclDenied, which names the file, if one cannot be used.
    """
    if not context.config.acl_enable:
        return None
    home = context.config.rocketmq_home or context.store.config.store_path_root_dir
    return AccessControl(AclFiles(home, context.clock.wall_ms), context.clock)


def busy_poll(context: BrokerContext) -> BusyPoll | None:
    """Return the polling for the next request; None if ``lookoutMicros`` is 0."""
    if not context.config.lookout_micros:
        return None
    # The sync thread needs the interpreter lock to report that it is done.
    return BusyPoll(
        context.config.lookout_micros, context.clock, waits=context.store.sync_waiters.parked
    )
