"""Typed operations on a cluster, for the command line, Spark, demos and tests.

Each operation queries the name servers and brokers that it needs; nothing is cached. A broker on
another machine refuses operations that change state unless its settings allow them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.pull import Puller
from cometmq.client.routes import by_queue, queue_of
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    NotConnected,
    NotFound,
    RequestTimedOut,
    RouteNotFound,
)
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
#: Brokers wait 10 s for a consumer.
_RELAY_TIMEOUT_MS: Final = 15_000


class ConsumerAdmin:
    """Operations on running consumers: ``Admin(session).consumers``.

    All methods raise NotConnected or RequestTimedOut when a server cannot be reached, BrokerRefused
    when it refuses, and RouteNotFound.
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
        found: dict[MessageQueue, int] = {}
        for name, address in await self._masters(topic):
            try:
                response = await self._call(address, code, header)
            except BrokerRefused as refusal:
                if refusal.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                found.update(await self._set(group, topic, name, at_ms, force=force))
            else:
                found.update((queue_of(key), at) for key, at in read_offsets(response.body).items())
        return dict(sorted(found.items()))

    async def positions(
        self, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets in a topic by client id, as the members of the group report them.

        Members that do not respond are omitted.
        """
        header = h.GetConsumerStatus(topic, group, client_id or None)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        # Members are connected to all brokers of the topic, so any one broker knows them all.
        (_, address), *_ = await self._masters(topic)
        response = await self._call(address, code, header)
        table = parse_json(response.body, ConsumerStatusRead).consumer_table
        return {client: by_queue(queues) for client, queues in table.items()}

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> RunningInfoRead:
        """Return the state that one member of a group reports; :func:`held` reads its queues.

        ``stacks`` requests the stack traces of its threads and tasks.
        """
        header = h.GetConsumerRunningInfo(group, client_id, stacks)
        (_, address), *_ = await self._masters(RETRY_PREFIX + group)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        response = await self._call(address, code, header, _RELAY_TIMEOUT_MS)
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
        masters = await self._masters(topic or RETRY_PREFIX + source)
        for _, address in masters:
            await self._call(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def time_span(self, group: str, topic: str) -> dict[MessageQueue, QueueTimeSpan]:
        """Return store times of messages in each queue.

        They are those of the oldest and the newest message, and of the group's next one.
        """
        found: dict[MessageQueue, QueueTimeSpan] = {}
        header = h.ConsumeTimeSpan(topic, group)
        for _, address in await self._masters(topic):
            response = await self._call(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            spans = parse_json(response.body, ConsumeTimeSpans).consume_time_span_set
            found.update((queue_of(span.message_queue), span) for span in spans)
        return dict(sorted(found.items()))

    async def _set(
        self, group: str, topic: str, broker: str, at_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        """Set the offsets on one broker of a group without connected members."""
        found: dict[MessageQueue, int] = {}
        for queue in await self._session.subscribe_queues(topic):
            if queue.broker_name != broker:
                continue
            if at_ms == END:
                offset = await self._admin.puller.max_offset(queue)
            else:
                offset = await self._admin.puller.search_offset(queue, at_ms)
            committed = await self._admin.group_offset(group, queue)
            found[queue] = reset_to(offset, -1 if committed is None else committed, force=force)
        await self._admin.commit_group_offsets(group, found)
        return found

    async def _masters(self, topic: str) -> list[tuple[str, str]]:
        """Return name and address of the masters that have a topic."""
        route = await self._session.route(topic)
        masters = [
            (each.broker_name, address) for each in route.broker_datas if (address := each.master())
        ]
        if not masters:
            raise RouteNotFound(topic, "none of its masters is running")
        return masters

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


_ROUTE_VISIBLE_MS: Final = 10_000
_ROUTE_STEP_MS: Final = 20
_MAX_TIME_MS: Final = 2**63 - 1
_INDEX_TIME_UNIT_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker process."""

    cluster: str
    name: str
    broker_id: int
    address: str


class Admin:
    """Operations over an open client session (``Admin(client.session)``).

    All methods raise NotConnected or RequestTimedOut when a server cannot be reached, and
    BrokerRefused when it refuses; each method names its other errors.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.timeout_ms = max(session.config.request_timeout_ms, 5_000)
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
        """Return the broker processes of a broker name, an address or a cluster; of all without.

        Raises NotFound when the name servers know none of that name or cluster.
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
        return parse_properties(response.body.decode())

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
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
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
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=order,
        )
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await asyncio.gather(*(self.call(broker.address, code, header) for broker in masters))
        return await self._await_route(topic, {broker.name for broker in masters}, header)

    async def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Delete a topic on all brokers of a cluster (empty: of all) and on the name servers.

        Raises NotFound for an unknown cluster.
        """
        header = h.Topic(topic=topic)
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        for broker in await self.find_brokers(cluster=cluster):
            await self.call(broker.address, code, header)
        gone = h.DeleteTopicInNamesrv(topic=topic, cluster_name=cluster or None)
        for address in self.session.config.name_servers:
            await self.call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, gone)

    async def list_topics(self) -> list[str]:
        """Return all topics that the name server knows, system topics included, sorted."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        response = await self.ask_name_server(code, None)
        return sorted(parse_json(response.body, TopicList).topic_list)

    async def system_topics(self) -> set[str]:
        """Return the system topics of brokers and name servers."""
        code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        found: set[str] = set()
        for broker in await self.brokers(masters_only=True):
            response = await self.call(broker.address, code, None)
            found.update(parse_json(response.body, TopicList).topic_list)
        response = await self.ask_name_server(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, None)
        return found.union(parse_json(response.body, TopicList).topic_list)

    async def topic_config(self, address: str, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic on one broker; None when the broker lacks the
        topic.
        """
        response = await self.call(address, RequestCode.GET_ALL_TOPIC_CONFIG, None)
        return parse_json(response.body, TopicConfigTable).topic_config_table.get(topic)

    async def topic_route(self, topic: str) -> TopicRoute:
        """Return the route of a topic. Raises RouteNotFound."""
        return await self.session.route(topic)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return minimum and maximum offset of each queue of a topic. Raises RouteNotFound."""
        code = RequestCode.GET_TOPIC_STATS_INFO
        found: dict[MessageQueue, TopicOffset] = {}
        for address in await self.masters_of(topic):
            response = await self.call(address, code, h.Topic(topic=topic))
            found.update(by_queue(parse_json(response.body, TopicStatsRead).offset_table))
        return dict(sorted(found.items()))

    # ------------------------------------------------------------------ groups

    async def update_group(
        self, group: SubscriptionGroupConfig, cluster: str = "", brokers: Iterable[str] = ()
    ) -> None:
        """Create or change a consumer group on all masters of a cluster (empty: of all), or only on
        those named in ``brokers``.

        Raises NotFound for an unknown cluster, or if no such master is registered.
        """
        code, wanted = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, set(brokers)
        masters = await self._masters_in(cluster)
        unknown = sorted(wanted.difference(each.name for each in masters))
        if unknown:
            raise NotFound("broker", unknown[0], "no master with this name is registered")
        for broker in masters:
            if not wanted or broker.name in wanted:
                await self.call(broker.address, code, None, encode_json(group))

    async def delete_group(self, group: str, cluster: str = "") -> None:
        """Delete a consumer group, including its offsets, on all masters of a cluster.

        Raises NotFound for an unknown cluster, or if no master is registered.
        """
        header = h.GroupName(group_name=group, remove_offset=True)
        for broker in await self._masters_in(cluster):
            await self.call(broker.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def knows_group(self, group: str) -> bool:
        """Return whether any broker knows a group: from its settings, its offsets or its
        members.
        """
        for broker in await self.brokers(masters_only=True):
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            response = await self.call(broker.address, code, None)
            table = parse_json(response.body, SubscriptionGroupTable).subscription_group_table
            if group in table:
                return True
            # A broker of Java keeps the offsets of a topic that was deleted.
            response = await self.call(broker.address, RequestCode.GET_ALL_CONSUMER_OFFSET, None)
            offsets = parse_json(response.body, dict[str, Any]).get("offsetTable") or {}
            if any(key.partition("@")[2] == group for key in offsets):
                return True
        if await self.consumer_progress(group):
            return True
        return await self.consumer_connections(group) is not None

    async def require_group(self, group: str) -> None:
        """Raise NotFound for a group that no broker knows."""
        if not await self.knows_group(group):
            raise NotFound("group", group, "no broker knows it: check its name")

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that consume or consumed a topic, sorted. Raises RouteNotFound."""
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        found: set[str] = set()
        for address in await self.masters_of(topic):
            response = await self.call(address, code, h.Topic(topic=topic))
            found.update(parse_json(response.body, GroupList).group_list)
        return sorted(found)

    async def consumer_connections(self, group: str) -> ConsumerConnections | None:
        """Return the connected members of a group; None when there are none."""
        header = h.ConsumerGroup(consumer_group=group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        for broker in await self.brokers(masters_only=True):
            try:
                response = await self.call(broker.address, code, header)
            except BrokerRefused as refusal:
                if refusal.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    continue
                raise
            return parse_json(response.body, ConsumerConnections)
        return None

    async def consumer_progress(
        self, group: str, topic: str | None = None
    ) -> dict[MessageQueue, ConsumeOffset]:
        """Return a group's progress in each queue of one topic or of all.

        The lag of a queue is ``broker_offset - consumer_offset``. The result is empty for a group
        that never consumed.
        """
        code = RequestCode.GET_CONSUME_STATS
        header = h.GetConsumeStats(consumer_group=group, topic=topic)
        found: dict[MessageQueue, ConsumeOffset] = {}
        for broker in await self.brokers(masters_only=True):
            response = await self.call(broker.address, code, header)
            found.update(by_queue(parse_json(response.body, ConsumeStatsRead).offset_table))
        return dict(sorted(found.items()))

    async def group_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the committed offset of a group in each queue of a topic; None where there is
        none.

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
        that are a group's first in a topic.
        """
        firsts = {(queue.broker_name, queue.topic): queue for queue in offsets}
        alone = set(firsts.values())
        for part in (alone, offsets.keys() - alone):
            await asyncio.gather(*(self._commit(group, each, offsets[each]) for each in part))

    # ------------------------------------------------------------------ messages

    async def message_by_id(self, message_id: str, topic: str = "") -> StoredMessage | None:
        """Return the message with an offset id or a unique key; None if it is not found.

        A sender's id (a unique key) can be looked up only with its ``topic``. Both ids look alike,
        so without a topic an id is a sender's if it names no broker of the cluster. Raises
        NotFound for such an id without a topic.
        """
        try:
            place = decode_offset_id(message_id)
        except ValueError:
            place = None
        # The process id in a unique key stands where an offset id has a port.
        if place is not None and 0 < place.port < 65_536:
            host = f"[{place.host}]" if ":" in place.host else place.host
            names = {each.address: each.name for each in await self.brokers()}
            try:
                return await self._at(f"{host}:{place.port}", place.physical_offset, names)
            except BrokerRefused as error:
                if not topic:
                    return None
                log.debug("not_an_offset_id id=%s error=%s", message_id, error)
            except (NotConnected, RequestTimedOut) as error:
                if not topic and f"{host}:{place.port}" in names:
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

    async def _at(
        self, address: str, physical_offset: int, names: Mapping[str, str]
    ) -> StoredMessage | None:
        """Return the message at a place of a broker's log."""
        header = h.ViewMessage(offset=physical_offset)
        response = await self.call(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        records = iter_decode(response.body)
        name = names.get(address, "")
        return next((from_record(record, name) for record in records), None)

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
            # An index entry has the time of its message, rounded down to a second after the first
            # message of its file.
            begin_timestamp=max(0, begin_ms - _INDEX_TIME_UNIT_MS),
            end_timestamp=end_ms,
            unique_key_query=True if unique else None,
        )
        route = await self.topic_route(topic)
        found: list[StoredMessage] = []
        for broker in route.broker_datas:
            address = broker.master()
            if address is None:
                continue
            try:
                response = await self.call(address, RequestCode.QUERY_MESSAGE, header)
            except BrokerRefused as refusal:
                if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                    continue
                raise
            for record in iter_decode(response.body):
                message = from_record(record, broker.broker_name)
                # The index contains only hashes, so compare the text of the key.
                mine = (message.unique_key,) if unique else message.keys
                in_time = begin_ms <= message.store_ms <= end_ms
                if key in mine and message.topic == topic and in_time:
                    found.append(message)
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

    async def masters_of(self, topic: str) -> list[str]:
        """Return the addresses of the masters that have a topic. Raises RouteNotFound."""
        route = await self.topic_route(topic)
        return [address for each in route.broker_datas if (address := each.master())]

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
        """Send a request to one server; ``timeout_ms`` 0 is the usual timeout."""
        return await self.session.remoting.call(
            address, code, header, body, timeout_ms=timeout_ms or self.timeout_ms
        )
