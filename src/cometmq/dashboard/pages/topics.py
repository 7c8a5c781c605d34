"""Topics: the list, one topic with its queues and groups, and their creation, change and end."""

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
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, is_legal_name, is_system_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from cometmq.admin.api import Unread
    from cometmq.admin.servers import TopicTraffic
    from cometmq.dashboard.watched import WatchedCluster
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.bodies import TopicConfig, TopicOffset

#: Kinds of topics that the list can show, by the word of the choice.
KINDS: Final = {
    "own": "Own topics",
    "retry": "Retry and dead letters",
    "system": "System",
    "all": "All",
}
_QUEUES_MAX: Final = 1_024
#: Each cluster has a topic for replies.
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"
_TRAFFIC_GROUPS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """Queues of a topic with their ends, and what it receives a second."""

    queues: Mapping[MessageQueue, TopicOffset]
    per_second: float | None

    @property
    def stored(self) -> int:
        """Messages that are still stored, as offsets count them."""
        return sum(max(0, each.max_offset - each.min_offset) for each in self.queues.values())

    @property
    def newest_ms(self) -> int:
        """Time of the newest message."""
        return max((each.last_update_timestamp for each in self.queues.values()), default=0)


async def figures(cluster: WatchedCluster, topic: str) -> TopicFigures | None:
    """Return the figures of a topic, shared among viewers; None if its brokers do not tell."""

    async def ask() -> TopicFigures:
        queues = await cluster.admin.topic_stats(topic)
        now_ms = cluster.clock.wall_ms()
        total = sum(each.max_offset for each in queues.values())
        rate = cluster.history.rate(("topic", topic), now_ms, total)
        if rate is not None:
            cluster.history.add(("topic", topic), now_ms, rate)
        return TopicFigures(queues, cluster.history.last(("topic", topic)))

    try:
        return await cluster.calls.get(("stats", topic), ask)
    except ClientError:
        return None


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of all topics by topic and broker name, and the masters that did not tell theirs."""

    known: Mapping[str, Mapping[str, TopicConfig]]
    #: Why each of them did not, by broker name.
    unread: Mapping[str, str]

    def of(self, topic: str) -> Mapping[str, TopicConfig]:
        """Return the settings of a topic by broker name; none if no broker that told has it."""
        return self.known.get(topic, {})


async def topic_settings(cluster: WatchedCluster) -> TopicSettings:
    """Return the settings of all topics."""

    async def ask() -> TopicSettings:
        known: dict[str, dict[str, TopicConfig]] = {}
        unread = {
            state.broker.name: state.problem
            for state in cluster.brokers.values()
            if state.is_master and state.problem
        }
        failed: list[Unread] = []
        tables = await cluster.admin.ask_together(
            await cluster.masters(), lambda each: cluster.servers.topic_configs(each.name), failed
        )
        unread.update({each.broker.name: str(each.error) for each in failed})
        for broker, table in tables.items():
            for topic, config in table.topic_config_table.items():
                known.setdefault(topic, {})[broker.name] = config
        return TopicSettings(known, unread)

    return await cluster.calls.get("topic settings", ask, fresh_ms=NAMES_MS)


def kind_of(cluster: WatchedCluster, topic: str) -> str:
    """Return the kind of a topic by its name. Each broker and cluster has a topic of its name."""
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
    """Show a page of the list."""
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
    """Show one topic."""
    cluster, topic = cluster_of(request), request.path_params["topic"]
    settings, found = await asyncio.gather(topic_settings(cluster), figures(cluster, topic))
    if found is None:
        await cluster.admin.topic_stats(topic)  # raises what is wrong
        raise RouteNotFound(topic, "no broker has it")
    groups, traffic = await asyncio.gather(_groups(cluster, topic), _traffic(cluster, topic))
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
            ("groups of", topic), lambda: cluster.admin.groups_of(topic), fresh_ms=NAMES_MS
        )
    except CometError:
        return []


async def _traffic(cluster: WatchedCluster, topic: str) -> TopicTraffic | None:
    if len(await _groups(cluster, topic)) > _TRAFFIC_GROUPS_MAX:
        return None
    try:
        return await cluster.calls.get(
            ("traffic", topic), lambda: cluster.servers.topic_traffic(topic), fresh_ms=NAMES_MS
        )
    except CometError:
        return None


async def edit(request: Request) -> Response:
    """Show the form of a topic, or create or change it."""
    cluster, topic = cluster_of(request), request.path_params.get("topic", "")
    if request.method == "POST":
        name = topic or field(request, "name")
        if not is_legal_name(name):
            raise InputRefused(
                f"{name!r} is not a name: use letters, digits, '_', '-', '%' and '|', at most 127"
            )
        if not topic and name in (await topic_settings(cluster)).known:
            raise InputRefused(f"there is a topic {name!r} already: edit that one")
        read, write = (whole(field(request, f"{each}_queues"), 0) for each in ("read", "write"))
        if not all(0 < each <= _QUEUES_MAX for each in (read, write)):
            raise InputRefused(f"a topic has 1 to {_QUEUES_MAX} queues on each broker")
        perm = whole(field(request, "perm"), 6)
        await cluster.admin.create_topic(
            name, read_queues=read, write_queues=write, perm=perm if perm in (2, 4, 6) else 6,
            order=field(request, "order") == "on", brokers=request.state.form.get("broker", ()),
        )  # fmt: skip
        cluster.calls.forget()
        done = "changed" if topic else "created"
        return RedirectResponse(link("/topics/{}", name, done=done), 303)
    settings = await topic_settings(cluster)
    known = settings.of(topic)
    masters = sorted(each.broker.name for each in cluster.brokers.values() if each.is_master)
    if topic and not known:
        raise RouteNotFound(topic, shown.untold(settings.unread) or "no broker has it")
    title = f"Edit {topic}" if topic else "New topic"
    return render(
        request, "topic_form.html", title=title, topic=topic, known=known, masters=masters,
        first=next(iter(known.values()), None),
    )  # fmt: skip


async def delete(request: Request) -> Response:
    """Ask whether to delete a topic, or delete it."""
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
