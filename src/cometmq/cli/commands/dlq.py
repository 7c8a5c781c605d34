"""``cometmq dlq``, ``transaction`` and ``trace``: what became of messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from cometmq.cli.command import DryRun, Noun, Yes, confirm
from cometmq.cli.commands.broker import missing
from cometmq.cli.commands.message import MessageRow, message_row
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument, Option, position_of
from cometmq.cli.render import Address, Result, body_text, cell, time_text, when
from cometmq.core.errors import CometError
from cometmq.core.plural import plural

if TYPE_CHECKING:
    from cometmq.admin.api import Unread
    from cometmq.admin.deadletters import DeadLetter
    from cometmq.admin.messages import HalfMessage
    from cometmq.admin.traces import MessageLife

dlq = Noun("dlq", "Dead letters: messages that a consumer group gave up.")
transaction = Noun("transaction", "Half messages of transactions.")
trace = Noun("trace", "The life of a message: sent, stored, consumed.")

Group = Annotated[str, Argument("GROUP")]
_POSITION = "first, last, an offset, a time, or @-1h."
Start = Annotated[str, Option("--from", metavar="POSITION", help=_POSITION)]
End = Annotated[str, Option("--to", metavar="POSITION", help=f"End before: {_POSITION}")]
Count = Annotated[int, Option("--count", "-c", min=0, help="Stop after this number; 0: all.")]


@dataclass(frozen=True, slots=True)
class DeadGroupRow:
    """A group that has dead letters. Old brokers create their topic as not readable."""

    group: str
    letters: int
    newest_at: datetime | None
    readable: bool


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One dead letter: the topic it was first sent to, and how often it was delivered."""

    group: str
    origin: str | None
    died_at: datetime | None
    retries: int
    message: MessageRow

    def line(self) -> str:
        """Return the line of a letter among others."""
        row = self.message
        died = time_text(self.died_at) if self.died_at else "-"
        body = row.body if row.encoding == "base64" else body_text(row.body.encode(), 80)
        return (
            f"{died} broker={cell(row.broker)} queue={row.queue} offset={row.offset} "
            f"origin={cell(self.origin)} retries={self.retries} keys={cell(row.keys)} "
            f"id={cell(row.id)} {cell(body)}"
        )


@dataclass(frozen=True, slots=True)
class ResentRow:
    """Result of sending one dead letter again."""

    outcome: str
    group: str
    broker: str
    queue: int
    offset: int
    topic: str | None
    id: str
    problem: str | None


@dlq.command("list", "dlq list")
async def list_(cluster: Connected) -> Result[DeadGroupRow]:
    """List the groups that have dead letters."""
    unread: list[Unread] = []
    rows = [
        DeadGroupRow(each.group, each.letters, when(each.newest_ms), each.is_readable)
        for each in await cluster.dead_letters.groups(unread=unread)
    ]
    return Result(rows, problem=missing(unread))


def _row(each: DeadLetter) -> DeadLetterRow:
    row = message_row(each.message)
    return DeadLetterRow(each.group, each.origin or None, when(each.died_ms), each.retries, row)


@dlq.command("show", "dlq show billing", "dlq show billing --from @-1d -o ndjson")
async def show(
    cluster: Connected, group: Group, start: Start = "first", end: End = "last", count: Count = 0
) -> AsyncIterator[DeadLetterRow]:
    """Print the dead letters of a group, the oldest first."""
    async for each in _letters(cluster, group, start, end, count):
        yield _row(each)


async def _letters(
    cluster: Connected, group: str, start: str, end: str, count: int
) -> AsyncIterator[DeadLetter]:
    now_ms = cluster.session.clock.wall_ms()
    begin, until = (position_of(text, now_ms, offsets=True) for text in (start, end))
    taken = 0
    async for each in cluster.dead_letters.browse(group, begin, until):
        yield each
        taken += 1
        if taken == count:
            return


@dlq.command(
    "resend",
    "dlq resend billing --dry-run",
    "dlq resend billing --id 7F0000010000ABCD0000000000001234",
    "dlq resend billing --to-retry --yes",
)
async def resend(
    cluster: Connected,
    group: Group,
    start: Start = "first",
    end: End = "last",
    count: Count = 0,
    id: Annotated[list[str] | None, Option("--id", help="Only the letter with this id.")] = None,
    to_retry: Annotated[
        bool, Option(help="To the retry topic of the group, which alone gets it again.")
    ] = False,
    again: Annotated[bool, Option(help="Also letters that were sent again before.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> AsyncIterator[ResentRow]:
    """Send dead letters again: to their original topic, where all groups get them, or to the group.

    A letter that was sent again before is left out, so a command that was interrupted can be
    repeated. The letters stay in the dead-letter queue.
    """
    from cometmq.admin.deadletters import Destination

    destination = Destination.RETRY if to_retry else Destination.ORIGIN
    if not dry_run:
        where = "that group" if to_retry else "their original topics, to all their groups"
        which = plural(len(id), "dead letter") if id else "the dead letters"
        confirm(f"Send {which} of group {group} again to {where}?", yes)
    failed, missing = 0, set(id or ())
    async for letter in _letters(cluster, group, start, end, count):
        ids = {letter.message.message_id, letter.message.offset_id}
        if id and not ids & set(id):
            continue
        missing -= ids
        found = await cluster.dead_letters.resend(letter, destination, dry_run=dry_run, again=again)
        failed += found.outcome.value in ("failed", "no-origin")
        message = letter.message
        yield ResentRow(
            found.outcome.value, group, message.broker_name, message.queue_id,
            message.queue_offset, found.topic or None, found.message_id, found.problem or None,
        )  # fmt: skip
    if missing:
        raise CometError(f"group {group!r} has no dead letter {', '.join(sorted(missing))}")
    if failed:
        letters = plural(failed, "dead letter was", "dead letters were")
        raise CometError(f"{letters} not sent: see above why")


# ------------------------------------------------------------------------------- transactions


@dataclass(frozen=True, slots=True)
class HalfRow:
    """A half message: the topic it waits for, and how often its producer was asked."""

    topic: str
    queue: int
    producer_group: str
    transaction_id: str
    checks: int
    stored_at: datetime | None
    id: str
    keys: list[str]
    size_bytes: int

    WIDE: ClassVar[tuple[str, ...]] = ("queue", "size_bytes")


@transaction.command("list", "transaction list", "transaction list --given-up -o json")
async def half_messages(
    cluster: Connected,
    everything: Annotated[
        bool, Option("--all", "-a", help="All stored half messages, ended ones included.")
    ] = False,
    given_up: Annotated[
        bool, Option(help="Those that were given up, because no producer answered the checks.")
    ] = False,
    start: Start = "first",
    count: Count = 0,
) -> list[HalfRow]:
    """List the half messages of transactions that have not ended."""
    begin = position_of(start, cluster.session.clock.wall_ms(), offsets=True)
    rows: list[HalfRow] = []
    if not (everything or given_up):
        found = await cluster.messages.open_transactions()
        return [_half_row(each) for each in (found[:count] if count else found)]
    async for each in cluster.messages.half_messages(start=begin, given_up=given_up):
        rows.append(_half_row(each))
        if len(rows) == count:
            break
    return rows


@transaction.command(
    "resume", "transaction resume 7F0000010000ABCD0000000000001234", does="resumed"
)
async def resume(
    cluster: Connected,
    ids: Annotated[list[str], Argument("ID", "Ids of half messages, as transaction list shows.")],
) -> list[HalfRow]:
    """Have brokers check transactions again that were given up, from the first check on."""
    wanted = set(ids)
    found = {
        each.message.message_id: each
        async for each in cluster.messages.half_messages(given_up=True)
        if each.message.message_id in wanted
    }
    missing = wanted - found.keys()
    if missing:
        raise CometError(
            f"no transaction that was given up has id {', '.join(sorted(missing))}: "
            "see cometmq transaction list --given-up"
        )
    for each in found.values():
        await cluster.messages.resume_check(each)
    return [_half_row(each) for each in found.values()]


def _half_row(each: HalfMessage) -> HalfRow:
    message = each.message
    return HalfRow(
        each.topic, each.queue_id, each.producer_group, each.transaction_id, each.checks,
        when(message.store_ms), message.message_id, list(message.keys), message.size_bytes,
    )  # fmt: skip


# ------------------------------------------------------------------------------- traces


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event in the life of a message."""

    at: datetime | None
    kind: Literal["sent", "stored", "consumed", "transaction"]
    group: str | None
    client: Address | None
    result: str
    cost_ms: int | None
    retries: int


@dataclass(frozen=True, slots=True)
class TrackRow:
    """State of a message in a group, by the group's offsets."""

    group: str
    status: str
    online: bool
    offset: int | None


@dataclass(frozen=True, slots=True)
class LifeRow:
    """The life of a message."""

    id: str
    message: MessageRow | None
    events: list[EventRow]
    groups: list[TrackRow]


@trace.command(
    "show", "trace show 7F0000010000ABCD0000000000001234 --topic orders", old=("message",)
)
async def life(
    cluster: Connected,
    id: Annotated[str, Argument("ID", "Message id or offset id.")],
    topic: Annotated[str, Option("--topic", "-t", help="Its topic, unless it was traced.")] = "",
    trace_topic: Annotated[str, Option(help="Topic of the traces.")] = "",
) -> Result[LifeRow]:
    """Draw the life of a message: sent, stored, consumed, and who still has to get it."""
    from cometmq.admin.traces import Traces

    traces = Traces(cluster.admin, trace_topic) if trace_topic else Traces(cluster.admin)
    found = await traces.life(id, topic)
    row = _life_row(found)
    return Result([row], shown="\n".join(_drawn(row)))


def _life_row(found: MessageLife) -> LifeRow:
    events = [
        EventRow(
            when(each.at_ms), each.kind.value, each.group or None, Address.parse(each.client),
            each.result, each.cost_ms if each.cost_ms >= 0 else None, each.retries,
        )
        for each in found.events
    ]  # fmt: skip
    groups = [
        TrackRow(each.group, each.status.value, each.is_online, each.offset)
        for each in found.groups
    ]
    message = message_row(found.message) if found.message else None
    return LifeRow(found.message_id, message, events, groups)


def _drawn(row: LifeRow) -> list[str]:
    """Return the lines of the drawing: events from top to bottom, then the groups."""
    message = row.message
    lines = [f"message {row.id}"]
    if message is None:
        lines.append("  no broker has it any more")
    else:
        lines.append(
            f"  topic={message.topic} broker={message.broker} queue={message.queue} "
            f"offset={message.offset} keys={cell(message.keys)} "
            f"size_bytes={message.size_bytes}"
        )
    first = next((each.at for each in row.events if each.at), None)
    for each in row.events:
        at = time_text(each.at) if each.at else "-".ljust(24)
        after = f"+{(each.at - first).total_seconds():.3f} s" if each.at and first else ""
        by = " ".join(
            f"{name}={cell(value)}"
            for name, value in (("group", each.group), ("client", each.client))
            if value is not None
        )
        more = f" cost_ms={each.cost_ms}" if each.cost_ms is not None else ""
        more += f" retries={each.retries}" if each.retries else ""
        lines.append(f"  {at} {after:>11}  {each.kind:<11} {each.result:<11} {by}{more}".rstrip())
    for track in row.groups:
        offset = "" if track.offset is None else f" offset={track.offset}"
        online = "online" if track.online else "offline"
        lines.append(f"  group {track.group}: {track.status} ({online}){offset}")
    return lines
