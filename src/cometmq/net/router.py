"""Routing of requests: finds the handler by request code, runs hooks, turns errors into responses.

The broker and the name server use the same router. A LOOP handler runs in the turn that read its
request; a TASK handler runs in its own task. An exception of a handler becomes the response to that
one request: a :class:`CometError` with its code and remark, any other with code 1 and a logged
traceback.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from cometmq.core.errors import BadRequest, CometError, LocalProtocolError
from cometmq.net.limits import Limit, RequestRates, ServerLimits
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.connection import Answered, Rejected
from cometmq.protocol.frame import JSON, Reply, encode_done, encode_response
from cometmq.protocol.registry import REGISTRY, Lane, Side

if TYPE_CHECKING:
    from cometmq.net.peer import Peer, RequestAccess
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.connection import Event
    from cometmq.protocol.frame import Request
    from cometmq.protocol.framer import BulkHandler

log = logging.getLogger(__name__)

#: Maximum number of slow requests of one connection that run at once; more are refused as busy.
MAX_TASKS_PER_PEER: Final = 256
#: The maximum when an urgent request begins; urgent and other requests are counted together.
MAX_URGENT_TASKS_PER_PEER: Final = 320
#: Response codes that do not count as refusals: the result of a read, or how a message was stored.
OUTCOMES: Final = frozenset(
    (
        ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    )
)  # fmt: skip


LoopHandler = Callable[["Peer", "Request[Any]"], Reply | None]
TaskHandler = Callable[["Peer", "Request[Any]"], Coroutine[Any, Any, Reply | None]]
Handler = LoopHandler | TaskHandler


class HandlerPart(Protocol):
    """Part of a server that serves some of the request codes."""

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        ...


def handlers_of(parts: Iterable[HandlerPart]) -> dict[int, Handler]:
    """Return the handlers of all parts by request code. Raises TypeError if two serve one code."""
    found: dict[int, Handler] = {}
    for part in parts:
        for code, handler in part.handlers().items():
            if code in found:
                raise TypeError(f"two handlers for request code {code}: {found[code]}, {handler}")
            found[code] = handler
    return found


class RpcHook(Protocol):
    """Hook that is called before and after every request, also one-way and failed ones."""

    def before(self, peer: Peer, request: Request[Any]) -> None:
        """Handle a request before it is served.

        May raise CometError, which refuses the request with its code and remark.
        """
        ...

    def after(self, peer: Peer, request: Request[Any], code: int) -> None:
        """Handle the end of a request, with its response code. Must not raise."""
        ...


class Router:
    """Routes the requests of all connections of one server.

    ``handlers`` maps request codes to handlers. A handler must be a coroutine function if and only
    if the registry puts its code into the TASK lane. Requests that change the configuration are
    accepted from this machine only, or with ``remote_admin`` from all machines. With ``access``,
    access control decides instead. ``limits`` are those of the server.

    ``bulk_handlers`` maps request codes to handlers of undecoded bytes (protocol/framer.py). Frames
    that these do not take go to ``handlers``. With a limit of requests a second they are not used.

    Urgent requests (protocol/registry.py) are served while others are refused for load. They have
    limits of their own: bodies of 512 KiB at most, and for slow ones a higher number of tasks
    (:func:`begin_task`).
    """

    def __init__(
        self,
        side: Side,
        handlers: Mapping[int, Handler],
        *,
        tasks: Tasks,
        remote_admin: bool = False,
        access: RequestAccess | None = None,
        limits: ServerLimits | None = None,
        bulk_handlers: Mapping[int, BulkHandler[Peer]] | None = None,
    ) -> None:
        self.limits = limits or ServerLimits()
        settings = self.limits.settings
        per_address = settings.max_requests_per_second_per_address
        per_account = settings.max_requests_per_second_per_account
        self._of_addresses = RequestRates(self.limits, per_address) if per_address else None
        self._of_accounts = RequestRates(self.limits, per_account) if per_account else None
        if per_address or per_account:  # requests are counted one by one
            bulk_handlers = None
        self.bulk_handlers = {b"%d" % code: take for code, take in (bulk_handlers or {}).items()}
        self.hooks: list[RpcHook] = []
        self.access = access
        #: Access control needs the fields as text, because signatures are computed from it.
        self.keep_fields = access is not None
        self._tasks = tasks
        self._loop_handlers: dict[int, LoopHandler] = {}
        self._task_handlers: dict[int, TaskHandler] = {}
        if unknown := handlers.keys() - REGISTRY.keys():
            raise TypeError(f"request codes without a row in protocol/registry.py: {unknown}")
        self._guarded: frozenset[int] = frozenset(
            code
            for code in handlers
            if REGISTRY[code].mutates and not remote_admin and access is None
        )
        for code, handler in handlers.items():
            spec = REGISTRY[code]
            is_task = inspect.iscoroutinefunction(handler)
            if side not in spec.side or is_task != (spec.lane is Lane.TASK):
                raise TypeError(
                    f"handler of {spec.code.name} does not match its entry in the registry: {spec}"
                )
            if is_task:
                self._task_handlers[code] = cast("TaskHandler", handler)
            else:
                self._loop_handlers[code] = cast("LoopHandler", handler)
        self._max_body_bytes = {code: REGISTRY[code].max_body_bytes for code in handlers}
        self._bodiless = frozenset(code for code in handlers if not REGISTRY[code].max_body_bytes)
        self._urgent = frozenset(code for code in handlers if REGISTRY[code].urgent)

    def handle(self, peer: Peer, event: Event[Any]) -> None:
        """Serve one event of ``peer``. No data from a peer makes it raise an exception."""
        if isinstance(event, Rejected):
            self._refuse(peer, event)
            return
        if isinstance(event, Answered):
            peer.answered(event)
            return
        handler = self._loop_handlers.get(event.code)
        try:
            # Before access control, whose checks cost most.
            if self._of_addresses is not None:
                self._of_addresses.take_of_address(peer, event)
            if event.charge is not None or (event.body and event.code in self._bodiless):
                self._check_size(peer, event)
            account = None if self.access is None else self.access.check(peer, event)
            if account is not None and self._of_accounts is not None:
                self._of_accounts.take_of_account(peer, event, account)
            if self.hooks or event.code in self._guarded:
                self._admit(peer, event)
            if handler is not None:
                reply = handler(peer, event)
                if reply is not None:
                    self.finish(peer, event, reply)
                return
            self._start(peer, event)
        except Exception as error:
            self.finish(peer, event, _failure(peer, event, error))

    def _refuse(self, peer: Peer, event: Rejected) -> None:
        error: CometError = event.error
        log.info("request rejected code=%d peer=%s reason=%s", event.code, peer.address, error)
        try:
            if self._of_addresses is not None:
                self._of_addresses.take_of_address(peer, event.request)
            account = None if self.access is None else self.access.check(peer, event.request)
            if account is not None and self._of_accounts is not None:
                self._of_accounts.take_of_account(peer, event.request, account)
            for hook in self.hooks:
                hook.before(peer, event.request)
        except Exception as refused:
            self.finish(peer, event.request, _failure(peer, event.request, refused))
            return
        self.finish(peer, event.request, Reply(error.code, remark=error.remark))

    def finish(self, peer: Peer, request: Request[Any], reply: Reply) -> None:
        """Run the after-hooks and send the response, unless the request is one-way.

        If the request's codec cannot encode the response, for example because of a text in it, an
        error response that says so is sent instead.
        """
        if self.hooks:
            self.after(peer, request, reply.code)
        if reply.code and reply.code not in OUTCOMES:
            refusals = self.limits.refusals
            refusals[reply.code] = refusals.get(reply.code, 0) + 1
        if request.oneway:
            return
        try:
            head = _head(request, reply)
        except LocalProtocolError as error:
            reply = Reply(ResponseCode.SYSTEM_ERROR, remark=f"the answer cannot be sent: {error}")
            head = _head(request, reply)
        peer.write(head)
        if reply.body:
            peer.write(reply.body)

    def acknowledge(self, peer: Peer, request: Request[Any]) -> None:
        """Send an empty success response, in two thirds of the time of :meth:`finish`."""
        if self.hooks or request.codec != JSON or request.oneway:
            self.finish(peer, request, Reply())
        else:
            peer.write(encode_done(request.opaque))

    def after(self, peer: Peer, request: Request[Any], code: int) -> None:
        """Run the after-hooks. Handlers that write their responses themselves call it."""
        for hook in self.hooks:
            try:
                hook.after(peer, request, code)
            except Exception:
                log.exception("after-hook failed hook=%r code=%d", hook, request.code)

    def _admit(self, peer: Peer, request: Request[Any]) -> None:
        for hook in self.hooks:
            hook.before(peer, request)
        if request.code in self._guarded and not peer.is_local:
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                f"{REGISTRY[request.code].code.name} changes this server, and came from "
                f"{peer.address}: send it from the server's machine, or give the server accounts "
                "(aclEnable) or remoteAdminEnable=true",
            )

    def _check_size(self, peer: Peer, request: Request[Any]) -> None:
        size_bytes = len(request.body)
        allowed = self._max_body_bytes.get(request.code, size_bytes)  # code not supported: any size
        if size_bytes > allowed:
            name = _name(request.code)
            request.drop_body()
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"a {name} request must have no body, this one has {size_bytes} bytes"
                if not allowed
                else f"the body of a {name} request may have {allowed} bytes, not {size_bytes}",
            )
        charge = request.charge
        if charge is not None and charge.account.is_exhausted and request.code not in self._urgent:
            request.drop_body()
            self.limits.hit(Limit.MEMORY_REQUESTS, peer.address, _name(request.code))
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]waiting requests and answers fill the memory reserved for "
                "connections: try again later",
            )

    def _start(self, peer: Peer, request: Request[Any]) -> None:
        handler = self._task_handlers.get(request.code)
        if handler is None:
            raise BadRequest(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
        begin_task(peer, urgent=request.code in self._urgent)
        name = REGISTRY[request.code].code.name
        self._tasks.spawn(self._run(peer, request, handler), name=name)

    async def _run(self, peer: Peer, request: Request[Any], handler: TaskHandler) -> None:
        try:
            reply = await handler(peer, request)
        except Exception as error:
            reply = _failure(peer, request, error)
        finally:
            end_task(peer)
        if reply is not None:
            self.finish(peer, request, reply)


def begin_task(peer: Peer, *, urgent: bool = False) -> None:
    """Count one more running slow request (task) of ``peer``; call :func:`end_task` at its end.

    Raises BadRequest (SYSTEM_BUSY) at the limit of the connection or of the process. The limits of
    urgent requests are a quarter higher, and only they may use that quarter.
    """
    budget = peer.memory.budget
    most = budget.max_urgent_tasks if urgent else budget.max_tasks
    most_of_peer = MAX_URGENT_TASKS_PER_PEER if urgent else MAX_TASKS_PER_PEER
    problem = ""
    if budget.tasks >= most:
        problem = f"{budget.tasks} slow requests of all connections are running: try again later"
    elif peer.running_tasks >= most_of_peer:
        problem = (
            f"{peer.running_tasks} slow requests of this connection are running: wait for their "
            "answers"
        )
    if problem:
        peer.limits.hit(Limit.SLOW_REQUESTS, peer.address, problem)
        raise BadRequest(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{problem}")
    peer.running_tasks += 1
    budget.tasks += 1


def end_task(peer: Peer) -> None:
    """Count a slow request of ``peer`` as ended."""
    peer.running_tasks -= 1
    peer.memory.budget.tasks -= 1


def _head(request: Request[Any], reply: Reply) -> bytes:
    return encode_response(
        request,
        reply.code,
        header=reply.header,
        ext=reply.ext,
        remark=reply.remark,
        body_bytes=len(reply.body),
    )


def _name(code: int) -> str:
    return REGISTRY[code].code.name if code in REGISTRY else str(code)


def _failure(peer: Peer, request: Request[Any], error: Exception) -> Reply:
    if isinstance(error, CometError):
        return Reply(error.code, remark=error.remark)
    log.error(
        "handler failed code=%d peer=%s error=%r", request.code, peer.address, error, exc_info=error
    )
    return Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
