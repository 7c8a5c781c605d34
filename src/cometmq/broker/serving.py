"""Construction of the parts that a request passes before its handler: busy polling of the event
loop, access control, and the router."""

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
    from cometmq.protocol.framer import BulkHandler


def make_router(
    context: BrokerContext,
    parts: Iterable[HandlerPart],
    *,
    bulk_handlers: Mapping[int, BulkHandler[Peer]],
    access: AccessControl | None,
    master: Callable[[], str],
) -> Router:
    """Return the router to the handlers of all parts.

    A slave's router refuses the requests that only a master may serve; the answer names the address
    that ``master`` returns. ``bulk_handlers`` are functions by request code; each serves plain
    requests of one connection in a single call. ``access`` is None without access control.
    """
    config, handlers = context.config, handlers_of(parts)
    if config.is_slave:
        handlers = as_slave(handlers, master)
    # On a slave, bulk handlers would bypass the handlers that refuse requests.
    serves_in_bulk = CORE == "compiled" and not config.is_slave
    return Router(
        Side.BROKER,
        handlers,
        tasks=context.tasks,
        remote_admin=config.remote_admin_enable,
        access=access,
        limits=context.stats.limits,
        bulk_handlers=bulk_handlers if serves_in_bulk else {},
    )


def access_control(context: BrokerContext) -> AccessControl | None:
    """Read the ACL files and return access control; None without ``aclEnable``.

    Raises AclDenied, which names the file, if a file cannot be used.
    """
    if not context.config.acl_enable:
        return None
    home = context.config.rocketmq_home or context.store.config.store_path_root_dir
    return AccessControl(AclFiles(home, context.clock.wall_ms), context.clock)


def busy_poll(context: BrokerContext) -> BusyPoll | None:
    """Return the busy polling for the next request; None if ``lookoutMicros`` is 0."""
    if not context.config.lookout_micros:
        return None
    # No polling while responses wait for a sync: to report its end, the sync thread needs the
    # interpreter lock, which a polling loop would hold.
    return BusyPoll(
        context.config.lookout_micros, context.clock, waits=context.store.sync_waiters.parked
    )
