"""Pages of consumer groups: lag over time, members and their queues, settings, reset, deletion."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse
from starlette.routing import Route

from cometmq.admin.api import held
from cometmq.admin.groups import GroupInUse, blocked_queues, differing_subscriptions
from cometmq.admin.messages import EARLIEST, LATEST, Position, at_time
from cometmq.core.errors import ClientError, CometError
from cometmq.dashboard import shown
from cometmq.dashboard.drawing import DURATIONS, Line, chart
from cometmq.dashboard.rendering import (
    InputRefused,
    cluster_of,
    field,
    link,
    moment_ms,
    part_of,
    render,
    viewer_of,
)
from cometmq.dashboard.sharing import NAMES_MS
from cometmq.dashboard.watched import GroupLag, ToldSettings
from cometmq.message.names import RETRY_PREFIX, SYSTEM_GROUP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.admin.groups import MemberStatus, OffsetPlan, Progress
    from cometmq.dashboard.watched import WatchedCluster
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.bodies import ConsumerConnections, SubscriptionGroupConfig

#: Longest time for which a page waits for the states of members. A broker asks each member, and a
#: silent member costs it its whole timeout.
_STATES_WAIT_S: Final = 1.5
_LAG_SPAN_MS: Final = 3_600_000


async def _configs(cluster: WatchedCluster) -> ToldSettings[SubscriptionGroupConfig]:
    """Return the settings of all groups; none if they cannot be read."""
    with suppress(ClientError):
        return await cluster.calls.get(
            "group configs",
            lambda: cluster.settings(cluster.admin.group_configs),
            fresh_ms=NAMES_MS,
        )
    # The list still shows the groups whose progress is known.
    return ToldSettings({}, {})


async def _members(cluster: WatchedCluster, group: str) -> ConsumerConnections | None:
    """Return the connected members; None if there are none or they cannot be read."""
    with suppress(ClientError):
        return await cluster.calls.get(
            ("members", group), lambda: cluster.admin.consumer_connections(group), fresh_ms=NAMES_MS
        )
    return None


async def _states(cluster: WatchedCluster, group: str) -> list[MemberStatus] | None:
    """Return the state that each member reports; None if that fails or takes too long."""
    with suppress(ClientError, TimeoutError):
        async with asyncio.timeout(_STATES_WAIT_S):
            return await cluster.calls.get(
                ("states", group), lambda: cluster.groups.status(group), fresh_ms=NAMES_MS
            )
    return None


async def _progress(cluster: WatchedCluster, group: str) -> Progress:
    return await cluster.calls.get(("progress", group), lambda: cluster.groups.progress(group))


async def show_all(request: Request) -> Response:
    """Show one page of the list of groups, ordered by lag or by name."""
    cluster = cluster_of(request)
    configs, lags = await asyncio.gather(_configs(cluster), cluster.known_lags())
    wanted, order = field(request, "q").lower(), field(request, "order") or "lag"
    found = [
        lags.get(name) or GroupLag(name)
        for name in sorted({*configs.known, *lags})
        if wanted in name.lower() and not name.startswith(SYSTEM_GROUP_PREFIX)
    ]
    if order == "lag":
        found.sort(key=lambda each: -each.lag)
    part = part_of(found, request)
    members = await asyncio.gather(*(_members(cluster, each.group) for each in part.rows))
    rows = [
        (each, one, cluster.history.series(("lag", each.group)))
        for each, one in zip(part.rows, members, strict=True)
    ]
    return render(
        request, "groups.html", title="Groups", rows=rows, part=part, order=order,
        unread=configs.unread,
    )  # fmt: skip


async def show(request: Request) -> Response:
    """Show the lag of a group, in total and by queue."""
    cluster, group = cluster_of(request), request.path_params["group"]
    cluster.follow(group)
    progress, states = await asyncio.gather(_progress(cluster, group), _states(cluster, group))
    lags = await cluster.known_lags()
    history, now_ms = cluster.history, cluster.clock.wall_ms()
    holders = _holders(states or ())
    # Include queues that a member holds but of which the group has not committed an offset yet.
    rows = [
        (queue, progress.queues.get(queue), holders.get(queue, ()),
         history.series(("lag", group, queue)))
        for queue in sorted({*progress.queues, *holders})
    ]  # fmt: skip
    return render(
        request, "group.html", title=group, group=group, rows=rows, progress=progress,
        state=lags.get(group), members=None if states is None else len(states),
        lag=chart([Line("waiting", history.series(("lag", group)), 3)], now_ms,
                  span_ms=_LAG_SPAN_MS, form=shown.count),
        behind=chart([Line("behind", history.series(("behind", group)), 3)], now_ms,
                     span_ms=_LAG_SPAN_MS, form=_seconds, steps=DURATIONS),
        differing=differing_subscriptions(states or ()),
    )  # fmt: skip


def _seconds(value: float | None) -> str:
    return shown.NONE if value is None else shown.duration(value * 1000)


def _holders(states: Iterable[MemberStatus]) -> dict[MessageQueue, list[str]]:
    """Return the client ids of the members that hold each queue."""
    found: dict[MessageQueue, list[str]] = {}
    for state in states:
        for queue in held(state.info) if state.info is not None else ():
            found.setdefault(queue, []).append(state.connection.client_id)
    return found


async def show_members(request: Request) -> Response:
    """Show the members of a group, with their subscriptions and queues."""
    cluster, group = cluster_of(request), request.path_params["group"]
    connected, states = await asyncio.gather(_members(cluster, group), _states(cluster, group))
    rows = [
        (state, held(state.info), blocked_queues(state.info)) if state.info else (state, {}, [])
        for state in states or ()
    ]
    return render(
        request, "group_members.html", title=group, group=group, connected=connected, rows=rows,
        is_slow=states is None, differing=differing_subscriptions(states or ()),
    )  # fmt: skip


async def show_settings(request: Request) -> Response:
    """Show the settings of a group on each broker."""
    cluster, group = cluster_of(request), request.path_params["group"]
    configs = await _configs(cluster)
    return render(
        request, "group_settings.html", title=group, group=group, known=configs.of(group),
        unread=configs.unread,
    )  # fmt: skip


# ------------------------------------------------------------------------------- changes


async def reset(request: Request) -> Response:
    """Show the form of a reset, its preview once a topic is chosen, or carry it out (POST)."""
    cluster, group = cluster_of(request), request.path_params["group"]
    topic, to = field(request, "topic"), field(request, "to") or "time"
    known = (await _progress(cluster, group)).queues
    topics = sorted({each.topic for each in known if not each.topic.startswith(RETRY_PREFIX)})
    if topic and topic not in topics:
        topics.append(topic)
    plan: OffsetPlan | None = None
    at_text = field(request, "at")
    if topic:
        position = _position(to, at_text)
        never_skip = field(request, "never_skip") == "on"
        plan = await cluster.groups.plan_reset(group, topic, position, never_skip=never_skip)
        if request.method == "POST":
            if field(request, "confirmed") != group:
                raise InputRefused("the name of the group was not repeated: nothing was changed")
            try:
                done = viewer_of(request).outcomes.keep(await cluster.groups.apply(plan))
            except GroupInUse as error:
                raise InputRefused(str(error)) from None
            cluster.calls.forget()
            return RedirectResponse(link("/groups/{}/reset", group, done=done), 303)
    elif request.method == "POST":
        raise InputRefused("choose a topic")
    return render(
        request, "group_reset.html", title=group, group=group, topics=topics, topic=topic, to=to,
        at_text=at_text, never_skip=field(request, "never_skip") == "on", plan=plan,
        offsets=viewer_of(request).outcomes.take(field(request, "done"), dict),
        skipped=sum(each.skipped for each in plan.changes) if plan else 0,
        repeated=sum(each.repeated for each in plan.changes) if plan else 0,
    )  # fmt: skip


def _position(to: str, at_text: str) -> Position:
    if to in ("first", "last"):
        return EARLIEST if to == "first" else LATEST
    return at_time(moment_ms(at_text))


async def delete(request: Request) -> Response:
    """Ask for confirmation (GET), or delete a group (POST)."""
    cluster, group = cluster_of(request), request.path_params["group"]
    if request.method == "POST":
        if field(request, "confirmed") != group:
            raise InputRefused("the name was not repeated: nothing was deleted")
        try:
            await cluster.groups.delete(group, topics=field(request, "topics") == "on")
        except GroupInUse as error:
            raise InputRefused(str(error)) from None
        cluster.calls.forget()
        cluster.lags.pop(group, None)
        return RedirectResponse("/groups", 303)
    try:
        progress: Progress | None = await _progress(cluster, group)
    except CometError:
        progress = None
    return render(
        request, "group_delete.html", title=f"Delete {group}", group=group, progress=progress,
        connected=await _members(cluster, group),
    )  # fmt: skip


ROUTES = [
    Route("/groups", show_all),
    Route("/groups/{group}", show),
    Route("/groups/{group}/members", show_members),
    Route("/groups/{group}/settings", show_settings),
    Route("/groups/{group}/reset", reset, methods=["GET", "POST"]),
    Route("/groups/{group}/delete", delete, methods=["GET", "POST"]),
]
