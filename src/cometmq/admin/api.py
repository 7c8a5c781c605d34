"""Typed operations on a cluster, for the command line, Spark, demos and tests.

Each operation queries the name servers and brokers that it needs; nothing is cached. A broker on
another machine refuses operations that change state unless its settings allow them. Brokers are
asked together (:meth:`Admin.ask_together`), so that several silent brokers cost one timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import convert

from cometmq.client.pull import Puller
from cometmq.client.routes import by_queue, queue_of
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    CometError,
    NotConnected,
    NotFound,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.core.hosts import is_ip_address
from cometmq.core.settings import format_properties, parse_properties
from cometmq.message.ids import decode_offset_id
from cometmq.message.model import MessageQueue, StoredMessage, from_record
from cometmq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from cometmq.message.record import iter_decode
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    ClusterInfo,
    ConsumeOffset,
    ConsumerConnections,
    ConsumerStatusRead,
    ConsumeStatsRead,
    ConsumeTimeSpans,
    DirectResult,
    GroupList,
    KvTable,
    RunningInfoRead,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicRoute,
    TopicStatsRead,
    parse_client_body,
    read_offsets,
    reset_to,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.fields import from_ext

if TYPE_CHECKING:
    from cometmq.client.session import Session
    from cometmq.protocol.bodies import ProcessQueueInfo, QueueTimeSpan
    from cometmq.protocol.frame import Response

log = logging.getLogger(__name__)


#: Timestamp that stands for the end of every queue.
END: Final = -1
#: Timeout of requests that brokers relay to a consumer; they wait 10 s for its answer.
_RELAY_TIMEOUT_MS: Final = 15_000
#: Least timeout of a request.
_TIMEOUT_MS: Final = 5_000
#: Number of brokers that are asked at the same time.
_CONCURRENT: Final = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker process."""

    cluster: str
    name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A broker whose part of a result is missing, and the reason."""

    broker: Broker
    error: CometError


class ConsumerAdmin:
    """Operations on running consumers: ``Admin(session).consumers``.

    All methods raise NotConnected or RequestTimedOut when a server cannot be reached, BrokerRefused
    when it refuses, and RouteNotFound for a topic that no running master has.
    """

    def __init__(self, admin: Admin, session: Session, timeout_ms: int) -> None:
        self._admin = admin
        self._session = session
        self._timeout_ms = timeout_ms

    async def reset(
        self, group: str, topic: str, at_ms: int = END, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Reset a group to the messages stored at ``at_ms``; return the new offset of each queue.

        ``at_ms`` is milliseconds since the epoch; END is the end of each queue. Running consumers
        drop their prefetched messages and continue there, Java consumers after 10 s. Without
        running consumers the committed offsets are set. Unless ``force``, no offset is moved
        forward.
        """
        header = h.ResetOffset(topic, group, at_ms, force)
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

        async def reset(master: Broker) -> dict[MessageQueue, int]:
            try:
                response = await self._call(master.address, code, header)
            except BrokerRefused as refusal:
                if refusal.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    return await self._set(group, topic, master.name, at_ms, force=force)
                # RocketMQ 4.9 also answers this if the group lacks the offset of a queue: set it.
                if f"<{group}> not exist" not in refusal.broker_remark:
                    raise
                await self._set(group, topic, master.name, at_ms, force=force, known=False)
                response = await self._call(master.address, code, header)
            return {queue_of(key): at for key, at in read_offsets(response.body).items()}

        return _merged(await self._admin.ask_together(await self._masters(topic), reset))

    async def positions(
        self, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets in a topic by client id, as the members of the group report them.

        Members that do not respond are omitted.
        """
        header = h.GetConsumerStatus(topic, group, client_id or None)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        # Members are connected to all brokers of the topic, so any one broker knows them all.
        response = await self._of_any(await self._masters(topic), code, header, self._timeout_ms)
        table = parse_json(response.body, ConsumerStatusRead).consumer_table
        return {client: by_queue(queues) for client, queues in table.items()}

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> RunningInfoRead:
        """Return the state that one member of a group reports; :func:`held` reads its queues.

        ``stacks`` requests the stack traces of its threads and tasks.
        """
        header = h.GetConsumerRunningInfo(group, client_id, stacks)
        masters = await self._masters(RETRY_PREFIX + group)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        response = await self._of_any(masters, code, header, _RELAY_TIMEOUT_MS)
        return read_running_info(response, client_id)

    async def consume_directly(self, group: str, client_id: str, offset_id: str) -> DirectResult:
        """Have one member of a group process a stored message now; return the result.

        The offset of the message does not matter. Raises ValueError if ``offset_id`` is invalid.
        """
        place = decode_offset_id(offset_id)
        host = f"[{place.host}]" if ":" in place.host else place.host
        header = h.ConsumeMessageDirectly(group, client_id, offset_id)
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        response = await self._call(f"{host}:{place.port}", code, header, _RELAY_TIMEOUT_MS)
        return parse_client_body(response.body, DirectResult)

    async def clone(self, source: str, target: str, topic: str = "") -> None:
        """Copy the committed offsets of group ``source`` to ``target``, in one topic or in all.

        No member of ``target`` should be running, because it would overwrite the offsets.
        """
        header = h.CloneGroupOffset(source, target, topic or None)

        async def clone(master: Broker) -> None:
            await self._call(master.address, RequestCode.CLONE_GROUP_OFFSET, header)

        masters = await self._masters(topic or RETRY_PREFIX + source)
        await self._admin.ask_together(masters, clone)

    async def time_span(self, group: str, topic: str) -> dict[MessageQueue, QueueTimeSpan]:
        """Return the store times of three messages of each queue.

        The messages are the oldest, the newest, and the next one that the group consumes.
        """
        header = h.ConsumeTimeSpan(topic, group)

        async def spans(master: Broker) -> dict[MessageQueue, QueueTimeSpan]:
            code = RequestCode.QUERY_CONSUME_TIME_SPAN
            response = await self._call(master.address, code, header)
            found = parse_json(response.body, ConsumeTimeSpans).consume_time_span_set
            return {queue_of(span.message_queue): span for span in found}

        return _merged(await self._admin.ask_together(await self._masters(topic), spans))

    async def _set(
        self, group: str, topic: str, broker: str, at_ms: int, *, force: bool, known: bool = True
    ) -> dict[MessageQueue, int]:
        """Set the offsets on one broker of a group without connected members.

        Unless ``known``, skip queues with a committed offset above 0. Offset 0 may mean that there
        is none: a broker answers so for a queue that still has its first message.
        """
        found: dict[MessageQueue, int] = {}
        for queue in await self._session.subscribe_queues(topic):
            if queue.broker_name != broker:
                continue
            committed = await self._admin.group_offset(group, queue)
            if committed and not known:
                continue
            if at_ms == END:
                offset = await self._admin.puller.max_offset(queue)
            else:
                offset = await self._admin.puller.search_offset(queue, at_ms)
            found[queue] = reset_to(offset, -1 if committed is None else committed, force=force)
        await self._admin.commit_group_offsets(group, found)
        return found

    async def _masters(self, topic: str) -> list[Broker]:
        """Return the masters that have a topic, at least one."""
        masters = await self._admin.masters_of(topic)
        if not masters:
            raise RouteNotFound(topic, "none of its masters is running")
        return masters

    async def _of_any(
        self, masters: Sequence[Broker], code: RequestCode, header: h.Header, timeout_ms: int
    ) -> Response:
        """Return the answer of the first master that can be reached."""
        *others, last = masters
        for master in others:
            try:
                return await self._call(master.address, code, header, timeout_ms)
            except (NotConnected, RequestTimedOut) as error:
                log.debug("master_not_reached address=%s error=%s", master.address, error)
        return await self._call(last.address, code, header, timeout_ms)

    async def _call(
        self, address: str, code: RequestCode, header: h.Header, timeout_ms: int = 0
    ) -> Response:
        return await self._session.remoting.call(
            address, code, header, timeout_ms=timeout_ms or self._timeout_ms
        )


def read_running_info(response: Response, client_id: str) -> RunningInfoRead:
    """Parse a member's response. Raises BrokerRefused with its remark if it has no body.

    The Go client sends an empty response with code SUCCESS while it has no rates yet.
    """
    if not response.body and response.remark:
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        raise BrokerRefused(client_id, code, response.code, response.remark)
    return parse_json(response.body, RunningInfoRead)


def held(info: RunningInfoRead) -> dict[MessageQueue, ProcessQueueInfo]:
    """Return the prefetch state of each queue that a consumer reads."""
    return dict(sorted(by_queue(info.mq_table).items()))


def _raise_first(unread: Sequence[Unread]) -> None:
    """Raise the first error of a list, if any. Raise it only once: see :func:`fresh_copy`."""
    for each in unread:
        error = each.error
        raise error


def _merged(parts: Mapping[Broker, Mapping[MessageQueue, T]]) -> dict[MessageQueue, T]:
    """Return the values that brokers reported for their queues in one table, sorted by queue."""
    found = {queue: each for part in parts.values() for queue, each in part.items()}
    return dict(sorted(found.items()))


_READ_WRITE: Final = PERM_READ | PERM_WRITE
#: Time within which the route of a created topic must appear.
_ROUTE_VISIBLE_MS: Final = 10_000
_ROUTE_STEP_MS: Final = 20
_MAX_TIME_MS: Final = 2**63 - 1
_INDEX_TIME_UNIT_MS: Final = 1_000


class Admin:
    """Operations over an open client session (``Admin(client.session)``).

    All methods raise NotConnected or RequestTimedOut when a server cannot be reached, and
    BrokerRefused when it refuses; each method names its other errors. With a list ``unread``, a
    method returns what brokers answered, and appends the brokers that did not answer to the list.
    Without the list it raises the error of the first of them, because the result would be partial.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.timeout_ms = max(session.config.request_timeout_ms, _TIMEOUT_MS)
        self.puller = Puller(session)
        #: Operations on running consumers.
        self.consumers = ConsumerAdmin(self, session, self.timeout_ms)

    # ------------------------------------------------------------------ cluster

    async def cluster_info(self) -> ClusterInfo:
        """Return brokers by name and broker names by cluster, as known to the name server."""
        response = await self.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, None)
        return parse_json(response.body, ClusterInfo)

    async def brokers(self, cluster: str = "", *, masters_only: bool = False) -> list[Broker]:
        """Return the broker processes of one cluster or of all, sorted by cluster, name and id."""
        info = await self.cluster_info()
        return sorted(
            (
                Broker(each.cluster, each.broker_name, int(broker_id), address)
                for each in info.broker_addr_table.values()
                for broker_id, address in each.broker_addrs.items()
                if not cluster or each.cluster == cluster
                if not masters_only or broker_id == "0"
            ),
            key=lambda broker: (broker.cluster, broker.name, broker.broker_id),
        )

    async def find_brokers(
        self, name: str = "", cluster: str = "", *, masters_only: bool = False
    ) -> list[Broker]:
        """Return the broker processes with a name or address, and in a cluster; "" matches all.

        Raises NotFound when the name servers know no such broker or cluster.
        """
        every = await self.brokers(masters_only=masters_only)
        if cluster and not any(each.cluster == cluster for each in every):
            known = ", ".join(sorted({each.cluster for each in every})) or "none"
            raise NotFound("cluster", cluster, f"no broker is registered in it (known: {known})")
        found = [
            each
            for each in every
            if name in ("", each.name, each.address) and cluster in ("", each.cluster)
        ]
        if name and not found:
            known = ", ".join(sorted({each.name for each in every})) or "none"
            which = "master" if masters_only else "broker"
            problem = f"no {which} with this name or address is registered (known: {known})"
            raise NotFound("broker", name, problem)
        return found

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return a broker's runtime information: version, rates, offsets, disk."""
        response = await self.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, None)
        return parse_json(response.body, KvTable).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return all settings of a broker. Raises SettingsError when the response is malformed."""
        response = await self.call(address, RequestCode.GET_BROKER_CONFIG, None)
        return parse_properties(response.body.decode("utf-8", "replace"))

    async def update_broker_config(self, address: str, values: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        body = format_properties(values).encode()
        await self.call(address, RequestCode.UPDATE_BROKER_CONFIG, None, body)

    # ------------------------------------------------------------------ topics

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = _READ_WRITE,
        order: bool = False,
        filter_type: str = "SINGLE_TAG",
        sys_flag: int = 0,
        cluster: str = "",
        brokers: Iterable[str] = (),
    ) -> TopicRoute:
        """Create or change a topic on master brokers.

        These are the masters of ``cluster`` (empty: of all clusters), or only those named in
        ``brokers``. Returns the topic's route once the name server has it from all of them. Raises
        RouteNotFound when a named broker does not exist, before anything is created, or when the
        route does not appear in time.
        """
        wanted = set(brokers)
        masters = [
            broker
            for broker in await self.brokers(cluster, masters_only=True)
            if not wanted or broker.name in wanted
        ]
        unknown = wanted.difference(broker.name for broker in masters)
        if unknown:
            raise RouteNotFound(
                topic,
                f"there is no master broker {', '.join(sorted(unknown))}; nothing was created",
            )
        if not masters:
            raise RouteNotFound(topic, "there is no master broker to create it on")
        header = h.CreateTopic(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=perm,
            topic_filter_type=filter_type,
            topic_sys_flag=sys_flag,
            order=order,
        )
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await asyncio.gather(*(self.call(broker.address, code, header) for broker in masters))
        return await self._await_route(topic, {broker.name for broker in masters}, header)

    async def change_topic(
        self,
        topic: str,
        broker: str,
        before: TopicConfig,
        *,
        read_queues: int,
        write_queues: int,
        perm: int,
        order: bool,
    ) -> None:
        """Change a topic on one broker; ``before`` is its configuration there.

        Its filter type, its flags, and permissions beyond reading and writing stay.
        """
        await self.create_topic(
            topic,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=perm & _READ_WRITE | before.perm & ~_READ_WRITE,
            order=order,
            filter_type=before.topic_filter_type,
            sys_flag=before.topic_sys_flag,
            brokers=[broker],
        )

    async def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Delete a topic on all brokers of a cluster (empty: of all) and on the name servers.

        Raises NotFound for an unknown cluster.
        """
        header = h.Topic(topic=topic)

        async def delete(broker: Broker) -> None:
            await self.call(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, header)

        await self.ask_together(await self.find_brokers(cluster=cluster), delete)
        gone = h.DeleteTopicInNamesrv(topic=topic, cluster_name=cluster or None)
        code = RequestCode.DELETE_TOPIC_IN_NAMESRV
        calls = (self.call(address, code, gone) for address in self.session.config.name_servers)
        # All name servers delete the topic, even if one does not answer.
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def list_topics(self) -> list[str]:
        """Return all topics that the name server knows, system topics included, sorted."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        response = await self.ask_name_server(code, None)
        return sorted(parse_json(response.body, TopicList).topic_list)

    async def system_topics(self, *, unread: list[Unread] | None = None) -> set[str]:
        """Return the system topics of brokers and name servers."""

        async def ask(broker: Broker) -> list[str]:
            code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
            response = await self.call(broker.address, code, None)
            return parse_json(response.body, TopicList).topic_list

        lists = await self.ask_together(await self.brokers(masters_only=True), ask, unread)
        response = await self.ask_name_server(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, None)
        return set().union(*lists.values(), parse_json(response.body, TopicList).topic_list)

    async def topic_config(self, address: str, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic on one broker; None if the broker lacks it."""
        response = await self.call(address, RequestCode.GET_ALL_TOPIC_CONFIG, None)
        return parse_json(response.body, TopicConfigTable).topic_config_table.get(topic)

    async def topic_route(self, topic: str) -> TopicRoute:
        """Return the route of a topic. Raises RouteNotFound."""
        return await self.session.route(topic)

    async def topic_stats(
        self, topic: str, *, unread: list[Unread] | None = None
    ) -> dict[MessageQueue, TopicOffset]:
        """Return minimum and maximum offset of each queue of a topic. Raises RouteNotFound."""

        async def stats(master: Broker) -> dict[MessageQueue, TopicOffset]:
            code = RequestCode.GET_TOPIC_STATS_INFO
            response = await self.call(master.address, code, h.Topic(topic=topic))
            return by_queue(parse_json(response.body, TopicStatsRead).offset_table)

        return _merged(await self.ask_together(await self.masters_of(topic), stats, unread))

    # ------------------------------------------------------------------ groups

    async def update_group(
        self, group: SubscriptionGroupConfig, cluster: str = "", brokers: Iterable[str] = ()
    ) -> None:
        """Create or change a consumer group on masters.

        These are the masters of ``cluster`` (empty: of all clusters), or only those named in
        ``brokers``. Raises NotFound for an unknown cluster, or if no such master is registered.
        """
        wanted = set(brokers)
        masters = await self._masters_in(cluster)
        unknown = sorted(wanted.difference(each.name for each in masters))
        if unknown:
            raise NotFound("broker", unknown[0], "no master with this name is registered")

        async def update(broker: Broker) -> None:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self.call(broker.address, code, None, encode_json(group))

        chosen = [each for each in masters if not wanted or each.name in wanted]
        await self.ask_together(chosen, update)

    async def delete_group(self, group: str, cluster: str = "") -> None:
        """Delete a consumer group, including its offsets, on all masters of a cluster.

        Raises NotFound for an unknown cluster, or if no master is registered.
        """
        header = h.GroupName(group_name=group, remove_offset=True)

        async def delete(broker: Broker) -> None:
            await self.call(broker.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

        await self.ask_together(await self._masters_in(cluster), delete)

    async def knows_group(self, group: str) -> bool:
        """Return whether any broker has settings, offsets or members of a group.

        Raises the error of a broker that did not answer if no other one knows the group.
        """
        masters, unread = await self.brokers(masters_only=True), list[Unread]()

        async def knows(broker: Broker) -> bool:
            if group in await self.group_configs(broker) or group in await self._committed(broker):
                return True
            return bool(await self._progress(broker, group, None)) or (
                await self.members_at(broker, group) is not None
            )

        if any((await self.ask_together(masters, knows, unread)).values()):
            return True
        _raise_first(unread)
        return False

    async def group_configs(self, broker: Broker) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups on one broker, by group."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        response = await self.call(broker.address, code, None)
        return parse_json(response.body, SubscriptionGroupTable).subscription_group_table

    async def group_settings(self, broker: Broker) -> dict[str, dict[str, Any]]:
        """Return the settings of all groups on one broker as JSON objects, by group.

        RocketMQ 5 has settings that SubscriptionGroupConfig lacks.
        """
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        response = await self.call(broker.address, code, None)
        table = parse_json(response.body, dict[str, Any]).get("subscriptionGroupTable") or {}
        return convert(table, dict[str, dict[str, Any]])

    async def put_group(self, broker: Broker, settings: Mapping[str, Any]) -> None:
        """Create or change a group on one broker; for ``settings`` see :meth:`group_settings`."""
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self.call(broker.address, code, None, encode_json(dict(settings)))

    async def group_names(self, broker: Broker) -> set[str]:
        """Return the groups that have settings or offsets on one broker."""
        return {*await self.group_configs(broker), *await self._committed(broker)} - {""}

    async def _committed(self, broker: Broker) -> set[str]:
        """Return the groups that have offsets on one broker.

        A Java broker keeps the offsets of a topic that was deleted.
        """
        response = await self.call(broker.address, RequestCode.GET_ALL_CONSUMER_OFFSET, None)
        table = parse_json(response.body, dict[str, Any]).get("offsetTable") or {}
        return {key.partition("@")[2] for key in convert(table, dict[str, Any])}

    async def members_at(self, broker: Broker, group: str) -> ConsumerConnections | None:
        """Return the members of a group connected to one broker; None when there are none."""
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        try:
            response = await self.call(broker.address, code, h.ConsumerGroup(group))
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            raise
        return parse_json(response.body, ConsumerConnections)

    async def _progress(
        self, broker: Broker, group: str, topic: str | None
    ) -> dict[MessageQueue, ConsumeOffset]:
        return by_queue((await self.consume_stats(broker, group, topic)).offset_table)

    async def consume_stats(
        self, broker: Broker, group: str, topic: str | None = None
    ) -> ConsumeStatsRead:
        """Return the progress of a group in one topic or in all, as one broker reports it."""
        header = h.GetConsumeStats(consumer_group=group, topic=topic)
        response = await self.call(broker.address, RequestCode.GET_CONSUME_STATS, header)
        return parse_json(response.body, ConsumeStatsRead)

    async def require_group(self, group: str) -> None:
        """Raise NotFound for a group that no broker knows."""
        if not await self.knows_group(group):
            raise NotFound("group", group, "no broker knows it: check its name")

    async def groups_of(self, topic: str, *, unread: list[Unread] | None = None) -> list[str]:
        """Return the groups that consume or consumed a topic, sorted. Raises RouteNotFound."""

        async def ask(master: Broker) -> list[str]:
            code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
            response = await self.call(master.address, code, h.Topic(topic=topic))
            return parse_json(response.body, GroupList).group_list

        lists = await self.ask_together(await self.masters_of(topic), ask, unread)
        return sorted(set().union(*lists.values()))

    async def consumer_connections(self, group: str) -> ConsumerConnections | None:
        """Return the members of a group that are connected to the first broker with members.

        Returns None if no broker has any. Raises the error of a broker that did not answer if no
        other one has members.
        """
        unread: list[Unread] = []
        for found in (await self.all_connections(group, unread=unread)).values():
            return found
        _raise_first(unread)
        return None

    async def all_connections(
        self, group: str, *, unread: list[Unread] | None = None
    ) -> dict[Broker, ConsumerConnections]:
        """Return the connected members of a group by master, for the masters that have some."""

        async def ask(broker: Broker) -> ConsumerConnections | None:
            return await self.members_at(broker, group)

        found = await self.ask_together(await self.brokers(masters_only=True), ask, unread)
        return {broker: each for broker, each in found.items() if each is not None}

    async def consumer_progress(
        self, group: str, topic: str | None = None, *, unread: list[Unread] | None = None
    ) -> dict[MessageQueue, ConsumeOffset]:
        """Return a group's progress in each queue of one topic or of all.

        The lag of a queue is ``broker_offset - consumer_offset``. The result is empty for a group
        that never consumed.
        """

        async def ask(broker: Broker) -> dict[MessageQueue, ConsumeOffset]:
            return await self._progress(broker, group, topic)

        masters = await self.brokers(masters_only=True)
        return _merged(await self.ask_together(masters, ask, unread))

    async def group_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the committed offset (None: there is none) of a group in each queue of a topic.

        Raises RouteNotFound.
        """
        queues = await self.session.subscribe_queues(topic)
        offsets = await asyncio.gather(*(self.group_offset(group, queue) for queue in queues))
        return dict(zip(queues, offsets, strict=True))

    async def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of a group in one queue; None if there is none.

        A Java 4.x broker returns 0 for a queue that still has its first message.
        """
        header = h.QueryConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        address = await self.session.master_of(queue)
        try:
            response = await self.call(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return from_ext(h.QueueOffsetResponse, response.ext).offset

    async def commit_group_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set the committed offsets of a group. Running members continue from their own offsets.

        The first offset of each topic and broker is sent alone: a Java broker may lose one of two
        concurrent offsets that are a group's first in a topic.
        """
        firsts = {(queue.broker_name, queue.topic): queue for queue in offsets}
        alone = set(firsts.values())
        for part in (alone, offsets.keys() - alone):
            await asyncio.gather(*(self._commit(group, each, offsets[each]) for each in part))

    # ------------------------------------------------------------------ messages

    async def message_by_id(self, message_id: str, topic: str = "") -> StoredMessage | None:
        """Return the message with an offset id or a unique key; None if it is not found.

        A sender's id (a unique key) can be looked up only with its ``topic``. Both kinds of id look
        alike: an id that names no broker of the cluster is taken for a sender's. Raises NotFound
        for such an id without a topic.
        """
        try:
            place = decode_offset_id(message_id)
        except ValueError:
            place = None
        # The process id in a unique key stands where an offset id has a port.
        broker = None if place is None else await self._broker_at(place.host, place.port)
        if place is not None and broker is not None:
            try:
                return await self._at(broker, place.physical_offset)
            except BrokerRefused as error:
                if not topic:
                    return None
                log.debug("not_an_offset_id id=%s error=%s", message_id, error)
            except (NotConnected, RequestTimedOut) as error:
                if not topic:
                    raise
                log.debug("not_an_offset_id id=%s error=%s", message_id, error)
        if topic:
            found = await self._query(topic, message_id, 32, 0, _MAX_TIME_MS, unique=True)
            return found[0] if found else None
        if place is None:
            return None
        raise NotFound(
            "message",
            message_id,
            "no broker of the cluster made this id, so it is a sender's: give the topic, in which "
            "it is looked up",
        )

    async def _broker_at(self, host: str, port: int) -> Broker | None:
        """Return the broker that is registered at an address, or by a host name of that address.

        A sender chooses the id of a message, which may name any address: so only registered
        brokers are asked.
        """
        brokers = await self.brokers()
        wanted = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for each in brokers:
            if each.address == wanted:
                return each
        loop = asyncio.get_running_loop()
        for each in brokers:
            name, _, own_port = each.address.rpartition(":")
            if own_port != str(port) or is_ip_address(name.strip("[]")):
                continue
            with suppress(OSError):
                if host in {found[4][0] for found in await loop.getaddrinfo(name, port)}:
                    return each
        return None

    async def _at(self, broker: Broker, physical_offset: int) -> StoredMessage | None:
        """Return the message at a place of a broker's log."""
        header = h.ViewMessage(offset=physical_offset)
        response = await self.call(broker.address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        records = iter_decode(response.body)
        return next((from_record(record, broker.name) for record in records), None)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int = _MAX_TIME_MS,
    ) -> list[StoredMessage]:
        """Return messages of a topic with ``key`` that were stored between two times, oldest first.

        Raises RouteNotFound.
        """
        return await self._query(topic, key, max_messages, begin_ms, end_ms, unique=False)

    async def messages_by_unique_key(
        self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = _MAX_TIME_MS
    ) -> list[StoredMessage]:
        """Return the messages of a topic with a unique key, oldest first. Raises RouteNotFound.

        Copies of one message have the same unique key; brokers return at most 32.
        """
        return await self._query(topic, key, 32, begin_ms, end_ms, unique=True)

    async def _query(
        self, topic: str, key: str, count: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> list[StoredMessage]:
        header = h.QueryMessage(
            topic=topic,
            key=key,
            max_num=count,
            # An index entry has the whole seconds from the first message of its file to its own
            # message: begin one second earlier.
            begin_timestamp=max(0, begin_ms - _INDEX_TIME_UNIT_MS),
            end_timestamp=end_ms,
            unique_key_query=True if unique else None,
        )

        async def ask(master: Broker) -> list[StoredMessage]:
            try:
                response = await self.call(master.address, RequestCode.QUERY_MESSAGE, header)
            except BrokerRefused as refusal:
                if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                    return []
                raise
            found = [from_record(record, master.name) for record in iter_decode(response.body)]
            return [
                message
                for message in found
                # The index contains only hashes, so compare the text of the key.
                if key in ((message.unique_key,) if unique else message.keys)
                if message.topic == topic and begin_ms <= message.store_ms <= end_ms
            ]

        parts = await self.ask_together(await self.masters_of(topic), ask)
        found = [message for part in parts.values() for message in part]
        return sorted(found, key=lambda message: message.store_ms)[:count]

    # ------------------------------------------------------------------ parts

    async def _commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = h.UpdateConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        address = await self.session.master_of(queue)
        await self.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def masters_of(self, topic: str) -> list[Broker]:
        """Return the masters that have a topic. Raises RouteNotFound."""
        route = await self.topic_route(topic)
        return [
            Broker(each.cluster, each.broker_name, 0, address)
            for each in route.broker_datas
            if (address := each.master())
        ]

    async def ask_together(
        self,
        brokers: Sequence[Broker],
        ask: Callable[[Broker], Awaitable[T]],
        unread: list[Unread] | None = None,
    ) -> dict[Broker, T]:
        """Ask brokers together; return the result of ``ask`` for each, in their order.

        Brokers for which ``ask`` raises a CometError are appended to ``unread``. A broker that is
        in the list because it could not be reached is not asked again. Without the list, the first
        of these errors is raised, once all brokers were asked.
        """
        silent = {
            each.broker
            for each in unread or ()
            if isinstance(each.error, NotConnected | RequestTimedOut)
        }
        brokers = [broker for broker in brokers if broker not in silent]
        gate, failed = asyncio.Semaphore(_CONCURRENT), dict[Broker, CometError]()
        found: dict[Broker, T] = {}

        async def one(broker: Broker) -> None:
            async with gate:
                try:
                    found[broker] = await ask(broker)
                except CometError as error:
                    failed[broker] = error

        await asyncio.gather(*map(one, brokers))
        for broker in brokers:
            if (error := failed.get(broker)) is None:
                continue
            if unread is None:
                raise error
            if all(each.broker != broker for each in unread):
                unread.append(Unread(broker, error))
        return {broker: found[broker] for broker in brokers if broker in found}

    async def _masters_in(self, cluster: str) -> list[Broker]:
        found = await self.find_brokers(cluster=cluster, masters_only=True)
        if not found:
            raise NotFound("cluster", cluster or "any", "no master broker is registered")
        return found

    async def _await_route(self, topic: str, names: set[str], header: h.CreateTopic) -> TopicRoute:
        deadline_ms = self.session.clock.monotonic_ms() + _ROUTE_VISIBLE_MS
        problem: ClientError | None = None
        while True:
            try:
                route = await self.topic_route(topic)
                seen = {
                    data.broker_name
                    for data in route.queue_datas
                    if data.read_queue_nums == header.read_queue_nums
                    and data.write_queue_nums == header.write_queue_nums
                    and data.perm == header.perm
                }
                if names <= seen:
                    return route
            except RouteNotFound as error:
                problem = error
            if self.session.clock.monotonic_ms() >= deadline_ms:
                raise problem or RouteNotFound(topic, "the name server has an older route")
            await self.session.clock.sleep_ms(_ROUTE_STEP_MS)

    async def ask_name_server(self, code: RequestCode, header: h.Header | None) -> Response:
        """Send a request to any one name server that responds."""
        response = await self.session.name_servers.ask(code, header, timeout_ms=self.timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerRefused("name server", code, response.code, response.remark or "")
        return response

    async def call(
        self,
        address: str,
        code: RequestCode,
        header: h.Header | None,
        body: bytes = b"",
        *,
        timeout_ms: int = 0,
    ) -> Response:
        """Send a request to one server; ``timeout_ms`` 0 stands for the usual timeout."""
        return await self.session.remoting.call(
            address, code, header, body, timeout_ms=timeout_ms or self.timeout_ms
        )
