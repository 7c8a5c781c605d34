"""Pages of stored messages: search by key, id or time, one message with its trace, resend."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cometmq.admin.messages import (
    EARLIEST,
    LATEST,
    PULL_MESSAGES_MAX,
    Selection,
    Stored,
    at_time,
)
from cometmq.core.errors import CometError, NotFound
from cometmq.dashboard import shown
from cometmq.dashboard.bodies import forms_of
from cometmq.dashboard.pages.topics import kind_of, topic_settings
from cometmq.dashboard.rendering import (
    PAGE_ROWS,
    InputRefused,
    cluster_of,
    field,
    link,
    moment_ms,
    options_of,
    render,
    viewer_of,
    whole,
)
from cometmq.message.model import MessageQueue

if TYPE_CHECKING:
    from starlette.requests import Request

    from cometmq.admin.traces import MessageLife
    from cometmq.dashboard.watched import WatchedCluster
    from cometmq.message.model import StoredMessage

#: Most queues whose offsets fit into the URL of the next page.
_PLACES_MAX: Final = 500
#: Most queues from which the newest messages are read.
_QUEUES_MAX: Final = 64
#: Longest time for one search, and for the trace of a message.
_SEARCH_S: Final = 8
_TRACE_S: Final = 3


async def search(request: Request) -> Response:
    """Show the search form and the messages found."""
    cluster = cluster_of(request)
    topic, by, value = field(request, "topic"), field(request, "by"), field(request, "value")
    filter_text = field(request, "filter")
    found: list[StoredMessage] | None = None
    problem = later = ""
    if topic or (by == "id" and value):
        try:
            async with asyncio.timeout(_SEARCH_S):
                if by == "time":
                    after = _offsets(topic, field(request, "after"))
                    found, later = await _from_time(cluster, topic, value, filter_text, after)
                else:
                    found = await _found(cluster, topic, by, value, filter_text)
        except NotFound:
            found = []
        except TimeoutError:
            problem = f"The search took longer than {_SEARCH_S} s: choose a later time, or a key."
        except (CometError, ValueError) as error:
            problem = str(error)
    known = (await topic_settings(cluster)).known
    topics = [name for name in known if kind_of(cluster, name) == "own"]
    return render(
        request, "messages.html", title="Messages", topics=sorted(topics)[:1_000], topic=topic,
        by=by or "latest", value=value, filter_text=filter_text, found=found, problem=problem,
        later=later, text=_short,
    )  # fmt: skip


async def _found(
    cluster: WatchedCluster, topic: str, by: str, value: str, filter_text: str
) -> list[StoredMessage]:
    """Return the messages of a search by id or key, otherwise the newest ones of the topic."""
    messages = cluster.messages
    if by == "id":
        if not value:
            raise InputRefused("enter a message id")
        return [await messages.by_id(value, topic)]
    if by == "key":
        if not value:
            raise InputRefused("enter a key")
        found = await cluster.admin.messages_by_key(topic, value)
        return sorted(found, key=lambda message: -message.store_ms)
    return await _latest(cluster, topic, Selection(filter=filter_text or "*"))


async def _from_time(
    cluster: WatchedCluster,
    topic: str,
    value: str,
    filter_text: str,
    after: dict[MessageQueue, int],
) -> tuple[list[StoredMessage], str]:
    """Return one page of messages from a time on, and where the next one begins; "" if it is last.

    The next page begins at offsets, ``broker.queue.offset`` joined by ``~``, not at a time: more
    messages than a page has may share a millisecond.
    """
    start = at_time(moment_ms(value)) if value else EARLIEST
    selection = Selection(filter=filter_text or "*")
    rows: list[StoredMessage] = []
    after = dict(after)
    async for message in cluster.messages.browse(topic, start, LATEST, selection, begins=after):
        if len(rows) >= PAGE_ROWS:
            if len(after) > _PLACES_MAX:
                raise InputRefused(f"more than {_PLACES_MAX} queues: begin at a later time")
            places = (f"{each.broker_name}.{each.queue_id}.{after[each]}" for each in after)
            return rows, "~".join(places)
        rows.append(message)
        queue = MessageQueue(topic, message.broker_name, message.queue_id)
        after[queue] = message.queue_offset + 1
    return rows, ""


def _offsets(topic: str, text: str) -> dict[MessageQueue, int]:
    """Parse the offsets at which a page begins, see :func:`_from_time`. Raises InputRefused."""
    found: dict[MessageQueue, int] = {}
    for word in text.split("~") if text else ():
        place, _, offset = word.rpartition(".")
        broker, _, queue_id = place.rpartition(".")
        if not broker or whole(offset, -1) < 0 or whole(queue_id, -1) < 0:
            raise InputRefused(f"{word!r} is not a place: search again")
        found[MessageQueue(topic, broker, int(queue_id))] = int(offset)
    return found


async def _latest(cluster: WatchedCluster, topic: str, selection: Selection) -> list[StoredMessage]:
    """Return the newest messages of a topic, newest first."""
    messages = cluster.messages
    queues = (await messages.queues(topic))[:_QUEUES_MAX]
    ends = await messages.offsets(queues, LATEST)
    count = min(PULL_MESSAGES_MAX, max(4, PAGE_ROWS // len(queues)))
    pulls = (
        messages.pull(queue, max(0, ends[queue] - count), count, selection, 0)
        for queue in queues
        if ends[queue]
    )
    found = [message for _, part in await asyncio.gather(*pulls) for message in part]
    return sorted(found, key=lambda message: -message.store_ms)[:PAGE_ROWS]


def _short(message: StoredMessage) -> str:
    """Return the beginning of the body in one line: text, or hex if it is not UTF-8."""
    text = shown.body_text(message.body[:400])
    return message.body[:60].hex(" ") if text is None else " ".join(text[:160].split())


async def of_place(request: Request) -> StoredMessage:
    """Return the message that a request names by queue and offset, or by id. Raises NotFound."""
    cluster = cluster_of(request)
    topic, broker = field(request, "topic"), field(request, "broker")
    offset, queue_id = field(request, "offset"), whole(field(request, "queue"), 0)
    if broker and offset:
        queue = MessageQueue(topic, broker, queue_id)
        return await cluster.messages.by_place(queue, whole(offset, 0))
    return await cluster.messages.by_id(field(request, "id"), topic)


async def show(request: Request) -> Response:
    """Show one message: properties, body in the chosen format, and trace."""
    cluster = cluster_of(request)
    message = await of_place(request)
    life: MessageLife | None = None
    with suppress(CometError, TimeoutError):
        async with asyncio.timeout(_TRACE_S):
            life = await cluster.traces.life(message.message_id, message.topic)
    schemas = options_of(request).schemas
    told = None
    if schemas is not None:
        told = schemas.told(message.topic, message.properties, message.body)
    forms = forms_of(message.body)
    if told:
        forms = {told.form: told.text} | {
            name: text for name, text in forms.items() if name != told.form or told.text is None
        }
    form = field(request, "form")
    if forms.get(form) is None:
        form = next(name for name, text in forms.items() if text is not None)
    is_cut = len(message.body) > (shown.HEX_BYTES_MAX if form == "hex" else shown.TEXT_BYTES_MAX)
    return render(
        request, "message.html", title=message.message_id, message=message, life=life, forms=forms,
        form=form, is_cut=is_cut, place=place_of(message), told=told,
    )  # fmt: skip


def place_of(message: StoredMessage) -> dict[str, object]:
    """Return the query parameters that name a message, as :func:`of_place` reads them."""
    if not message.broker_name:
        return {"topic": message.topic, "id": message.offset_id}
    return {
        "topic": message.topic, "broker": message.broker_name,
        "queue": message.queue_id, "offset": message.queue_offset,
    }  # fmt: skip


async def download(request: Request) -> Response:
    """Return the body of a message as a file."""
    message = await of_place(request)
    headers = {"content-disposition": f'attachment; filename="{message.offset_id}.bin"'}
    return Response(message.body, media_type="application/octet-stream", headers=headers)


async def resend(request: Request) -> Response:
    """Ask for confirmation (GET), or store a copy of a message (POST)."""
    cluster = cluster_of(request)
    message = await of_place(request)
    target = field(request, "target") or message.topic
    outcomes = viewer_of(request).outcomes
    if request.method == "POST":
        done = outcomes.keep(await cluster.messages.copy(message, target))
        return RedirectResponse(link("/messages/resend", **place_of(message), done=done), 303)
    stored = outcomes.take(field(request, "done"), Stored)
    return render(
        request, "message_resend.html", title="Send again", message=message, target=target,
        stored=stored, place=place_of(message),
    )  # fmt: skip


ROUTES = [
    Route("/messages", search),
    Route("/messages/view", show),
    Route("/messages/body", download),
    Route("/messages/resend", resend, methods=["GET", "POST"]),
]
