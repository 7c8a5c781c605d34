"""Pages of topics: the list, one topic with queues and groups, creation, change, deletion."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse
from starlette.routing import Route

from cometmq.core.errors import ClientError, CometError, RouteNotFound
from cometmq.dashboard import shown
from cometmq.dashboard.drawing import Line, chart
from cometmq.dashboard.rendering import (
    InputRefused,
    cluster_of,
    field,
    link,
    part_of,
    render,
    whole,
)
from cometmq.dashboard.sharing import NAMES_MS
from cometmq.dashboard.watched import reasons
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, is_legal_name, is_system_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.admin.api import Broker
    from cometmq.admin.servers import TopicTraffic
    from cometmq.dashboard.watched import ToldSettings, WatchedCluster
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.bodies import TopicConfig, TopicOffset

#: Kinds of topics that the list can show, with their labels.
KINDS: Final = {
    "own": "Own topics",
    "retry": "Retry and dead letters",
    "system": "System",
    "all": "All",
}
_QUEUES_MAX: Final = 1_024
_READ_AND_WRITE: Final = 6
#: Permissions that a form offers, with their labels.
_PERMISSIONS: Final = (
    (_READ_AND_WRITE, "read and write"), (4, "read only"), (2, "write only"), (0, "closed"),
)  # fmt: skip
#: Each cluster has a topic for replies, of this suffix.
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"
#: Traffic is not read for a topic with more groups.
_TRAFFIC_GROUPS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """Queues of a topic with their offsets, and the messages that it receives per second.

    ``unread`` has, by broker name, why a master of the topic did not answer. The rate is then None.
    """

    queues: Mapping[MessageQueue, TopicOffset]
    per_second: float | None
    unread: Mapping[str, str]

    @property
    def stored(self) -> int:
        """Number of messages that are still stored, computed from the offsets."""
        return sum(max(0, each.max_offset - each.min_offset) for each in self.queues.values())

    @property
    def newest_ms(self) -> int:
        """Time of the newest message, ms since the epoch; 0 without queues."""
        return max((each.last_update_timestamp for each in self.queues.values()), default=0)


async def figures(cluster: WatchedCluster, topic: str) -> TopicFigures | None:
    """Return the figures of a topic, shared among viewers; None if there is no such topic."""

    async def ask() -> TopicFigures:
        unread = cluster.silent()
        queues = await cluster.admin.topic_stats(topic, unread=unread)
        if unread:
            having = await cluster.admin.masters_of(topic)
            unread = [each for each in unread if each.broker in having]
        if unread:  # a sum that lacks a broker would give a wrong rate
            return TopicFigures(queues, None, reasons(unread))
        now_ms = cluster.clock.wall_ms()
        total = sum(each.max_offset for each in queues.values())
        rate = cluster.history.rate(("topic", topic), now_ms, total)
        if rate is not None:
            cluster.history.add(("topic", topic), now_ms, rate)
        return TopicFigures(queues, cluster.history.last(("topic", topic)), {})

    try:
        return await cluster.calls.get(("stats", topic), ask)
    except ClientError:
        return None


async def topic_settings(cluster: WatchedCluster) -> ToldSettings[TopicConfig]:
    """Return the settings of all topics."""

    async def of_broker(broker: Broker) -> Mapping[str, TopicConfig]:
        return (await cluster.servers.topic_configs(broker.name)).topic_config_table

    return await cluster.calls.get(
        "topic settings", lambda: cluster.settings(of_broker), fresh_ms=NAMES_MS
    )


def kind_of(cluster: WatchedCluster, topic: str) -> str:
    """Return the kind of a topic (a key of KINDS) by its name.

    System topics include one named after each broker and each cluster.
    """
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return "retry"
    names = {
        name
        for state in cluster.brokers.values()
        for name in (state.broker.name, state.broker.cluster)
    }
    is_system = is_system_topic(topic) or topic in names or topic.endswith(_REPLY_SUFFIX)
    return "system" if is_system else "own"


async def show_all(request: Request) -> Response:
    """Show one page of the list of topics."""
    cluster = cluster_of(request)
    wanted, kind = field(request, "q").lower(), field(request, "kind") or "own"
    settings = await topic_settings(cluster)
    known = settings.known
    names = [
        topic
        for topic in sorted(known)
        if wanted in topic.lower()
        if kind in ("all", kind_of(cluster, topic))
    ]
    part = part_of(names, request)
    found = await asyncio.gather(*(figures(cluster, topic) for topic in part.rows))
    rows = list(zip(part.rows, (known[topic] for topic in part.rows), found, strict=True))
    return render(
        request, "topics.html", title="Topics", rows=rows, part=part, kinds=KINDS, kind=kind,
        unread=settings.unread,
        series={topic: cluster.history.series(("topic", topic)) for topic in part.rows},
    )  # fmt: skip


async def show(request: Request) -> Response:
    """Show one topic: settings, queues, groups and rates."""
    cluster, topic = cluster_of(request), request.path_params["topic"]
    settings, found = await asyncio.gather(topic_settings(cluster), figures(cluster, topic))
    if found is None:
        await cluster.admin.topic_stats(topic)  # raises the error that figures() dropped
        raise RouteNotFound(topic, "no broker has it")
    groups = await _groups(cluster, topic)
    traffic = None if found.unread else await _traffic(cluster, topic)
    lags = await cluster.known_lags()
    brokers = await cluster.calls.get(
        "settings", cluster.servers.broker_settings, fresh_ms=NAMES_MS
    )
    kept = {each.server: each.values.get("fileReservedTime", "") for each in brokers}
    now_ms = cluster.clock.wall_ms()
    return render(
        request, "topic.html", title=topic, topic=topic, config=settings.of(topic), found=found,
        unread=settings.unread,
        groups=[(group, lags.get(group)) for group in groups], traffic=traffic, kept=kept,
        flow=chart([Line("in", cluster.history.series(("topic", topic)))], now_ms),
        done=_DONE.get(field(request, "done"), ""),
    )  # fmt: skip


_DONE: Final = {"created": "The topic was created.", "changed": "The topic was changed."}


async def _groups(cluster: WatchedCluster, topic: str) -> list[str]:
    try:
        return await cluster.calls.get(
            ("groups of", topic),
            lambda: cluster.admin.groups_of(topic, unread=cluster.silent()),
            fresh_ms=NAMES_MS,
        )
    except CometError:
        return []


async def _traffic(cluster: WatchedCluster, topic: str) -> TopicTraffic | None:
    """Return the rates in and out of a topic; None with many groups, or after an error."""
    if len(await _groups(cluster, topic)) > _TRAFFIC_GROUPS_MAX:
        return None
    try:
        return await cluster.calls.get(
            ("traffic", topic), lambda: cluster.servers.topic_traffic(topic), fresh_ms=NAMES_MS
        )
    except CometError:
        return None


async def edit(request: Request) -> Response:
    """Show the form of a topic (GET), or create or change it (POST)."""
    cluster, topic = cluster_of(request), request.path_params.get("topic", "")
    if request.method == "POST":
        # Values that the form does not have are taken from the settings, which must be current.
        cluster.calls.forget()
    if not cluster.brokers:
        await cluster.ask_brokers()
    masters = sorted(each.broker.name for each in cluster.brokers.values() if each.is_master)
    settings = await topic_settings(cluster)
    known = settings.of(topic)
    if topic and not known:
        raise RouteNotFound(topic, shown.untold(settings.unread) or "no broker has it")
    if request.method == "POST":
        name = topic or field(request, "name")
        if not topic and name in settings.known:
            raise InputRefused(f"there is a topic {name!r} already: edit that one")
        await _carry_out(request, name, known, masters)
        cluster.calls.forget()
        done = "changed" if topic else "created"
        return RedirectResponse(link("/topics/{}", name, done=done), 303)
    title = f"Edit {topic}" if topic else "New topic"
    first = next(iter(known.values()), None)
    return render(
        request, "topic_form.html", title=title, topic=topic, known=known, masters=masters,
        first=first, perm=_READ_AND_WRITE if first is None else first.perm & _READ_AND_WRITE,
        permissions=_PERMISSIONS if topic else _PERMISSIONS[:-1],
    )  # fmt: skip


async def _carry_out(
    request: Request, name: str, known: Mapping[str, TopicConfig], masters: Sequence[str]
) -> None:
    """Create or change a topic as the form says, on the chosen masters or on all.

    ``known`` are its settings by broker; a broker that has none gets the topic created. Raises
    InputRefused before anything is changed.
    """
    if not is_legal_name(name):
        raise InputRefused(
            f"{name!r} is not a name: use letters, digits, '_', '-', '%' and '|', at most 127"
        )
    read, write = (whole(field(request, f"{each}_queues"), 0) for each in ("read", "write"))
    if not all(0 < each <= _QUEUES_MAX for each in (read, write)):
        raise InputRefused(f"a topic has 1 to {_QUEUES_MAX} queues on each broker")
    perm = whole(field(request, "perm"), _READ_AND_WRITE)
    if perm not in dict(_PERMISSIONS):
        raise InputRefused(f"{perm} is not a permission")
    chosen = request.state.form.get("broker") or masters
    strange = sorted(set(chosen).difference(masters))
    if strange or not chosen:
        raise InputRefused(f"there is no master {', '.join(strange)}".rstrip())
    admin, order = cluster_of(request).admin, field(request, "order") == "on"
    for broker in chosen:
        if (before := known.get(broker)) is None:
            await admin.create_topic(
                name, read_queues=read, write_queues=write, perm=perm, order=order,
                brokers=(broker,),
            )  # fmt: skip
        else:
            await admin.change_topic(
                name, broker, before, read_queues=read, write_queues=write, perm=perm, order=order
            )


async def delete(request: Request) -> Response:
    """Ask for confirmation (GET), or delete a topic (POST)."""
    cluster, topic = cluster_of(request), request.path_params["topic"]
    if request.method == "POST":
        if field(request, "confirmed") != topic:
            raise InputRefused("the name was not repeated: nothing was deleted")
        await cluster.admin.delete_topic(topic)
        cluster.calls.forget()
        return RedirectResponse("/topics", 303)
    found = await figures(cluster, topic)
    if found is None:
        raise RouteNotFound(topic, "no broker has it")
    groups = await _groups(cluster, topic)
    return render(
        request, "topic_delete.html", title=f"Delete {topic}", topic=topic, found=found,
        groups=groups,
    )  # fmt: skip


ROUTES = [
    Route("/topics", show_all),
    Route("/new-topic", edit, methods=["GET", "POST"]),
    Route("/topics/{topic}", show),
    Route("/topics/{topic}/edit", edit, methods=["GET", "POST"]),
    Route("/topics/{topic}/delete", delete, methods=["GET", "POST"]),
]
