"""A name server and brokers for tests of the client, kept in memory and obedient.

They hold messages, offsets, members and locks as real ones do, deliver retries at once, and can be
told to fail. What a real broker does is tested against real brokers; this shows what the client
does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cometmq.client.config import ClientConfig
from cometmq.client.session import Session
from cometmq.message import batch, properties
from cometmq.message.ids import encode_offset_id, pack_host
from cometmq.message.record import Record, decode_one, pack
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    BrokerData,
    ConsumerIds,
    Heartbeat,
    QueueData,
    QueueKey,
    QueueLockRequest,
    QueueLockResponse,
    TopicRoute,
)
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.frame import Request
from tests.client.scripted import Answer, ScriptedConnection, ScriptedPeer

Queue = tuple[str, int]

#: Marks a held pull that is looked at again: it commits no offset a second time.
_WOKEN = "woken"


class FakeCluster:
    """One name server, brokers ``broker-0``, ``broker-1``, ..."""

    def __init__(self) -> None:
        self.namesrv = ScriptedPeer()
        self.brokers: list[FakeBroker] = []
        #: Queues of each topic on every broker.
        self.topics: dict[str, int] = {}
        self.order_confs: dict[str, str] = {}
        self.namesrv.on(Code.GET_ROUTEINFO_BY_TOPIC, self._route)

    def route(self, topic: str, count: int) -> TopicRoute:
        up = [broker for broker in self.brokers if broker.registered]
        return TopicRoute(
            [BrokerData(each.name, {"0": each.peer.address}, "c") for each in up],
            [QueueData(each.name, count, count, 6) for each in up],
            {},
            self.order_confs.get(topic),
        )

    def _route(self, request: Request[Any]) -> Answer:
        topic = request.header.topic
        if topic not in self.topics:
            return Answer(17, remark=f"No topic route info for {topic}")
        return Answer(body=encode_json(self.route(topic, self.topics[topic])))

    def create(self, topic: str, queues: int = 4) -> None:
        self.topics[topic] = queues


class FakeBroker:
    """One broker of a cluster."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.registered = True
        self.peer = ScriptedPeer()
        self.queues: dict[Queue, list[bytes]] = defaultdict(list)
        self.first: dict[Queue, int] = defaultdict(int)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[str, ScriptedConnection]] = defaultdict(dict)
        self.locks: dict[QueueKey, str] = {}
        self.heartbeats: list[Heartbeat] = []
        self._parked: dict[Queue, list[tuple[ScriptedConnection, Request[Any]]]] = defaultdict(list)
        on = self.peer.on
        on(Code.SEND_MESSAGE_V2, self._send)
        on(Code.SEND_BATCH_MESSAGE, self._send_batch)
        on(Code.PULL_MESSAGE, self._pull)
        on(Code.HEART_BEAT, self._heartbeat)
        on(Code.UNREGISTER_CLIENT, self._unregister)
        on(Code.GET_CONSUMER_LIST_BY_GROUP, self._member_ids)
        on(Code.QUERY_CONSUMER_OFFSET, self._query_offset)
        on(Code.UPDATE_CONSUMER_OFFSET, self._update_offset)
        on(Code.CONSUMER_SEND_MSG_BACK, self._send_back)
        on(Code.LOCK_BATCH_MQ, self._lock)
        on(Code.UNLOCK_BATCH_MQ, self._unlock)
        on(Code.GET_MAX_OFFSET, self._max_offset)
        on(Code.GET_MIN_OFFSET, self._min_offset)
        on(Code.SEARCH_OFFSET_BY_TIMESTAMP, lambda r: Answer(ext={"offset": "3"}))

    def end(self, queue: Queue) -> int:
        return self.first[queue] + len(self.queues[queue])

    def put(
        self,
        topic: str,
        queue_id: int = 0,
        body: bytes = b"",
        text: str = "",
        *,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        store_ms: int = 2,
    ) -> str:
        """Store a message; gives its offset id and wakes who waits for it."""
        queue = topic, queue_id
        place = sum(map(len, self.queues.values()))
        host = pack_host("127.0.0.1", self.peer.port)
        record = Record(
            size_bytes=0,
            body_crc=0,
            queue_id=queue_id,
            flag=0,
            queue_offset=self.end(queue),
            physical_offset=place,
            sys_flag=sys_flag,
            born_ms=1,
            born_host=host,
            store_ms=store_ms,
            store_host=host,
            reconsume_times=reconsume_times,
            prepared_offset=0,
            body=body,
            topic=topic,
            properties=text.encode(),
        )
        self.queues[queue].append(pack(record))
        for connection, request in self._parked.pop(queue, []):
            if not connection.transport.is_closing():
                request.remark = _WOKEN
                connection.answer(request)
        return encode_offset_id(host, place)

    def stored(self, topic: str) -> list[Record]:
        """All messages of a topic, queue by queue."""
        return [
            decode_one(raw, 0, len(raw))
            for (name, _), records in sorted(self.queues.items())
            if name == topic
            for raw in records
        ]

    def offset(self, group: str, topic: str, queue_id: int = 0) -> int | None:
        return self.offsets.get((group, topic, queue_id))

    def _send(self, request: Request[Any]) -> Answer:
        header = request.header
        offset = self.end((header.topic, header.queue_id))
        key = self.put(
            header.topic,
            header.queue_id,
            request.body,
            header.properties or "",
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )
        answer = h.SendMessageResponse(msg_id=key, queue_id=header.queue_id, queue_offset=offset)
        return Answer(header=answer)

    def _send_batch(self, request: Request[Any]) -> Answer:
        header = request.header
        offset = self.end((header.topic, header.queue_id))
        keys = [
            self.put(
                header.topic,
                header.queue_id,
                entry.body,
                properties.joined(entry.properties, (header.properties or "").encode()).decode(),
            )
            for entry in batch.split(request.body)
        ]
        answer = h.SendMessageResponse(
            msg_id=",".join(keys), queue_id=header.queue_id, queue_offset=offset
        )
        return Answer(header=answer)

    def _pull(self, request: Request[Any]) -> Answer | None:
        header = request.header
        queue = header.topic, header.queue_id
        if header.sys_flag & 1 and request.remark != _WOKEN:
            self.offsets[header.consumer_group, *queue] = header.commit_offset
        first, end, offset = self.first[queue], self.end(queue), header.queue_offset
        if offset < first or offset > end:
            return self._pulled(queue, 21, first if offset < first else end)
        found = self.queues[queue][offset - first :][: header.max_msg_nums]
        if found:
            return self._pulled(queue, 0, offset + len(found), b"".join(found))
        if header.sys_flag & 2:
            self._parked[queue].append((self.peer.answering, request))
            return None
        return self._pulled(queue, 19, offset)

    def _pulled(self, queue: Queue, code: int, offset: int, body: bytes = b"") -> Answer:
        header = h.PullMessageResponse(
            suggest_which_broker_id=0,
            next_begin_offset=offset,
            min_offset=self.first[queue],
            max_offset=self.end(queue),
        )
        return Answer(code, header, body)

    def _heartbeat(self, request: Request[Any]) -> Answer:
        beat = parse_json(request.body, Heartbeat)
        self.heartbeats.append(beat)
        for data in beat.consumer_data_set:
            members = self.members[data.group_name]
            if data.message_model == "CLUSTERING":
                self.cluster.create(f"%RETRY%{data.group_name}", 1)
            if beat.client_id not in members:
                members[beat.client_id] = self.peer.answering
                self.notify(data.group_name)
        return Answer()

    def notify(self, group: str) -> None:
        """Tell all members that the group changed."""
        for connection in self.members[group].values():
            connection.tell(Code.NOTIFY_CONSUMER_IDS_CHANGED, h.ConsumerGroup(consumer_group=group))

    def _unregister(self, request: Request[Any]) -> Answer:
        group = request.header.consumer_group
        if group and self.members[group].pop(request.header.client_id, None):
            self.notify(group)
        return Answer()

    def _member_ids(self, request: Request[Any]) -> Answer:
        ids = sorted(
            client_id
            for client_id, connection in self.members[request.header.consumer_group].items()
            if not connection.transport.is_closing()
        )
        return Answer(body=encode_json(ConsumerIds(ids))) if ids else Answer(1, remark="nobody")

    def _query_offset(self, request: Request[Any]) -> Answer:
        header = request.header
        offset = self.offset(header.consumer_group, header.topic, header.queue_id)
        return Answer(22) if offset is None else Answer(ext={"offset": str(offset)})

    def _update_offset(self, request: Request[Any]) -> Answer:
        header = request.header
        key = header.consumer_group, header.topic, header.queue_id
        self.offsets[key] = header.commit_offset
        return Answer()

    def _send_back(self, request: Request[Any]) -> Answer:
        header = request.header
        every = [raw for records in self.queues.values() for raw in records]
        record = next(
            record
            for raw in every
            if (record := decode_one(raw, 0, len(raw))).physical_offset == header.offset
        )
        pairs = properties.decode(record.properties)
        pairs.setdefault(properties.RETRY_TOPIC, record.topic)
        prefix = "%RETRY%"
        if header.delay_level < 0 or record.reconsume_times >= header.max_reconsume_times:
            prefix = "%DLQ%"
        self.put(
            prefix + header.group,
            0,
            record.body,
            properties.encode_text(pairs),
            reconsume_times=record.reconsume_times + 1,
        )
        return Answer()

    def _lock(self, request: Request[Any]) -> Answer:
        wanted = parse_json(request.body, QueueLockRequest)
        granted = [
            key
            for key in wanted.mq_set
            if self.locks.setdefault(key, wanted.client_id) == wanted.client_id
        ]
        return Answer(body=encode_json(QueueLockResponse(granted)))

    def _unlock(self, request: Request[Any]) -> Answer:
        wanted = parse_json(request.body, QueueLockRequest)
        for key in wanted.mq_set:
            if self.locks.get(key) == wanted.client_id:
                del self.locks[key]
        return Answer()

    def _max_offset(self, request: Request[Any]) -> Answer:
        queue = request.header.topic, request.header.queue_id
        return Answer(header=h.QueueOffsetResponse(offset=self.end(queue)))

    def _min_offset(self, request: Request[Any]) -> Answer:
        queue = request.header.topic, request.header.queue_id
        return Answer(header=h.QueueOffsetResponse(offset=self.first[queue]))


@asynccontextmanager
async def fake_cluster(brokers: int = 1) -> AsyncIterator[FakeCluster]:
    """A cluster for one test."""
    cluster = FakeCluster()
    await cluster.namesrv.listen()
    try:
        for number in range(brokers):
            broker = FakeBroker(cluster, f"broker-{number}")
            cluster.brokers.append(broker)
            await broker.peer.listen()
        yield cluster
    finally:
        for broker in cluster.brokers:
            await broker.peer.close()
        await cluster.namesrv.close()


def quick_config(cluster: FakeCluster, **changes: Any) -> ClientConfig:
    """Settings with short periods and pauses."""
    settings: dict[str, Any] = {
        "route_poll_interval_ms": 50,
        "heartbeat_interval_ms": 50,
        "rebalance_interval_ms": 50,
        "offset_persist_interval_ms": 20,
        "lock_renewal_interval_ms": 50,
        "pull_error_pause_ms": 20,
        "pull_flow_pause_ms": 5,
        "ordered_retry_pause_ms": 5,
        "local_retry_pause_ms": 5,
        **changes,
    }
    return ClientConfig((cluster.namesrv.address,), **settings)


@asynccontextmanager
async def open_session(cluster: FakeCluster, **changes: Any) -> AsyncIterator[Session]:
    """An open session on a cluster."""
    async with Session(quick_config(cluster, **changes)) as session:
        yield session
