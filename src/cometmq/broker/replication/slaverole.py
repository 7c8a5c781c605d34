"""Requests that a slave refuses, and notes that it drops: its master alone takes sends, changes
tables, and delivers delayed messages and transactions.

Pulls, heartbeats, offsets and locks are served, so that consumers continue while the master is
gone.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.scheduled.timers.snapshot import STATE_FILE
from cometmq.core.errors import BadRequest
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.store.timerfiles import TIMER_DIRECTORY

if TYPE_CHECKING:
    from cometmq.net.peer import Peer
    from cometmq.net.reply import Reply
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.store.files import Files

_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.RECALL_MESSAGE,
)
#: Files, relative to the store's root, in which a master keeps notes for its next start.
_NOTES: Final = (
    os.path.join("config", "transactions.json"),
    os.path.join(TIMER_DIRECTORY, STATE_FILE),
)
_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)


def as_slave(handlers: Mapping[int, Handler], master: Callable[[], str]) -> dict[int, Handler]:
    """Return the handlers of a slave: those of a master, with the master's own requests refused.

    ``master`` returns the master's address, "" while it is unknown.
    """

    def refusing(code: int, problem: str) -> Callable[[Handler], Handler]:
        def instead_of(handler: Handler) -> Handler:
            def refuse(_peer: Peer, _request: Request[Any]) -> Reply:
                at = master()
                raise BadRequest(code, f"{problem}: ask the master{f' {at}' if at else ''}")

            async def refuse_in_task(peer: Peer, request: Request[Any]) -> Reply:
                return refuse(peer, request)

            return refuse_in_task if inspect.iscoroutinefunction(handler) else refuse

        return instead_of

    send = refusing(
        ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave and accepts no sends"
    )
    end = refusing(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave cannot end transactions")
    change = refusing(ResponseCode.SYSTEM_ERROR, "a slave cannot change topics and groups")
    refusals = {
        **dict.fromkeys(_SENDS, send),
        **dict.fromkeys(_CHANGES, change),
        RequestCode.END_TRANSACTION: end,
    }
    return {
        code: refusals[RequestCode(code)](handler) if code in refusals else handler
        for code, handler in handlers.items()
    }


def forget_notes(files: Files, root: str) -> None:
    """Remove, durably, the notes that this broker kept as a master.

    Its log may continue differently from here. As a master it would find the same facts in the log.
    Raise OSError if a note cannot be removed.
    """
    for note in _NOTES:
        path = os.path.join(root, note)
        found = [name for name in (path, f"{path}.bak") if files.exists(name)]
        for name in found:
            files.unlink(name)
        if found:
            files.sync_directory(os.path.dirname(path))
