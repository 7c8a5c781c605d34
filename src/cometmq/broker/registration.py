"""The broker makes itself known to its name servers (upstream: BrokerOuterAPI.java).

Every name server of the list has a loop of its own, so one that is dead or slow delays none of the
others. A loop registers at once when topics changed (with a large table ten times a second), asks
every 30 s whether the name server still has the latest, which counts as the heartbeat, and
registers again when not. A name server that failed, or whose connection broke, is tried again
within seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.core.errors import CometError
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, KvTable, RegisterBrokerBody, TopicConfigTable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.fields import from_ext, truth
from cometmq.protocol.registerbody import body_crc32, encode_register_body

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting
    from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)

HEARTBEAT_MS: Final = 30_000
RETRY_MS: Final = 5_000
#: Changes leave together at the most this long, and so that registering takes a tenth of the time:
#: a table of ten topics is sent at once, one of ten thousand ten times a second.
BATCH_MS: Final = 100
REST_PER_COST: Final = 10
TIMEOUT_MS: Final = 6_000
#: Who waits for a new topic to be known waits no longer than this.
ANNOUNCE_TIMEOUT_MS: Final = 1_000
#: A stopping broker waits no longer for a name server to say goodbye.
UNREGISTER_TIMEOUT_MS: Final = 1_000
#: Plain bodies over this leave compressed: a frame holds 16 MiB.
PLAIN_BODY_MAX_BYTES: Final = 4 * 1024 * 1024

_TICK_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """Who this broker is and where others reach it; ``broker_id`` 0 is a master."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str


@dataclass(slots=True)
class _NameServer:
    """What is known of one name server: the version it has from us, None when it has none."""

    address: str
    version: DataVersion | None = None
    due_ms: int = 0
    failing: bool = False
    tried: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def is_through(self, counter: int) -> bool:
        """Whether it has the topics of a version, or cannot be told."""
        return self.failing or (self.version is not None and self.version.counter >= counter)


class Registration:
    """Keeps one broker registered with ``name_servers`` ("host:port" each).

    ``topics`` gives the current topic table, ``on_order_topics`` gets the order configuration
    ("broker:queues;..." by topic) that name servers answer with.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        topics: Callable[[], TopicConfigTable],
        *,
        remoting: Remoting,
        clock: Clock,
        tasks: Tasks,
        filter_servers: Sequence[str] = (),
        on_order_topics: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        self._servers = [
            _NameServer(address) for address in dict.fromkeys(map(str.strip, name_servers))
        ]
        self._topics = topics
        self._remoting = remoting
        self._clock = clock
        self._tasks = tasks
        self._filter_servers = list(filter_servers)
        self._on_order_topics = on_order_topics
        self._place: BrokerPlace | None = None
        self._body: tuple[DataVersion, bool, bytes] | None = None
        self._batching = False
        self._last_batch_ms = clock.monotonic_ms()
        self._cost_ns = 0
        self._loops: list[asyncio.Task[None]] = []
        self._first = asyncio.Event()
        self._progress = asyncio.Event()

    @property
    def registered_with(self) -> list[str]:
        """The name servers that have this broker now."""
        return [server.address for server in self._servers if server.version is not None]

    async def start(self, place: BrokerPlace) -> None:
        """Begin to register; returns once a name server has this broker, or all were tried."""
        self._place = place
        if not self._servers:
            return
        self._remoting.on_close.append(self._connection_lost)
        for server in self._servers:
            server.wake.set()
            self._spawn(self._serve(server, place), f"register with {server.address}")
        self._spawn(self._tick(), "registration heartbeat")
        await self._first.wait()

    def changed(self) -> None:
        """Topics changed: register soon, together with the changes of the moment. A client that
        was told of a new topic asks a name server for it right away, and again only 20 s later."""
        if self._loops and not self._batching:
            self._batching = True
            self._spawn(self._batch(), "registration batch")

    async def announced(self) -> None:
        """Wait until every name server that can be reached has the topics of now, at most 1 s."""
        if not self._loops:
            return
        counter = self._topics().data_version.counter
        try:
            async with asyncio.timeout(ANNOUNCE_TIMEOUT_MS / 1000):
                while not all(server.is_through(counter) for server in self._servers):
                    await self._progress.wait()
        except TimeoutError:
            log.warning("topics not announced in time version=%d", counter)

    async def stop(self) -> None:
        """Stop registering and tell every reachable name server that this broker is gone."""
        loops, self._loops = self._loops, []
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        if self._place is None or not loops:
            return
        self._remoting.on_close.remove(self._connection_lost)
        place = self._place
        await asyncio.gather(
            *(
                self._unregister(server, place)
                for server in self._servers
                if self._remoting.is_connected(server.address)
            )
        )

    # -------------------------------------------------------------------------------- who is due

    def _spawn(self, coro: Coroutine[None, None, None], name: str) -> None:
        self._loops = [task for task in self._loops if not task.done()]
        self._loops.append(self._tasks.spawn(coro, name=name))

    async def _batch(self) -> None:
        rest_ms = min(BATCH_MS, REST_PER_COST * self._cost_ns // 1_000_000)
        wait_ms = self._last_batch_ms + rest_ms - self._clock.monotonic_ms()
        await self._clock.sleep_ms(max(wait_ms, 0))
        self._last_batch_ms = self._clock.monotonic_ms()
        self._batching = False
        for server in self._servers:
            server.wake.set()

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep_ms(_TICK_MS)
            now_ms = self._clock.monotonic_ms()
            for server in self._servers:
                if server.due_ms <= now_ms:
                    server.wake.set()

    def _connection_lost(self, address: str) -> None:
        # The name server forgot this broker with the connection, or restarted without knowing it.
        for server in self._servers:
            if server.address == address and server.version is not None:
                server.version = None
                server.due_ms = 0

    async def _serve(self, server: _NameServer, place: BrokerPlace) -> None:
        while True:
            await server.wake.wait()
            server.wake.clear()
            # Not due again while this attempt runs; its outcome sets the next time.
            server.due_ms = self._clock.monotonic_ms() + HEARTBEAT_MS
            try:
                await self._update(server, place)
            except CometError as error:
                if not server.failing:
                    log.warning("name server failed address=%s reason=%s", server.address, error)
                server.failing = True
                server.version = None
                server.due_ms = self._clock.monotonic_ms() + RETRY_MS
            server.tried = True
            self._progress.set()
            self._progress = asyncio.Event()
            if server.version is not None or all(other.tried for other in self._servers):
                self._first.set()

    # ------------------------------------------------------------------------------- the requests

    async def _update(self, server: _NameServer, place: BrokerPlace) -> None:
        """Bring a name server up to date; nothing but a heartbeat when it is.

        Raises CometError when it cannot be reached or refuses.
        """
        table = self._topics()
        version = table.data_version
        if server.version == version and not await self._is_stale(server, place, version):
            return
        started_ns = self._clock.monotonic_ns()
        compressed, body = self._encoded(table)
        response = await self._remoting.call(
            server.address,
            RequestCode.REGISTER_BROKER,
            h.RegisterBroker(
                broker_name=place.broker_name,
                broker_addr=place.broker_addr,
                cluster_name=place.cluster_name,
                ha_server_addr=place.ha_server_addr,
                broker_id=place.broker_id,
                compressed=compressed,
                body_crc32=body_crc32(body),
            ),
            body,
            timeout_ms=TIMEOUT_MS,
        )
        self._cost_ns = self._clock.monotonic_ns() - started_ns
        if server.version is None:
            log.info("registered name_server=%s broker=%s", server.address, place.broker_name)
        server.version = version
        server.failing = False
        if response.body and self._on_order_topics is not None:
            self._on_order_topics(parse_json(response.body, KvTable).table)

    async def _is_stale(
        self, server: _NameServer, place: BrokerPlace, version: DataVersion
    ) -> bool:
        """Ask whether the name server lacks this version; an answer "no" is the heartbeat."""
        response = await self._remoting.request(
            server.address,
            RequestCode.QUERY_DATA_VERSION,
            _identity(place),
            msgspec.json.encode(version),
            timeout_ms=TIMEOUT_MS,
        )
        if response.code != ResponseCode.SUCCESS:
            return True
        return truth(from_ext(h.QueryDataVersionResponse, response.ext).changed)

    def _encoded(self, table: TopicConfigTable) -> tuple[bool, bytes]:
        """The registration body, encoded once for all name servers."""
        if self._body is None or self._body[0] != table.data_version:
            content = RegisterBrokerBody(table, self._filter_servers)
            body = encode_register_body(content, compressed=False)
            compressed = len(body) > PLAIN_BODY_MAX_BYTES
            if compressed:
                body = encode_register_body(content, compressed=True)
            self._body = (table.data_version, compressed, body)
        return self._body[1:]

    async def _unregister(self, server: _NameServer, place: BrokerPlace) -> None:
        try:
            await self._remoting.call(
                server.address,
                RequestCode.UNREGISTER_BROKER,
                _identity(place),
                timeout_ms=UNREGISTER_TIMEOUT_MS,
            )
        except CometError as error:
            log.warning("not unregistered name_server=%s reason=%s", server.address, error)
        server.version = None


def _identity(place: BrokerPlace) -> h.BrokerIdentity:
    return h.BrokerIdentity(
        place.broker_name, place.broker_addr, place.cluster_name, place.broker_id
    )
