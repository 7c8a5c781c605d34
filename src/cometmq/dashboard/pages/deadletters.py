"""Dead letters: which groups have some, the letters, sending them again, and a file of them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse
from starlette.routing import Route

from cometmq.admin.deadletters import Destination, dead_letter
from cometmq.admin.messages import EARLIEST, at_time
from cometmq.dashboard import shown
from cometmq.dashboard.rendering import (
    PAGE_ROWS,
    InputRefused,
    cluster_of,
    field,
    moment_ms,
    render,
    whole,
)
from cometmq.dashboard.sharing import NAMES_MS
from cometmq.message.model import MessageQueue
from cometmq.message.names import DLQ_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.admin.deadletters import DeadLetter
    from cometmq.dashboard.watched import WatchedCluster


async def show_all(request: Request) -> Response:
    """Show the groups that have dead letters."""
    cluster = cluster_of(request)
    found = await cluster.calls.get("dead groups", cluster.dead_letters.groups, fresh_ms=NAMES_MS)
    rows = sorted((each for each in found if each.letters), key=lambda each: -each.newest_ms)
    return render(request, "dead.html", title="Dead letters", rows=rows)


async def show(request: Request) -> Response:
    """Show letters of a group, or send the chosen ones again."""
    cluster, group = cluster_of(request), request.path_params["group"]
    outcomes = []
    if request.method == "POST":
        words = request.state.form.get("letter", [])
        if not words:
            raise InputRefused("choose letters")
        destination = Destination("retry" if field(request, "destination") == "retry" else "origin")
        for word in words[:PAGE_ROWS]:
            letter = await _letter(cluster, group, word)
            outcomes.append(await cluster.dead_letters.resend(letter, destination))
    since = field(request, "since")
    start = at_time(moment_ms(since)) if since else EARLIEST
    letters: list[DeadLetter] = []
    later = ""
    async for letter in cluster.dead_letters.browse(group, start):
        if len(letters) >= PAGE_ROWS:
            later = str(letter.died_ms)
            break
        letters.append(letter)
    return render(
        request, "dead_group.html", title=f"Dead letters of {group}", group=group, letters=letters,
        later=later, outcomes=outcomes, text=_short, since=since,
    )  # fmt: skip


def _short(letter: DeadLetter) -> str:
    text = shown.body_text(letter.message.body[:400])
    return letter.message.body[:60].hex(" ") if text is None else " ".join(text[:160].split())


async def _letter(cluster: WatchedCluster, group: str, word: str) -> DeadLetter:
    """Return the letter at a place ``broker/queue/offset``."""
    broker, _, rest = word.rpartition("/")[0].rpartition("/")
    queue = MessageQueue(DLQ_PREFIX + group, broker, whole(rest, 0))
    offset = whole(word.rpartition("/")[2], 0)
    return dead_letter(group, await cluster.messages.by_place(queue, offset))


async def export(request: Request) -> Response:
    """Return all letters of a group as a file with a JSON object a line.

    Letters go out as they are read, at the pace of the browser. A file whose connection closes
    before the last chunk is one that the browser reports as incomplete.
    """
    cluster, group = cluster_of(request), request.path_params["group"]

    async def lines() -> AsyncIterator[str]:
        async for letter in cluster.dead_letters.browse(group):
            yield _line(letter)

    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in group)
    headers = {"content-disposition": f'attachment; filename="dead-letters-{name}.ndjson"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


def _line(letter: DeadLetter) -> str:
    message = letter.message
    text = shown.body_text(message.body) if len(message.body) <= shown.TEXT_BYTES_MAX else None
    body = {"body": text}
    if text is None:
        body = {"base64": base64.b64encode(message.body).decode()}
    found = {
        "group": letter.group, "origin": letter.origin, "message_id": letter.origin_message_id,
        "retries": letter.retries, "died_ms": letter.died_ms, "broker": message.broker_name,
        "queue": message.queue_id, "offset": message.queue_offset,
        "properties": message.properties, **body,
    }  # fmt: skip
    return json.dumps(found, ensure_ascii=False) + "\n"


ROUTES = [
    Route("/dead", show_all),
    Route("/dead/{group}", show, methods=["GET", "POST"]),
    Route("/dead/{group}/export", export),
]
