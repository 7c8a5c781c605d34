"""Registration of the broker with its name servers (upstream: BrokerOuterAPI.java).

Each name server has a loop of its own, so a dead or slow one delays none of the others. A loop
registers changed topics at once. Every 30 s it asks whether the name server still has the latest
version, which counts as the heartbeat; if not, it registers all topics again.

It also asks before it registers changes, because a name server may have forgotten the other topics:
a registration by this broker's former process can arrive late, and then the connection that carried
it ends. A name server that has the new version accepts no further topics of that version.

After a failure or a broken connection the loop tries again within seconds and registers all topics.
A name server keeps topics that a registration does not list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from cometmq.core.clock import join_in_slices
from cometmq.core.errors import CometError
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, KvTable, TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.fields import from_ext, truth
from cometmq.protocol.registerbody import body_crc32, register_body_pieces

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting
    from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)

HEARTBEAT_MS: Final = 30_000
RETRY_MS: Final = 5_000
#: After a registration the next one waits as long as the last one took, at most this long. Changes
#: made meanwhile are sent together.
REST_MAX_MS: Final = 100
TIMEOUT_MS: Final = 6_000
#: Longest wait for name servers to learn of a new topic.
ANNOUNCE_TIMEOUT_MS: Final = 1_000
#: Longest wait of a stopping broker for a name server's answer.
UNREGISTER_TIMEOUT_MS: Final = 1_000
#: For this long after a move, heartbeats come at the shorter interval below: the broker that had
#: the address before may still unregister, and take the registration with it.
MOVED_MS: Final = 60_000
MOVED_HEARTBEAT_MS: Final = 1_000
#: A broker id that no broker has: to unregister it removes only the address from a name server.
_NOBODY: Final = 2**31 - 1
#: Bodies longer than this are compressed, because a frame holds 16 MiB.
PLAIN_BODY_MAX_BYTES: Final = 4 * 1024 * 1024

_TICK_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """Name and addresses under which this broker registers; ``broker_id`` 0 is a master."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str


@dataclass(slots=True)
class _NameServer:
    """State of one name server: the broker address it was sent last, the version it holds of this
    broker's topics (None if it holds none), and the number of lost connections. The next heartbeat
    is due at ``due_ms`` (monotonic)."""

    address: str
    reported: str = ""
    version: DataVersion | None = None
    losses: int = 0
    due_ms: int = 0
    failing: bool = False
    tried: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.Task[None] | None = None

    def is_through(self, counter: int) -> bool:
        """Decide whether there is nothing to wait for: it has the topics of version ``counter``,
        or is failing."""
        return self.failing or (self.version is not None and self.version.counter >= counter)


class RegisteredTopics(Protocol):
    """Topics of a broker as name servers may see them."""

    @property
    def data_version(self) -> DataVersion:
        """Version that changes with every change of the topics."""
        ...

    def registered(self, since: DataVersion | None = None) -> Mapping[str, TopicConfig]:
        """Return at least the topics that changed after ``since``; all topics if that is None."""
        ...


class _NoTopics:
    """The topics before the start."""

    data_version = DataVersion()

    def registered(self, since: DataVersion | None = None) -> Mapping[str, TopicConfig]:
        return {}


class Registration:
    """Keeps one broker registered with ``name_servers`` ("host:port" each); :meth:`use` replaces
    them.

    ``on_order_topics`` gets the order configuration ("broker:queues;..." by topic) from the name
    servers' answers. A slave registers in full each time, because only the answer to a
    registration carries its master's addresses.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        remoting: Remoting,
        clock: Clock,
        tasks: Tasks,
        filter_servers: Sequence[str] = (),
        on_order_topics: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        self._servers: list[_NameServer] = []
        self._topics: RegisteredTopics = _NoTopics()
        self._remoting = remoting
        self._clock = clock
        self._tasks = tasks
        self._filter_servers = list(filter_servers)
        self._on_order_topics = on_order_topics
        self._on_master: Callable[[str, str], None] | None = None
        self._place: BrokerPlace | None = None
        self._batching = False
        self._rest_until_ms = clock.monotonic_ms()
        self._hasty_until_ms = clock.monotonic_ms()
        self._loops: list[asyncio.Task[None]] = []
        #: Set once one name server has this broker, or all were tried.
        self._first = asyncio.Event()
        #: Set after each attempt, and replaced by a new event.
        self._progress = asyncio.Event()
        self.use(name_servers)

    @property
    def name_servers(self) -> list[str]:
        """Addresses of the name servers that this broker registers with."""
        return [server.address for server in self._servers]

    @property
    def registered_with(self) -> list[str]:
        """Addresses of the name servers that hold a registration of this broker."""
        return [server.address for server in self._servers if server.version is not None]

    async def start(
        self,
        place: BrokerPlace,
        topics: RegisteredTopics,
        on_master: Callable[[str, str], None] | None = None,
    ) -> None:
        """Begin to register ``topics``; return once one name server has this broker, or all were
        tried.

        ``on_master`` is called on a slave, with the master's replication address and its broker
        address.
        """
        self._place, self._topics, self._on_master = place, topics, on_master
        self._begin()
        if self._servers:
            await self._first.wait()

    def use(self, name_servers: Sequence[str]) -> None:
        """Register with these name servers from now on, and not with others any more.

        A name server that is left out gets no unregistration, because clients may still ask it. It
        removes this broker after missing its heartbeats.
        """
        wanted = dict.fromkeys(map(str.strip, name_servers))
        known = {server.address: server for server in self._servers}
        self._servers = [known[each] if each in known else _NameServer(each) for each in wanted]
        for address, server in known.items():
            if address not in wanted and server.loop is not None:
                server.loop.cancel()
        self._begin()
        # Callers that wait for a name server that is left out must not wait any longer.
        self._wake_waiting()

    def _begin(self) -> None:
        """Begin with the name servers that have no loop yet, once the broker has its place."""
        if self._place is None or not self._servers:
            return
        if not self._loops:
            self._remoting.on_close.append(self._connection_lost)
            self._spawn(self._tick(), "registration heartbeat")
        for server in self._servers:
            if server.loop is None:
                server.wake.set()
                name = f"register with {server.address}"
                server.loop = self._spawn(self._serve(server), name)

    def changed(self) -> None:
        """Schedule the registration of changed topics, together with other changes of the moment.

        It must happen soon: a client that learns of a new topic asks a name server at once, and
        then not again for 20 s.
        """
        if self._loops and not self._batching:
            self._batching = True
            self._spawn(self._batch(), "registration batch")

    async def announced(self) -> None:
        """Wait until every reachable name server has the current topics, at most 1 s."""
        if not self._loops:
            return
        counter = self._topics.data_version.counter
        try:
            async with asyncio.timeout(ANNOUNCE_TIMEOUT_MS / 1000):
                while not all(server.is_through(counter) for server in self._servers):
                    await self._progress.wait()
        except TimeoutError:
            log.warning("topics not announced in time version=%d", counter)

    async def move(self, place: BrokerPlace) -> None:
        """Register as ``place``, and unregister the former address. Return once every reachable
        name server has the new one, or after 1 s."""
        self._place = place
        self._hasty_until_ms = self._clock.monotonic_ms() + MOVED_MS
        for server in self._servers:
            server.version, server.due_ms = None, 0
            server.wake.set()
        await self.announced()

    async def stop(self) -> None:
        """Stop registering, and unregister this broker at every reachable name server."""
        loops, self._loops = self._loops, []
        place, self._place = self._place, None
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        if place is None or not loops:
            return
        self._remoting.on_close.remove(self._connection_lost)
        await asyncio.gather(
            *(
                self._unregister(server, place)
                for server in self._servers
                if self._remoting.is_connected(server.address)
            )
        )

    # ------------------------------------------------------------------------ loops and due times

    def _spawn(self, coro: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        self._loops = [task for task in self._loops if not task.done()]
        task = self._tasks.spawn(coro, name=name)
        self._loops.append(task)
        return task

    async def _batch(self) -> None:
        await self._clock.sleep_ms(max(self._rest_until_ms - self._clock.monotonic_ms(), 0))
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
        # The name server dropped this broker with the connection, or restarted and does not know
        # it.
        for server in self._servers:
            if server.address == address:
                server.losses += 1
                if server.version is not None:
                    server.version = None
                    server.due_ms = 0

    async def _serve(self, server: _NameServer) -> None:
        while True:
            await server.wake.wait()
            server.wake.clear()
            place, now_ms = self._place, self._clock.monotonic_ms()
            assert place is not None
            # Set before the attempt, so that it is not due again meanwhile; the outcome may change
            # it.
            is_hasty = now_ms < self._hasty_until_ms
            server.due_ms = now_ms + (MOVED_HEARTBEAT_MS if is_hasty else HEARTBEAT_MS)
            try:
                await self._update(server, place)
            except Exception as error:  # the loop must not end: clients would not find the broker
                is_known = isinstance(error, CometError)
                if not server.failing or not is_known:
                    log.warning(
                        "name server failed address=%s reason=%s",
                        server.address, error, exc_info=not is_known,
                    )  # fmt: skip
                server.failing = True
                server.version = None
                server.due_ms = self._clock.monotonic_ms() + RETRY_MS
            server.tried = True
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        """Have :meth:`start` and :meth:`announced` look again at the name servers."""
        self._progress.set()
        self._progress = asyncio.Event()
        servers = self._servers
        if any(each.version is not None for each in servers) or all(each.tried for each in servers):
            self._first.set()

    # ------------------------------------------------------------------------------- the requests

    async def _update(self, server: _NameServer, place: BrokerPlace) -> None:
        """Bring a name server up to date; send only a heartbeat if it already is.

        Raise CometError if it cannot be reached or refuses.
        """
        known = None if place.broker_id else server.version
        if known is not None and await self._is_stale(server, place, known):
            known = None
        elif known == self._topics.data_version and known is not None:
            return
        started_ms, losses = self._clock.monotonic_ms(), server.losses
        version = self._topics.data_version
        compressed, body = await self._encoded(version, known)
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
        now_ms = self._clock.monotonic_ms()
        self._rest_until_ms = now_ms + min(now_ms - started_ms, REST_MAX_MS)
        server.failing = False
        former, server.reported = server.reported, place.broker_addr
        if former not in ("", place.broker_addr):
            # Only after the new registration: otherwise the broker's name would be without a master
            # for a moment.
            gone = replace(place, broker_id=_NOBODY, broker_addr=former)
            await self._unregister(server, gone)
        if self._place is not place or server.losses != losses:
            # The place changed during the request, or the connection broke: the name server may not
            # hold this registration.
            server.version, server.due_ms = None, 0
            return
        if server.version is None:
            log.info("registered name_server=%s broker=%s", server.address, place.broker_name)
        server.version = version
        if place.broker_id and self._on_master is not None:
            answer = from_ext(h.RegisterBrokerResponse, response.ext)
            if answer.ha_server_addr and answer.master_addr:
                self._on_master(answer.ha_server_addr, answer.master_addr)
            else:
                # A master may register any moment.
                server.due_ms = now_ms + RETRY_MS
        if response.body and self._on_order_topics is not None:
            self._on_order_topics(parse_json(response.body, KvTable).table)

    async def _is_stale(
        self, server: _NameServer, place: BrokerPlace, version: DataVersion
    ) -> bool:
        """Ask whether the name server lacks this version. The request counts as the heartbeat."""
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

    async def _encoded(self, version: DataVersion, known: DataVersion | None) -> tuple[bool, bytes]:
        """Encode a registration for a name server that holds version ``known``; return whether the
        body is compressed, and the body."""
        topics = self._topics.registered(known)
        for compressed in (False, True):
            pieces = register_body_pieces(
                version, topics, self._filter_servers, compressed=compressed
            )
            body = await join_in_slices(pieces, self._clock)
            if len(body) <= PLAIN_BODY_MAX_BYTES:
                break
        return compressed, body

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
