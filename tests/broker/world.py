"""What broker tests stand on: a broker's tables in a directory, and a connection that remembers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from cometmq.broker.acknowledgement import Appender, OutgoingRecord, PutResult
from cometmq.broker.admin import AdminService
from cometmq.broker.config import BrokerConfig
from cometmq.broker.consumers.groups import GroupTable
from cometmq.broker.consumers.members import Members
from cometmq.broker.consumers.offsets import ConsumerOffsets, OffsetHandler
from cometmq.broker.consumers.queuelocks import QueueLockHandler
from cometmq.broker.context import BrokerContext, BrokerTables
from cometmq.broker.hooks import SendHooks
from cometmq.broker.pull.filterdata import FilterTable
from cometmq.broker.scheduled.delaylevels import DelayDelivery, DelayLevels
from cometmq.broker.send.sendback import SendBackHandler
from cometmq.broker.stats import BrokerStats
from cometmq.broker.tables import TableDirectory
from cometmq.broker.topics.table import TopicTable
from cometmq.core.clock import Clock, SystemClock
from cometmq.message.record import Record, iter_decode
from cometmq.net.eventloop import Watchdog
from cometmq.net.limits import ServerLimits
from cometmq.net.peer import Peer
from cometmq.net.resources import MemoryBudget, PeerMemory
from cometmq.net.router import Handler, handlers_of
from cometmq.net.tasks import Tasks
from cometmq.protocol.bodies import ConsumerData, Heartbeat, SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.frame import Reply, Request, Response
from cometmq.protocol.headers import Header
from cometmq.store.config import StoreConfig
from cometmq.store.files import Files
from cometmq.store.messagestore import MessageStore
from cometmq.store.read.reader import ReadStatus
from cometmq.store.recovery.opening import open_store


@dataclass(eq=False)
class RecordingPeer:
    """A connection of a test: what was sent to it, and who wants to hear of its end."""

    address: str = "127.0.0.1:40000"
    host_bytes: bytes = b"\x7f\0\0\x01\0\0\x9c\x40"
    is_local: bool = True
    congested: bool = False
    is_behind: bool = False
    is_checked_alone: bool = False
    closed: bool = False
    sent: list[tuple[int, Header | None]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    #: What the client answers to requests: an answer, or what goes wrong with it.
    answers: dict[int, Response | Exception] = field(default_factory=dict)
    asked: list[tuple[int, Header | None, bytes]] = field(default_factory=list)
    #: Keeps the client from answering until it is set.
    stopped: asyncio.Event | None = None
    #: Bytes that the client has not read.
    buffered_bytes: int = 0
    on_close: list[Callable[[Any], None]] = field(default_factory=list)
    late: asyncio.Queue[Reply] = field(default_factory=asyncio.Queue)
    running_tasks: int = 0
    limits: ServerLimits = field(default_factory=ServerLimits)
    memory: PeerMemory = field(default_factory=lambda: PeerMemory(MemoryBudget(1 << 30)))
    #: Without access control.
    router: Any = field(
        default_factory=lambda: SimpleNamespace(
            access=None, acknowledge=lambda peer, request: peer.reply(request, Reply())
        )
    )

    def reply(self, request: Request[Any], reply: Reply) -> None:
        self.late.put_nowait(reply)

    def send_oneway(self, code: int, header: Header | None, body: bytes = b"") -> None:
        self.sent.append((code, header))
        self.bodies.append(body)

    async def request(
        self, code: int, header: Header | None, body: bytes = b"", *, timeout_ms: int
    ) -> Response:
        self.asked.append((code, header, body))
        if self.stopped is not None:
            await self.stopped.wait()
        answer = self.answers[code]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            callback(self)


def connect(port: int = 40000) -> Peer:
    """A connection from this machine."""
    return cast("Peer", RecordingPeer(address=f"127.0.0.1:{port}"))


def recorded(peer: Peer) -> RecordingPeer:
    """What a connection of a test remembers."""
    return cast("RecordingPeer", peer)


def sent_to(peer: Peer) -> list[tuple[int, Header | None]]:
    """The one-way requests that the broker sent."""
    return recorded(peer).sent


async def answer(peer: Peer, reply: object) -> Reply:
    """What a handler answers, at once, after a while, or later through the connection."""
    if inspect.isawaitable(reply):
        reply = await reply
    if reply is None:
        async with asyncio.timeout(60):
            reply = await cast("RecordingPeer", peer).late.get()
    assert isinstance(reply, Reply)
    return reply


def request(
    code: int,
    header: Header | None = None,
    body: bytes = b"",
    version: int = 407,
    language: str = "JAVA",
) -> Request[Any]:
    """A request as the protocol layer gives it to a handler."""
    return Request(
        code=code, header=header, opaque=1, body=body, version=version, language=language
    )


@dataclass
class Tables:
    """The tables of one broker."""

    config: BrokerConfig
    clock: Clock
    tasks: Tasks
    directory: TableDirectory
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    members: Members

    async def close(self) -> None:
        """Write everything and end all tasks."""
        await self.topics.close()
        await self.groups.close()
        await self.offsets.close()
        await self.tasks.close()


@contextlib.asynccontextmanager
async def open_tables(
    directory: Path,
    config: BrokerConfig | None = None,
    clock: Clock | None = None,
    *,
    files: Files | None = None,
) -> AsyncIterator[Tables]:
    """A broker's tables, loaded from ``directory``; written at the end."""
    config = config or BrokerConfig()
    clock = clock or SystemClock()
    tasks = Tasks()
    place = TableDirectory(str(directory), clock, tasks, files)
    topics = TopicTable(place, config)
    groups = GroupTable(place, config)
    offsets = ConsumerOffsets(place, config)
    topics.load()
    groups.load()
    offsets.load()
    members = Members(topics=topics, groups=groups, clock=clock)
    tables = Tables(config, clock, tasks, place, topics, groups, offsets, members)
    try:
        yield tables
    finally:
        await tables.close()


def context_of(
    tables: Tables, store: MessageStore, appender: Appender, stats: BrokerStats
) -> BrokerContext:
    """The context that a broker makes of its tables and its store."""
    return BrokerContext(
        tables.config,
        tables.clock,
        tables.tasks,
        tables.directory,
        store,
        appender,
        stats,
        BrokerTables(tables.topics, tables.groups, tables.offsets, tables.members),
    )


SMALL_STORE = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=2_000,
    max_hash_slot_num=100,
    max_index_num=1_000,
)
STORE_HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"


@dataclass
class Parts(Tables):
    """A broker's tables over a real store, with everything that answers requests but sockets."""

    store: MessageStore
    appender: Appender
    levels: DelayLevels
    delivery: DelayDelivery
    stats: BrokerStats
    handlers: dict[int, Handler]

    @property
    def context(self) -> BrokerContext:
        """The context that a broker makes of these parts."""
        return context_of(self, self.store, self.appender, self.stats)

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        peer: Peer | None = None,
        version: int = 407,
        language: str = "JAVA",
    ) -> Reply:
        """Call the handler of a code as the router does."""
        asked = request(code, header, body, version, language)
        peer = peer or connect()
        return await answer(peer, self.handlers[code](peer, asked))

    async def join(
        self,
        group: str,
        topic: str,
        *,
        client_id: str = "c",
        language: str = "JAVA",
        version: int = 407,
        model: str = "CLUSTERING",
    ) -> Peer:
        """A consumer comes online; gives its connection."""
        peer = connect()
        data = ConsumerData(
            group, message_model=model, subscription_data_set=(SubscriptionData(topic),)
        )
        body = encode_json(Heartbeat(client_id, (), (data,)))
        await self.ask(
            RequestCode.HEART_BEAT, body=body, peer=peer, version=version, language=language
        )
        return peer

    async def put(
        self, topic: str, body: bytes = b"x", queue_id: int = 0, **properties: str
    ) -> PutResult:
        """Store one message."""
        return await self.appender.put(
            OutgoingRecord(
                topic, queue_id, body, properties, self.clock.wall_ms(), connect().host_bytes
            )
        )

    def read(self, topic: str, queue_id: int = 0) -> list[Record]:
        """Every visible message of a queue."""
        found: list[Record] = []
        offset = self.store.queue(topic, queue_id).min_offset
        while True:
            result = self.store.read(topic, queue_id, offset, 32)
            if result.status is not ReadStatus.FOUND:
                return found
            for chunk in result.chunks:
                found += iter_decode(chunk)
            offset = result.next_offset

    async def close(self) -> None:
        await self.tasks.close()
        self.appender.close()
        await self.delivery.close()
        await super().close()
        self.store.close()


@contextlib.asynccontextmanager
async def open_parts(
    directory: Path,
    config: BrokerConfig | None = None,
    clock: Clock | None = None,
    *,
    store_config: StoreConfig = SMALL_STORE,
    files: Files | None = None,
) -> AsyncIterator[Parts]:
    """A broker's parts on the store in ``directory``; closed in order at the end."""
    config = config or BrokerConfig()
    clock = clock or SystemClock()
    store_config = replace(
        store_config,
        store_path_root_dir=str(directory),
        message_delay_level=config.message_delay_level,
    )
    store = open_store(store_config, clock, files)
    store.store_host = STORE_HOST
    async with open_tables(directory / "config", config, clock, files=files) as tables:
        appender = Appender(store, clock=clock, store_host=STORE_HOST, watchdog=Watchdog(clock))
        levels = DelayLevels(config.message_delay_level)
        stats = BrokerStats(clock, store.dispatcher)
        delivery = DelayDelivery(context_of(tables, store, appender, stats), levels)
        tables.offsets.clamp(store)
        delivery.load()
        parts = Parts(
            **{name: getattr(tables, name) for name in Tables.__dataclass_fields__},
            store=store,
            appender=appender,
            levels=levels,
            delivery=delivery,
            stats=stats,
            handlers={},
        )
        parts.handlers.update(make_handlers(parts))
        try:
            yield parts
        finally:
            await parts.close()


def make_handlers(parts: Parts) -> dict[int, Handler]:
    """The handlers of everything but sends and pulls."""
    context = parts.context
    return handlers_of(
        (
            parts.members,
            QueueLockHandler(parts.directory),
            OffsetHandler(
                config=parts.config,
                offsets=parts.offsets,
                topics=parts.topics,
                members=parts.members,
                store=parts.store,
            ),
            SendBackHandler(context, levels=parts.levels, hooks=SendHooks()),
            AdminService(
                context,
                delay=parts.delivery,
                access=None,
                filters=FilterTable(parts.directory, parts.config),
                described=(),
            ),
        )
    )
