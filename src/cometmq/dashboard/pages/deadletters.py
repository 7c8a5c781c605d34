"""Pages of dead letters: groups that have some, the letters, sending again, and export."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, StreamingResponse
from starlette.routing import Route

from cometmq.admin.deadletters import Destination, dead_letter
from cometmq.admin.messages import EARLIEST, at_time
from cometmq.dashboard import shown
from cometmq.dashboard.rendering import (
    PAGE_ROWS,
    InputRefused,
    cluster_of,
    field,
    link,
    moment_ms,
    render,
    viewer_of,
    whole,
)
from cometmq.dashboard.sharing import NAMES_MS
from cometmq.dashboard.watched import reasons
from cometmq.message.model import MessageQueue
from cometmq.message.names import DLQ_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.admin.deadletters import DeadGroup, DeadLetter
    from cometmq.dashboard.watched import WatchedCluster


async def show_all(request: Request) -> Response:
    """Show the groups that have dead letters."""
    cluster = cluster_of(request)
    found, unread = await cluster.calls.get(
        "dead groups", lambda: _groups(cluster), fresh_ms=NAMES_MS
    )
    rows = sorted((each for each in found if each.letters), key=lambda each: -each.newest_ms)
    return render(request, "dead.html", title="Dead letters", rows=rows, unread=unread)


async def _groups(cluster: WatchedCluster) -> tuple[list[DeadGroup], dict[str, str]]:
    """Return the groups, and by broker the reason why its dead letters are unknown."""
    unread = cluster.silent()
    return await cluster.dead_letters.groups(unread=unread), reasons(unread)


async def show(request: Request) -> Response:
    """Show one page of a group's dead letters (GET), or send the chosen ones again (POST)."""
    cluster, group = cluster_of(request), request.path_params["group"]
    kept = viewer_of(request).outcomes
    since, seen = field(request, "since"), whole(field(request, "seen"), 0)
    if request.method == "POST":
        words = request.state.form.get("letter", [])
        if not words:
            raise InputRefused("choose letters")
        destination = Destination("retry" if field(request, "destination") == "retry" else "origin")
        sent = []
        for word in words[:PAGE_ROWS]:
            letter = await _letter(cluster, group, word)
            sent.append(await cluster.dead_letters.resend(letter, destination))
        again = link("/dead/{}", group, since=since, seen=seen, done=kept.keep(sent))
        return RedirectResponse(again, 303)
    outcomes = kept.take(field(request, "done"), list)
    letters, later = await _page(cluster, group, moment_ms(since) if since else None, seen)
    return render(
        request, "dead_group.html", title=f"Dead letters of {group}", group=group, letters=letters,
        later=later, outcomes=outcomes, text=_short, since=since, seen=seen,
    )  # fmt: skip


async def _page(
    cluster: WatchedCluster, group: str, since_ms: int | None, seen: int
) -> tuple[list[DeadLetter], dict[str, int]]:
    """Return one page of letters from a time on, and the query of the next page; {} if it is last.

    More letters than a page has may share a millisecond, so a time alone does not name a position:
    the first ``seen`` letters of ``since_ms`` are skipped.
    """
    letters: list[DeadLetter] = []
    passed_ms, passed = since_ms, 0
    start = EARLIEST if since_ms is None else at_time(since_ms)
    async for letter in cluster.dead_letters.browse(group, start):
        if len(letters) >= PAGE_ROWS:
            return letters, {"since": passed_ms or 0, "seen": passed}
        passed = passed + 1 if letter.died_ms == passed_ms else 1
        passed_ms = letter.died_ms
        if letter.died_ms != since_ms or passed > seen:
            letters.append(letter)
    return letters, {}


def _short(letter: DeadLetter) -> str:
    """Return the beginning of the body in one line: text, or hex if it is not UTF-8."""
    text = shown.body_text(letter.message.body[:400])
    return letter.message.body[:60].hex(" ") if text is None else " ".join(text[:160].split())


async def _letter(cluster: WatchedCluster, group: str, word: str) -> DeadLetter:
    """Return the letter at a place ``broker/queue/offset``."""
    broker, _, rest = word.rpartition("/")[0].rpartition("/")
    queue = MessageQueue(DLQ_PREFIX + group, broker, whole(rest, 0))
    offset = whole(word.rpartition("/")[2], 0)
    return dead_letter(group, await cluster.messages.by_place(queue, offset))


async def export(request: Request) -> Response:
    """Return all letters of a group as a file with one JSON object per line.

    Letters are sent as they are read, at the pace of the browser. If reading fails later, the
    connection closes before the last chunk, and the browser reports an incomplete file.
    """
    cluster, group = cluster_of(request), request.path_params["group"]

    letters = cluster.dead_letters.browse(group)
    # Read one letter first: an error of the group is then shown as a page. Once the response has
    # begun, an error can only cut it off.
    first = await anext(letters, None)

    async def lines() -> AsyncIterator[str]:
        if first is not None:
            yield _line(first)
        async for letter in letters:
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
