"""Filters of pulls: tag codes or a SQL92 expression, from the pull itself or from a heartbeat.

Expressions are parsed once and cached, including invalid ones. newtexts.py limits the parsing of
new ones. A long one is parsed in a thread, which leaves the interpreter to the event loop after 5
ms at the latest. Until it is parsed, pulls with it are refused as busy, and CHECK_CLIENT_CONFIG
waits.

Tags are filtered by their codes in the queue entries, and once more by their texts in the client.
SQL92 is filtered only here, on the stored records (upstream: PullMessageProcessor.java,
ClientManageProcessor.checkClientConfig).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import BadRequest
from cometmq.filter import tags
from cometmq.filter.sql92 import BadFilter, Budget, SqlFilter, matching
from cometmq.filter.sqltext import MAX_CHARS
from cometmq.net.limits import Limit
from cometmq.protocol.bodies import ClientConfigCheck
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, parse_json
from cometmq.protocol.frame import Reply
from cometmq.store.read.reader import MAX_SCANNED_ENTRIES, ReadResult, ReadStatus, empty

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.pull.filterdata import FilterTable
    from cometmq.broker.pull.newtexts import NewTexts
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.bodies import SubscriptionData
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import PullMessage
    from cometmq.speedups import Program

#: Bit of the pull sysFlag: the pull carries its subscription (upstream: PullSysFlag.java).
SUBSCRIPTION: Final = 4
TAG: Final = "TAG"
SQL92: Final = "SQL92"
#: Limits of the cache of parsed expressions.
MAX_REMEMBERED: Final = 10_000
MAX_REMEMBERED_BYTES: Final = 32 << 20
#: Maximum memory of all SQL92 filters in use. At the limit, no further pull with one is held.
MAX_LIVE_BYTES: Final = 128 << 20
#: Largest body of CHECK_CLIENT_CONFIG, which is read on the event loop.
MAX_CHECK_BYTES: Final = 512 * 1024
#: Estimated memory of a filter, and of each tag code in it.
_WANTED_BYTES: Final = 200
_TAG_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class PullFilter:
    """Filter of a pull: ``codes`` of queue entries (None accepts all), and a SQL92 filter of
    records (None accepts all)."""

    codes: frozenset[int] | None = None
    sql: SqlFilter | None = None

    @property
    def program(self) -> Program | None:
        """The compiled SQL92 filter; None without one."""
        return None if self.sql is None else self.sql.program

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the filter."""
        sql_bytes = 0 if self.sql is None else self.sql.size_bytes
        return _WANTED_BYTES + sql_bytes + _TAG_BYTES * len(self.codes or ())


_EVERYTHING: Final = PullFilter()


class Filters:
    """Finds the filter of each pull, and serves CHECK_CLIENT_CONFIG."""

    def __init__(self, context: BrokerContext, stored: FilterTable, texts: NewTexts) -> None:
        self._config = context.config
        self._clock = context.clock
        self._members = context.tables.members
        self._stored = stored
        self._new_texts = texts
        #: Filters by kind (SQL92 or not) and text; for an invalid text, its error.
        self._known: dict[tuple[bool, str], PullFilter | BadRequest] = {}
        self._known_bytes = self._live_bytes = 0
        self._tasks = context.tasks
        #: Tasks that parse an expression in a thread, one after the other, by expression.
        self._apart: dict[str, asyncio.Task[None]] = {}
        self._parsing = asyncio.Lock()

    @property
    def has_room(self) -> bool:
        """True while one more pull with a SQL92 filter may be held."""
        return self._live_bytes < MAX_LIVE_BYTES

    def when_changed(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the filters of pulls without their own subscription may have changed.

        The filter of a pull that carries its subscription never changes.
        """
        self._members.table.on_change.append(call)
        self._stored.on_change.append(call)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.CHECK_CLIENT_CONFIG: self.check_client}

    async def check_client(self, peer: Peer, request: Request[Any]) -> Reply:
        """Check the subscription of a client that is about to start. Raises BadRequest if this
        broker cannot filter by it."""
        if len(request.body) > MAX_CHECK_BYTES:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"a subscription of {len(request.body)} bytes is over the limit of "
                f"{MAX_CHECK_BYTES}",
            )
        body = parse_json(
            request.body, ClientConfigCheck, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES
        )
        subscription = body.subscription_data
        kind, text = subscription.expression_type, subscription.sub_string
        try:
            self._read(kind, text, peer)
        except BadRequest:
            task = self._apart.get(text or "")
            if kind != SQL92 or task is None:
                raise
            await asyncio.wait([task])
            self._read(kind, text, peer)
        return Reply()

    def wanted(self, header: PullMessage, peer: Peer | None) -> PullFilter:
        """Return the filter of a pull that ``peer`` sent.

        Without a peer, no new SQL92 expression is parsed. Raises BadRequest with code 23 if the
        expression is invalid, 2 if it is not parsed yet, 24 or 25 if the subscription is unknown or
        outdated, and 27 or 28 if the stored filter is.
        """
        if header.sys_flag & SUBSCRIPTION:
            return self._read(header.expression_type, header.subscription, peer)
        subscription = self._members.subscription(header.consumer_group, header.topic)
        if subscription is None:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {header.consumer_group} is not "
                f"subscribed to {header.topic}, or its heartbeat has not arrived",
            )
        if subscription.sub_version < header.sub_version:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                "the consumer's subscription not latest: its heartbeat is older than this pull",
            )
        if subscription.expression_type == SQL92:
            expression = self._stored_expression(header, subscription, peer)
            return self._read(SQL92, expression, peer)
        # Java's hashes are signed; queue entries hold them sign-extended, as these are.
        return PullFilter(frozenset(subscription.code_set) or None)

    def _stored_expression(
        self, header: PullMessage, subscription: SubscriptionData, peer: Peer | None
    ) -> str:
        data = self._stored.get(header.topic, header.consumer_group)
        if data is None and self._is_readable(subscription.sub_string, peer):
            self._stored.register(header.consumer_group, subscription)
            data = self._stored.get(header.topic, header.consumer_group)
        if data is None:
            raise BadRequest(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"The broker's consumer filter data is not exist: group {header.consumer_group} "
                f"has none for {header.topic}",
            )
        if data.client_version < header.sub_version:
            raise BadRequest(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest: its heartbeat is older than this "
                "pull",
            )
        return data.expression

    def _is_readable(self, expression: str, peer: Peer | None) -> bool:
        try:
            self._read(SQL92, expression, peer)
        except BadRequest as error:
            if error.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                raise
            return False
        return True

    def _read(self, kind: str | None, expression: str | None, peer: Peer | None) -> PullFilter:
        """Return the filter of an expression, from the cache or parsed now.

        Raises BadRequest as :meth:`wanted` does.
        """
        is_sql = kind == SQL92
        if not is_sql and kind not in (None, "", TAG):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"filter expressions of type {kind[:40]!r} are not supported: use {TAG} or {SQL92}",
            )
        if is_sql and not self._config.enable_property_filter:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by SQL92: set "
                "enablePropertyFilter=true",
            )
        if not is_sql and (not expression or expression == tags.ALL):
            return _EVERYTHING
        key = (is_sql, expression or "")
        found = self._known.get(key)
        if isinstance(found, BadRequest):
            raise BadRequest(found.code, found.remark)
        if found is not None:
            return found
        if is_sql:
            self._begin_to_parse(key[1], peer)
            if len(key[1]) <= MAX_CHARS:
                self._check_time(key[1])
        try:
            parsed = _parse(*key)
        except BadRequest as error:
            # An expression that is too long is not cached: it is refused each time, unparsed.
            if is_sql and len(key[1]) <= MAX_CHARS:
                self._remember(key, BadRequest(error.code, error.remark))
            raise
        self._remember(key, parsed)
        return parsed

    def _begin_to_parse(self, expression: str, peer: Peer | None) -> None:
        """Raise BadRequest (SYSTEM_BUSY) if a new expression may not be parsed now."""
        now_ms = self._clock.monotonic_ms()
        if expression in self._apart:
            raise _being_parsed()
        if peer is not None and self._new_texts.take(expression, now_ms, peer):
            return
        problem = "a new filter expression is not parsed now, there are too many of them"
        if peer is not None:
            peer.limits.hit(Limit.NEW_FILTERS, peer.address, problem)
        raise BadRequest(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{problem}: try again later")

    def _check_time(self, expression: str) -> None:
        """Have a thread parse an expression that takes too long for the event loop; then raise
        BadRequest (SYSTEM_BUSY)."""
        if self._new_texts.take_on_loop(expression, self._clock.monotonic_ms()):
            return
        task = self._tasks.spawn(self._parse_apart(expression), name="parse a filter expression")
        self._apart[expression] = task
        task.add_done_callback(lambda _: self._apart.pop(expression))
        raise _being_parsed()

    async def _parse_apart(self, expression: str) -> None:
        parsed: PullFilter | BadRequest
        async with self._parsing:
            try:
                parsed = await asyncio.to_thread(_parse, True, expression)
            except BadRequest as error:
                parsed = BadRequest(error.code, error.remark)
        self._remember((True, expression), parsed)

    def _remember(self, key: tuple[bool, str], wanted: PullFilter | BadRequest) -> None:
        """Cache a filter or the error of its text; drop the oldest entries over the limits."""
        if isinstance(wanted, PullFilter) and wanted.sql is not None:
            size_bytes = wanted.sql.size_bytes
            self._live_bytes += size_bytes
            weakref.finalize(wanted.sql, self._forget, size_bytes).atexit = False
        known = self._known
        known[key] = wanted
        self._known_bytes += _size_of(wanted) + len(key[1])
        while len(known) > MAX_REMEMBERED or self._known_bytes > MAX_REMEMBERED_BYTES:
            oldest = next(iter(known))
            self._known_bytes -= _size_of(known.pop(oldest)) + len(oldest[1])

    def _forget(self, size_bytes: int) -> None:
        """Subtract the size of a filter that was garbage collected."""
        self._live_bytes -= size_bytes


def _being_parsed() -> BadRequest:
    return BadRequest(
        ResponseCode.SYSTEM_BUSY,
        "[OVERLOAD]a long filter expression is being parsed: try again in a second",
    )


def _size_of(found: PullFilter | BadRequest) -> int:
    return _WANTED_BYTES + len(found.remark) if isinstance(found, BadRequest) else found.size_bytes


def _parse(is_sql: bool, expression: str) -> PullFilter:
    try:
        if is_sql:
            return PullFilter(sql=SqlFilter(expression))
        return PullFilter(tags.parse(expression).codes or None)
    except (BadFilter, ValueError) as error:
        raise BadRequest(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


def keep_matching(result: ReadResult, sql: SqlFilter) -> int:
    """Remove the messages that do not match from a loaded result, possibly all of them.

    Returns the number of bytes of properties that were examined.
    """
    matches = matching(result.chunks, sql.matches)
    result.chunks, result.count = matches.chunks, matches.count
    result.size_bytes = matches.size_bytes
    return matches.looked_bytes


def read_matching(
    read: Callable[[int, int, int], ReadResult],
    offset: int,
    max_count: int,
    max_bytes: int,
    sql: SqlFilter,
) -> ReadResult:
    """Return the matching messages from ``offset`` on.

    Examines at most MAX_SCANNED_ENTRIES entries, and fewer if the filter's budget is spent first
    (filter/sql92.py). ``read(offset, max_count, max_bytes)`` returns messages. If the first
    messages are cold, returns that cold result unfiltered: the caller must load it and filter it.
    ``far`` of the result is set if any examined message is far from the end of the log, whether it
    matches or not.
    """
    is_far = False

    def recording_read(offset: int, max_count: int, max_bytes: int) -> ReadResult:
        nonlocal is_far
        found = read(offset, max_count, max_bytes)
        is_far = is_far or found.far
        return found

    result = _read_matching(recording_read, offset, max_count, max_bytes, sql)
    result.far = is_far
    return result


def _read_matching(
    read: Callable[[int, int, int], ReadResult],
    offset: int,
    max_count: int,
    max_bytes: int,
    sql: SqlFilter,
) -> ReadResult:
    found: ReadResult | None = None
    scanned = 0
    budget = Budget(sql.weight)
    while True:
        result = read(
            offset,
            min(max_count - (found.count if found else 0), budget.count),
            min(max_bytes - (found.size_bytes if found else 0), budget.size_bytes),
        )
        # No further messages in memory: return the matches so far, without waiting for the device.
        if result.status is not ReadStatus.FOUND or result.cold:
            return found or result
        scanned += result.next_offset - offset
        offset = result.next_offset
        count = result.count
        budget.take(count, keep_matching(result, sql))
        if found is None:
            found = result if result.count else None
        elif result.count and found.size_bytes + result.size_bytes > max_bytes:
            return found  # read() returns at least one message, and this one exceeds max_bytes
        else:
            found.chunks += result.chunks
            found.count += result.count
            found.size_bytes += result.size_bytes
        if found is not None:
            found.next_offset = offset
            if found.count >= max_count or found.size_bytes >= max_bytes:
                return found
        if scanned >= MAX_SCANNED_ENTRIES or offset >= result.max_offset or budget.is_spent:
            nothing = ReadStatus.NO_MATCHED_MESSAGE
            return found or empty(nothing, offset, result.min_offset, result.max_offset)
