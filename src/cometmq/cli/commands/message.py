"""``cometmq message``: sends, consumes and finds messages."""

from __future__ import annotations

import asyncio
import base64
import re
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from cometmq.cli.asking import interruptible
from cometmq.cli.command import Exit, Noun
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument, Option, moment_of, position_of
from cometmq.cli.render import Address, Result, body_text, cell, time_text, when
from cometmq.core.errors import CometError, NotFound, RouteNotFound, SettingsError
from cometmq.core.plural import plural

if TYPE_CHECKING:
    from cometmq.admin.messages import Selection
    from cometmq.client.consumer.pushconsumer import Subscription
    from cometmq.client.sendrequests import SendResult
    from cometmq.message.model import Message, StoredMessage

message = Noun("message", "Messages: send, consume, find, browse and tail.")

BATCH_LINES = 256

Topic = Annotated[str, Argument("TOPIC")]
Form = Annotated[
    str,
    Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="Text for each message: %t topic, %b broker, %p queue, %o offset, %k keys, %g tag, "
        "%v body, %d time, %i id, %s size, %h properties; \\n and \\t are escapes.",
    ),
]


@dataclass(frozen=True, slots=True)
class SentRow:
    """A message that was sent, and where it is stored."""

    id: str
    status: str
    broker: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A stored message. ``encoding`` says how ``body`` shows its bytes: as text, or as base64."""

    id: str
    topic: str
    broker: str
    queue: int
    offset: int
    tag: str | None
    keys: list[str]
    stored_at: datetime | None
    born_at: datetime | None
    born_on: Address | None
    stored_on: Address | None
    offset_id: str
    deliveries: int
    size_bytes: int
    properties: dict[str, str]
    encoding: Literal["text", "base64"]
    body: str

    WIDE: ClassVar[tuple[str, ...]] = (
        "born_at", "born_on", "stored_on", "offset_id", "deliveries", "size_bytes", "properties",
        "encoding",
    )  # fmt: skip

    def line(self) -> str:
        """Return the line of a message among others: where it is, and its body."""
        stored = time_text(self.stored_at) if self.stored_at else "-"
        body = self.body if self.encoding == "base64" else body_text(self.body.encode())
        return (
            f"{stored} broker={cell(self.broker)} queue={self.queue} offset={self.offset} "
            f"tag={cell(self.tag)} keys={cell(self.keys)} {cell(body)}"
        )


def message_row(found: StoredMessage) -> MessageRow:
    """Return the row of a message."""
    try:
        body, encoding = found.body.decode(), "text"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(found.body).decode(), "base64"
    return MessageRow(
        found.message_id, found.topic, found.broker_name, found.queue_id,
        found.queue_offset, found.tag or None, list(found.keys), when(found.store_ms),
        when(found.born_ms), Address.parse(found.born_address),
        Address.parse(found.store_address), found.offset_id, found.reconsume_times,
        found.size_bytes, dict(found.properties),
        "text" if encoding == "text" else "base64", body,
    )  # fmt: skip


_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\\\": "\\", "\\0": "\0"}
_FORMS: Final[dict[str, Callable[[MessageRow], object]]] = {
    "t": lambda row: row.topic,
    "b": lambda row: row.broker,
    "p": lambda row: row.queue,
    "o": lambda row: row.offset,
    "k": lambda row: " ".join(row.keys),
    "g": lambda row: row.tag or "",
    "v": lambda row: row.body,
    "d": lambda row: time_text(row.stored_at) if row.stored_at else "",
    "i": lambda row: row.id,
    "s": lambda row: row.size_bytes,
    "h": lambda row: ",".join(f"{key}={value}" for key, value in row.properties.items()),
    "%": lambda row: "%",
}


def formatted(form: str, row: MessageRow) -> str:
    """Return a message in the form of ``--format``."""

    def replaced(found: re.Match[str]) -> str:
        word = found[0]
        return _ESCAPES[word] if word in _ESCAPES else str(_FORMS[word[1]](row))

    return re.sub(r"\\[nt0\\]|%[tbpokgvdish%]", replaced, form)


def check_format(form: str) -> None:
    """Raise SettingsError for a ``%`` without one of the letters of ``--format``."""
    for found in re.finditer(r"%(.?)", form.replace("%%", "")):
        if found[1] not in _FORMS:
            raise SettingsError("--format", f"%{found[1]} stands for nothing: see --help")


def printed(form: str, row: MessageRow) -> bool:
    """Print a message in the form of ``--format`` and return True; return False without a form."""
    if form:
        sys.stdout.write(formatted(form, row))
        sys.stdout.flush()
    return bool(form)


def parse_properties(pairs: list[str]) -> dict[str, str]:
    """Parse ``key=value`` words. Raises SettingsError."""
    from cometmq.cli.configuration import parse_settings

    return parse_settings(pairs)


async def send(
    cluster: Connected,
    topic: Topic,
    body: Annotated[str, Argument("BODY", "The body; '-' reads it from standard input.")] = "-",
    tag: Annotated[str, Option(help="Tag, by which consumers filter.")] = "",
    key: Annotated[list[str] | None, Option(help="Key to find the message by.")] = None,
    order_key: Annotated[str, Option(help="Messages with one order key stay in order.")] = "",
    delay_level: Annotated[int, Option(min=0, help="Delay level; 0 delivers at once.")] = 0,
    property: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="A user property.")
    ] = None,
    lines: Annotated[bool, Option("--lines", help="Send each line as a message.")] = False,
) -> list[SentRow]:
    """Send a message, or one for each line, and show where it is stored."""
    from cometmq.message.model import Message

    raw = _input() if body == "-" else body.encode("utf-8", "surrogateescape")
    bodies = [line for line in raw.splitlines() if line] if lines else [raw]
    properties = parse_properties(property or [])
    messages = [
        Message(topic, each, tag, tuple(key or ()), 0, delay_level, True, properties)
        for each in bodies
    ]
    results = await _send_all(cluster, messages, order_key or None, alone=bool(delay_level))
    return [
        SentRow(
            each.message_id, each.status.name, each.queue.broker_name, each.queue.queue_id,
            each.queue_offset,
        )
        for each in results
    ]  # fmt: skip


def _input() -> bytes:
    with interruptible():
        return sys.stdin.buffer.read()


async def _send_all(
    cluster: Connected, messages: list[Message], order_key: str | None, *, alone: bool
) -> list[SendResult]:
    """Send messages in batches; ``alone`` sends each one in a request of its own."""
    found: list[SendResult] = []
    for at in range(0, len(messages), BATCH_LINES):
        part = messages[at : at + BATCH_LINES]
        if len(part) == 1 or alone:
            sends = (cluster.client.send(each, order_key=order_key) for each in part)
            found += await asyncio.gather(*sends)
        else:
            found += await cluster.client.send_many(part, order_key=order_key)
    return found


async def consume(
    cluster: Connected,
    topic: Topic,
    group: Annotated[str, Option("--group", "-g", help="The consumer group.")],
    filter: Annotated[str, Option(help="Tags, such as 'insert || update'.")] = "*",
    count: Annotated[int, Option(min=0, help="Stop after this number; 0: never.")] = 0,
    start: Annotated[
        Literal["first", "last"], Option("--from", help="Where a new group begins.")
    ] = "first",
    timeout: Annotated[
        float, Option(min=0, help="Stop after these seconds without a message; 0: never.")
    ] = 0,
    form: Form = "",
) -> AsyncIterator[MessageRow]:
    """Consume messages as a member of a group and print them; interrupt to stop.

    The exit code is 1 if fewer than --count messages were received before the timeout. Without
    --count it is 1 if no message was received because the topic does not exist.
    """
    from cometmq.cli.serve import stop_signals

    check_format(form)
    stop = asyncio.Event()
    with stop_signals(stop.set):
        opened = cluster.client
        subscription = opened.subscribe(
            topic, group=group, filter=filter, start=start, concurrency=1
        )
        await subscription.start()
        try:
            await opened.session.route(topic)
        except RouteNotFound as error:
            print(f"cometmq consume: {error}; waiting for it", file=sys.stderr)
        idle = Idle(subscription, stop, timeout)
        taken = 0
        watch = opened.session.tasks.spawn(idle.close_in_time(), name="close an idle consumer")
        try:
            async for received in subscription:
                async with received.processing(reraise=True):
                    row = replace(message_row(received.stored), topic=received.topic)
                    if not printed(form, row):
                        yield row
                taken += 1
                idle.seen.set()
                if taken == count:
                    break
        finally:
            watch.cancel()
            await subscription.close()
        if not taken:
            await opened.session.route(topic)  # raises if there is no such topic
        if taken < count:
            raise Exit(1)


class Idle:
    """Closes a subscription on ``stop``, or if no message came for ``timeout_s`` (0: never).

    The consumer sets :attr:`seen` after each message.
    """

    def __init__(self, subscription: Subscription, stop: asyncio.Event, timeout_s: float) -> None:
        self.seen = asyncio.Event()
        self._subscription = subscription
        self._stop = stop
        self._timeout_s = timeout_s or None

    async def close_in_time(self) -> None:
        """Wait until the subscription is idle or has to stop, and close it."""
        while not self._stop.is_set():
            self.seen.clear()
            async with asyncio.TaskGroup() as tasks:
                waits = [tasks.create_task(self._stop.wait()), tasks.create_task(self.seen.wait())]
                done, left = await asyncio.wait(
                    waits, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                for wait in left:
                    wait.cancel()
            if not done:
                break
        await self._subscription.close()


OnlyBroker = Annotated[str, Option("--broker", help="Only queues of this broker.")]
Queues = Annotated[list[int] | None, Option("--queue", min=0, help="Only this queue.")]
Tags = Annotated[str, Option(help="Tags, such as 'insert || update'.")]
Sql = Annotated[str, Option(metavar="EXPRESSION", help="SQL92 filter on properties.")]
Grep = Annotated[str, Option(metavar="TEXT", help="Only messages whose body contains this text.")]
_POSITION = "first, last, an offset, a time, or @-1h."


def _selection(broker: str, queues: list[int] | None, filter: str, sql: str) -> Selection:
    from cometmq.admin.messages import Selection

    return Selection(broker, frozenset(queues or ()), sql or filter, bool(sql))


async def browse(
    cluster: Connected,
    topic: Topic,
    start: Annotated[str, Option("--from", metavar="POSITION", help=_POSITION)] = "first",
    end: Annotated[
        str, Option("--to", metavar="POSITION", help=f"End before: {_POSITION}")
    ] = "last",
    count: Annotated[
        int, Option("--count", "-c", min=0, help="Stop after this number; 0: all.")
    ] = 0,
    broker: OnlyBroker = "",
    queue: Queues = None,
    filter: Tags = "*",
    sql: Sql = "",
    grep: Grep = "",
    form: Form = "",
) -> AsyncIterator[MessageRow]:
    """Print stored messages between two positions, in the order of their times; join no group."""
    check_format(form)
    now_ms = cluster.session.clock.wall_ms()
    begin = position_of(start, now_ms, offsets=True)
    until = position_of(end, now_ms, offsets=True)
    selection = _selection(broker, queue, filter, sql)
    found = cluster.messages.browse(topic, begin, until, selection)
    async for row in _printed(found, count, grep, form):
        yield row


async def tail(
    cluster: Connected,
    topic: Topic,
    start: Annotated[str, Option("--from", metavar="POSITION", help=_POSITION)] = "last",
    count: Annotated[
        int, Option("--count", "-c", min=0, help="Stop after this number; 0: never.")
    ] = 0,
    broker: OnlyBroker = "",
    queue: Queues = None,
    filter: Tags = "*",
    sql: Sql = "",
    grep: Grep = "",
    form: Form = "",
) -> AsyncIterator[MessageRow]:
    """Print messages as they arrive, until interrupted; join no group."""
    check_format(form)
    begin = position_of(start, cluster.session.clock.wall_ms(), offsets=True)
    found = cluster.messages.tail(topic, begin, _selection(broker, queue, filter, sql))
    async for row in _printed(found, count, grep, form):
        yield row


async def _printed(
    found: AsyncIterator[StoredMessage], count: int, grep: str, form: str
) -> AsyncIterator[MessageRow]:
    """Yield the rows of messages that contain a text, or print them in the form of --format."""
    wanted, taken = grep.encode("utf-8", "surrogateescape"), 0
    async for each in found:
        if wanted not in each.body:
            continue
        row = message_row(each)
        if not printed(form, row):
            yield row
        taken += 1
        if taken == count:
            return


async def show(
    cluster: Connected,
    topic: Topic,
    id: Annotated[
        str, Argument("ID", "Message id (unique key) or offset id; or use an option.")
    ] = "",
    key: Annotated[str, Option("--key", "-k", help="Messages with this key.")] = "",
    queue: Annotated[int | None, Option(min=0, help="Queue, with --offset.")] = None,
    offset: Annotated[int | None, Option(min=0, help="Offset in the queue.")] = None,
    broker: Annotated[str, Option(help="Broker of the queue, if several have it.")] = "",
    limit: Annotated[int, Option(min=1, help="Largest number of messages with a key.")] = 64,
    since: Annotated[str, Option(metavar="TIME", help="Stored at or after this time.")] = "",
    until: Annotated[str, Option(metavar="TIME", help="Stored before this time.")] = "",
) -> Result[MessageRow]:
    """Show messages by id, by key, or by place, with all their properties."""
    by_place = queue is not None and offset is not None
    if sum((bool(id), bool(key), by_place)) != 1:
        raise SettingsError("show", "give an id, or --key, or --queue and --offset")
    if id:
        try:
            return _one(message_row(await cluster.messages.by_id(id, topic)))
        except NotFound as error:
            raise CometError(f"{error}; --key finds messages by key") from None
    if queue is not None and offset is not None:
        queues = await cluster.messages.queues(topic, _selection(broker, [queue], "*", ""))
        if len(queues) > 1:
            names = ", ".join(each.broker_name for each in queues)
            raise SettingsError("--broker", f"queue {queue} is on {names}: name one")
        return _one(message_row(await cluster.messages.by_place(queues[0], offset)))
    now_ms = cluster.session.clock.wall_ms()
    begin_ms = moment_of(since, now_ms) if since else 0
    end_ms = moment_of(until, now_ms) if until else 2**63 - 1
    rows = await cluster.admin.messages_by_key(
        topic, key, max_messages=limit, begin_ms=begin_ms, end_ms=end_ms
    )
    if not rows:
        raise CometError(f"topic {topic!r} has no message with key {key!r}")
    found = [message_row(each) for each in rows]
    return _one(found[0]) if len(found) == 1 else Result(found)


def _one(row: MessageRow) -> Result[MessageRow]:
    return Result([row], shown=row)


@message.command(
    "copy", "message copy orders 7F0000010000ABCD0000000000001234 --to orders-again", does="sent"
)
async def copy(
    cluster: Connected,
    topic: Topic,
    id: Annotated[str, Argument("ID", "Message id or offset id.")],
    to: Annotated[
        str, Option(metavar="TOPIC", help="Topic of the copy, by default the same.")
    ] = "",
) -> SentRow:
    """Send a copy of a stored message, with its body, tag, keys and properties."""
    found = await cluster.messages.by_id(id, topic)
    made = await cluster.messages.copy(found, to)
    return SentRow(
        made.message_id, made.status.name, made.queue.broker_name, made.queue.queue_id,
        made.queue_offset,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DirectRow:
    """Result of giving a message directly to a consumer."""

    id: str
    group: str
    result: str | None
    duration_ms: int
    remark: str | None


@message.command(
    "deliver",
    "message deliver orders 7F0000010000ABCD0000000000001234 --group billing",
    does="delivered",
)
async def deliver(
    cluster: Connected,
    topic: Topic,
    id: Annotated[str, Argument("ID", "Message id or offset id.")],
    group: Annotated[str, Option("--group", "-g", help="The consumer group.")],
    client_id: Annotated[str, Option(help="One of its consumers, by default the first.")] = "",
) -> DirectRow:
    """Have a consumer process a stored message now; offsets stay as they are."""
    found = await cluster.messages.by_id(id, topic)
    result = await cluster.messages.consume(found, group, client_id)
    outcome = result.consume_result
    return DirectRow(
        id, group, str(outcome) if outcome else None, result.spent_time_mills, result.remark or None
    )


@dataclass(frozen=True, slots=True)
class PingRow:
    """Duration of sends to one queue; ``problem`` is that of the last one that failed."""

    broker: str
    queue: int
    sends: int
    failed: int
    min_ms: float | None
    max_ms: float | None
    problem: str | None


@message.command("ping", "message ping orders --count 20")
async def ping(
    cluster: Connected,
    topic: Topic,
    count: Annotated[int, Option("--count", "-c", min=1, help="Number of messages.")] = 10,
    size: Annotated[int, Option(min=1, help="Size of a body in bytes.")] = 128,
    broker: OnlyBroker = "",
) -> Result[PingRow]:
    """Send messages one after another to the queues of a topic, and show how long each took."""
    trips = await cluster.messages.round_trips(topic, count=count, size_bytes=size, broker=broker)
    rows = []
    for queue in sorted({each.queue for each in trips}):
        mine = [each for each in trips if each.queue == queue]
        times = [round(each.duration_ms, 3) for each in mine if each.error is None]
        errors = [str(each.error) for each in mine if each.error is not None]
        rows.append(
            PingRow(
                queue.broker_name, queue.queue_id, len(mine), len(errors),
                min(times, default=None), max(times, default=None), errors[-1] if errors else None,
            )
        )  # fmt: skip
    failed = sum(row.failed for row in rows)
    problem = f"{failed} of {plural(count, 'send')} failed" if failed else ""
    return Result(rows, problem=problem)


_SEND = ('send regions "Canillo" --tag update --key AD-02', "send regions --lines < changes.txt")
_CONSUME = ("consume regions -g readers --count 10 --timeout 5",)

message.command("send", *(f"message {each}" for each in _SEND), does="sent")(send)
message.command("consume", *(f"message {each}" for each in _CONSUME))(consume)
message.command(
    "browse",
    "message browse orders --from @-1h --count 20",
    "message browse orders -f '%k %v\\n'",
    "message browse orders --from 2026-01-31T08:00 --to 2026-01-31T09:00 -o ndjson > orders.ndjson",
    old=("export",),
)(browse)
message.command("tail", "message tail orders", "message tail orders --from @-10m --grep refused")(
    tail
)
message.command(
    "show",
    "message show orders 7F0000010000ABCD0000000000001234",
    "message show orders --key A-17",
    "message show orders --queue 3 --offset 1700",
)(show)

send_noun = Noun("send", "Send messages.")
send_noun.command("", *_SEND, does="sent")(send)
consume_noun = Noun("consume", "Consume messages.")
consume_noun.command("", *_CONSUME)(consume)
