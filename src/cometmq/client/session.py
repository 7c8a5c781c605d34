"""State shared by all producers and consumers of one client: connections, routes, heartbeats, id.

Heartbeats inform brokers of the client's groups. They are sent every 30 s, and at once when a group
is joined or a route contains a new broker. Routes are polled every 30 s; known routes stay in use
while no name server responds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.client.outages import Outages
from cometmq.client.routes import (
    KnownTopic,
    NameServers,
    RouteTable,
    auto_create_route,
    moved_route,
    pull_address,
)
from cometmq.core.clock import Clock, SystemClock
from cometmq.core.errors import (
    AlreadyInUse,
    BrokerRefused,
    ClientError,
    NotConnected,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.message.ids import UniqueKeys
from cometmq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX, Namespace
from cometmq.net.client import Remoting, split_address
from cometmq.net.tasks import Tasks, together
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import MASTER_ID, ConsumerData, Heartbeat, ProducerData, TopicRoute
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.client.config import ClientConfig
    from cometmq.client.routes import Brokers
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.frame import Reply, Request, Response
    from cometmq.protocol.headers import Header

log = logging.getLogger(__name__)


def own_ip(name_server: str) -> str:
    """Return this machine's IP address on the way to a name server. No packet is sent.

    For a host name it is the address on the default route, because resolving the name would block.
    """
    host, _ = split_address(name_server)
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        host, family = ("127.0.0.1" if host == "localhost" else "192.0.2.1"), socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


#: Time for which a failed address is avoided.
AVOID_MS: Final = 10_000


class Replicas:
    """Chooses among the brokers that share a name, for one session."""

    __slots__ = ("_avoided", "_refreshing", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._avoided: dict[str, int] = {}
        self._refreshing: set[str] = set()

    def to_pull_from(self, broker_name: str, suggested_id: int) -> tuple[int, str] | None:
        """Return the broker id and address for a pull; None if no known route has the broker."""
        return pull_address(self._reachable(broker_name), suggested_id)

    async def any_of(self, queue: MessageQueue) -> str:
        """Return the address to query about a queue. Raises RouteNotFound or NotConnected.

        It is that of the queue's master, or of another broker of its name while the master is
        avoided.
        """
        found = self.to_pull_from(queue.broker_name, MASTER_ID)
        return found[1] if found is not None else await self._session.master_of(queue)

    async def call(self, queue: MessageQueue, code: RequestCode, header: Header | None) -> Response:
        """Send a request as :meth:`ask` does; return only the response."""
        address, response = await self.ask(queue, code, header)
        self._session.outages.answered(address, code, queue.topic)
        return response

    async def ask(
        self, queue: MessageQueue, code: RequestCode, header: Header | None, expected: int = 0
    ) -> tuple[str, Response]:
        """Send a request to a broker that has a queue; return its address and its response.

        The response has the code SUCCESS or ``expected``. If a broker cannot be reached, another
        one is tried; the call fails if the same one fails again or no other is left. Raises
        RouteNotFound, NotConnected, RequestTimedOut, and BrokerRefused for any other code.
        """
        failed: set[str] = set()
        timeout_ms = self._session.config.request_timeout_ms
        while True:
            address = await self.any_of(queue)
            try:
                remoting = self._session.remoting
                response = await remoting.request(address, code, header, timeout_ms=timeout_ms)
            except (NotConnected, RequestTimedOut):
                self.failed(address, queue.topic)
                if address in failed or not self._has_other(queue.broker_name, address):
                    raise
                failed.add(address)
                continue
            if response.code not in (ResponseCode.SUCCESS, expected):
                raise BrokerRefused(address, code, response.code, response.remark or "")
            return address, response

    def failed(self, address: str, topic: str) -> None:
        """Avoid a failed address for AVOID_MS, and fetch the topic's route again."""
        self._avoided[address] = self._session.clock.monotonic_ms() + AVOID_MS
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._session.tasks.spawn(self._refresh(topic), name=f"refresh {topic}")

    async def _refresh(self, topic: str) -> None:
        try:
            await self._session.refresh(topic)
        finally:
            self._refreshing.discard(topic)

    def _reachable(self, broker_name: str) -> Mapping[int, str]:
        ids = self._session.brokers_of(broker_name)
        if not self._avoided:
            return ids
        now_ms = self._session.clock.monotonic_ms()
        self._avoided = {at: until for at, until in self._avoided.items() if until > now_ms}
        return {key: at for key, at in ids.items() if at not in self._avoided} or ids

    def _has_other(self, broker_name: str, address: str) -> bool:
        return any(at != address for at in self._reachable(broker_name).values())


_UNREGISTER_TIMEOUT_MS: Final = 1_000
#: Minimum interval between requests for the default topic's route. While no broker is registered,
#: every topic is unknown, and each would cause such a request.
_DEFAULT_AGAIN_MS: Final = 1_000


class Member(Protocol):
    """Consumer, as seen by its session."""

    group: str

    def describe(self) -> ConsumerData:
        """Return the group's entry in heartbeats."""
        ...

    def topics(self) -> frozenset[str]:
        """Return the topics whose routes the consumer needs."""
        ...

    def rebalance_soon(self) -> None:
        """Rebalance at once, because the group or the queues of its topics changed."""
        ...


class Session:
    """Session of one client. Call :meth:`start`, or use it as an async context manager.

    Tests pass a virtual ``clock``.
    """

    def __init__(self, config: ClientConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.tasks = Tasks()
        self.namespace = Namespace(config.namespace)
        self.ip = own_ip(config.name_servers[0])
        self.client_id = config.client_id or f"{self.ip}@{os.getpid()}#{random.getrandbits(48)}"
        self.unique_keys = UniqueKeys(
            socket.inet_pton(socket.AF_INET6 if ":" in self.ip else socket.AF_INET, self.ip),
            os.getpid(),
            random.getrandbits(32),
        )
        self.remoting = Remoting(
            clock=self.clock,
            tasks=self.tasks,
            options=config.connect,
            on_request={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._on_members_changed},
        )
        self.outages = Outages(self.clock)
        self.name_servers = NameServers(config, self.remoting, self.outages)
        self.replicas = Replicas(self)
        self.members: dict[str, Member] = {}
        self._routes = RouteTable(config.route_expiry_ms)
        self._producer_groups: set[str] = set()
        self._introduced: set[str] = set()
        self._held_topics: set[str] = set()
        self._default_due_ms = 0
        self._heartbeat_wanted = asyncio.Event()
        self._greeted: set[str] = set()
        #: Errors of brokers that refused the last heartbeat, by address.
        self.refused_heartbeats: dict[str, BrokerRefused] = {}
        self._started = False
        #: True once all tasks and connections have ended.
        self.has_ended = False

    async def __aenter__(self) -> Session:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def start(self) -> None:
        """Start to poll routes and send heartbeats.

        Connections are made when they are first needed.
        """
        if not self._started:
            self._started = True
            self.tasks.spawn(self._poll_routes(), name="route poll")
            self.tasks.spawn(self._send_heartbeats(), name="heartbeats")

    async def close(self, *, unregister: bool = True) -> None:
        """Unregister this client from the brokers, then close every connection.

        If the call is cancelled, tasks and connections are closed nevertheless.
        """
        try:
            if unregister:
                await self._leave_all()
        finally:
            try:
                # Before the connections: a heartbeat on a closed one would be logged as failed.
                await self.tasks.close()
            finally:
                await self.remoting.close()
                self.has_ended = True

    async def _leave_all(self) -> None:
        await asyncio.gather(
            *(
                self._leave(address, group, "")
                for address in self._addresses()
                for group in sorted(self._producer_groups)
            ),
        )

    # ------------------------------------------------------------------ routes

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of ``topic`` that may be written. Raises RouteNotFound.

        For a topic that does not exist yet, return the queues that its first message will create.
        """
        known = self._routes.get(topic, self.clock.monotonic_ms())
        if known is None or not known.publish:
            known = await self._learn(topic, for_sending=True)
        if not known.publish:
            raise RouteNotFound(topic, "none of its queues is writable, or no master is running")
        return known.publish

    def known_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the result of :meth:`publish_queues` from the known routes.

        Return an empty tuple if the route must be fetched.
        """
        known = self._routes.get(topic, self.clock.monotonic_ms())
        return () if known is None else known.publish

    def publish_route(self, topic: str, now_ms: int) -> tuple[tuple[MessageQueue, ...], Brokers]:
        """Return the result of :meth:`known_publish_queues`, and the addresses of known brokers.

        A changed value is another object, so callers may compare identities.
        """
        known = self._routes.get(topic, now_ms)
        return () if known is None else known.publish, self._routes.brokers

    async def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of ``topic`` that may be read, sorted. Raises RouteNotFound."""
        known = self._routes.get(topic, self.clock.monotonic_ms())
        if known is None or known.guessed:
            known = await self._learn(topic, for_sending=False)
        return known.subscribe

    async def route(self, topic: str) -> TopicRoute:
        """Fetch the route of ``topic`` and return it. Raises RouteNotFound."""
        return (await self._learn(topic, for_sending=False)).route

    def master_address(self, broker_name: str) -> str | None:
        """Return the address of the master of ``broker_name``; None if no known route has one."""
        return self._routes.brokers.get(broker_name, {}).get(MASTER_ID)

    async def master_of(self, queue: MessageQueue) -> str:
        """Return the address of a queue's master; fetch the route if it is not known.

        Raises RouteNotFound or NotConnected.
        """
        address = self.master_address(queue.broker_name)
        if address is None:
            await self._learn(queue.topic, for_sending=False)
            address = self.master_address(queue.broker_name)
        if address is None:
            raise NotConnected(queue.broker_name, "no route contains a master of this broker")
        return address

    def brokers_of(self, broker_name: str) -> Mapping[int, str]:
        """Return broker addresses by broker id for a broker name, from the known routes."""
        return self._routes.brokers.get(broker_name, {})

    async def refresh(self, topic: str) -> None:
        """Fetch the route of ``topic`` again. If that fails, the known route stays in use.

        If the name servers do not know the topic, only its brokers' addresses are updated.
        """
        result = await self.name_servers.route(topic)
        if isinstance(result, TopicRoute):
            self._put(topic, result)
            return
        log.debug("route_refresh_failed topic=%s error=%s", topic, result)
        # A retry topic may be missing until the first heartbeat of its group creates it.
        if not (isinstance(result, RouteNotFound) and topic.startswith(RETRY_PREFIX)):
            self.outages.failed(result, topic)
        if isinstance(result, RouteNotFound):
            await self._find_brokers(topic)

    async def _find_brokers(self, topic: str) -> None:
        # A promoted slave may lack a new topic, which the first send then creates.
        if self._routes.peek(topic) is None or self.clock.monotonic_ms() < self._default_due_ms:
            return
        default = await self.name_servers.route(AUTO_CREATE_TOPIC)
        if isinstance(default, RouteNotFound):
            self._default_due_ms = self.clock.monotonic_ms() + _DEFAULT_AGAIN_MS
        known = self._routes.peek(topic)
        if known is not None and isinstance(default, TopicRoute):
            fresh = auto_create_route(default, self.config.default_topic_queues)
            self._put(topic, moved_route(known.route, fresh), guessed=known.guessed)

    async def _learn(self, topic: str, *, for_sending: bool) -> KnownTopic:
        result = await self.name_servers.route(topic)
        if isinstance(result, TopicRoute):
            return self._put(topic, result)
        if for_sending and isinstance(result, RouteNotFound):
            default = await self.name_servers.route(AUTO_CREATE_TOPIC)
            if isinstance(default, TopicRoute):
                route = auto_create_route(default, self.config.default_topic_queues)
                return self._put(topic, route, guessed=True)
        raise result

    def _put(self, topic: str, route: TopicRoute, *, guessed: bool = False) -> KnownTopic:
        self.outages.has_route(
            topic, (broker.broker_name for broker in route.broker_datas if broker.master())
        )
        known, changed = self._routes.put(topic, route, self.clock.monotonic_ms(), guessed=guessed)
        if changed:
            # Send heartbeats if the route contains brokers that have had none.
            if not self._greeted.issuperset(self._addresses()):
                self._heartbeat_wanted.set()
            for member in list(self.members.values()):
                if topic in member.topics():
                    member.rebalance_soon()
        return known

    async def _poll_routes(self) -> None:
        while True:
            await self.clock.sleep_ms(self.config.route_poll_interval_ms)
            held = {topic for member in self.members.values() for topic in member.topics()}
            held |= self._held_topics
            self._routes.expire(self.clock.monotonic_ms(), held)
            for topic in sorted({*self._routes.topics(), *held}):
                await self.refresh(topic)

    # ------------------------------------------------------------------ groups and heartbeats

    def add_producer(self, group: str) -> None:
        """Add ``group`` to the producer groups of the heartbeats."""
        if group not in self._producer_groups:
            self._producer_groups.add(group)
            self._heartbeat_wanted.set()

    async def introduce(self, group: str) -> None:
        """Announce a producer group to all known brokers, unless that was done; wait for it."""
        self.add_producer(group)
        if group not in self._introduced or not self._greeted.issuperset(self._addresses()):
            await self.heartbeat()
            self._introduced.add(group)

    def hold(self, topic: str) -> None:
        """Poll the route of ``topic``, and send its brokers heartbeats, until the session ends."""
        self._held_topics.add(topic)

    async def add_member(self, member: Member) -> None:
        """Join a consumer group and announce it to the brokers before returning.

        Raises AlreadyInUse if this client already has a member of the group.
        """
        if member.group in self.members:
            raise AlreadyInUse(
                "consumer",
                member.group,
                "close it first, subscribe to all topics in one call, or use another client",
            )
        self.members[member.group] = member
        await self.heartbeat()

    async def remove_member(self, member: Member) -> None:
        """Leave a consumer group and unregister from the brokers that can be reached."""
        if self.members.get(member.group) is member:
            del self.members[member.group]
            await asyncio.gather(
                *(self._leave(address, "", member.group) for address in self._addresses())
            )

    def heartbeat_soon(self) -> None:
        """Send heartbeats at once, because a broker lacks the current subscription."""
        self._heartbeat_wanted.set()

    async def heartbeat(self) -> None:
        """Send one heartbeat to every known broker; failures are logged."""
        self._heartbeat_wanted.clear()
        beat = Heartbeat(
            client_id=self.client_id,
            producer_data_set=tuple(map(ProducerData, sorted(self._producer_groups))),
            consumer_data_set=tuple(member.describe() for member in self.members.values()),
        )
        if not beat.producer_data_set and not beat.consumer_data_set:
            return
        body = encode_json(beat)
        await together([self._beat(address, body) for address in self._addresses()])

    async def _beat(self, address: str, body: bytes) -> None:
        try:
            await self.remoting.call(
                address,
                RequestCode.HEART_BEAT,
                None,
                body,
                timeout_ms=self.config.request_timeout_ms,
            )
            self._greeted.add(address)
            self.refused_heartbeats.pop(address, None)
            self.outages.answered(address, RequestCode.HEART_BEAT)
        except ClientError as error:
            self._greeted.discard(address)
            if isinstance(error, BrokerRefused):
                self.refused_heartbeats[address] = error
            log.debug("heartbeat_failed address=%s error=%s", address, error)
            self.outages.failed(error)

    async def _send_heartbeats(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.config.heartbeat_interval_ms / 1000):
                    await self._heartbeat_wanted.wait()
            except TimeoutError:
                pass
            await self.heartbeat()

    async def _leave(self, address: str, producer_group: str, consumer_group: str) -> None:
        if not self.remoting.is_connected(address):
            return
        header = h.UnregisterClient(
            client_id=self.client_id,
            producer_group=producer_group or None,
            consumer_group=consumer_group or None,
        )
        try:
            await self.remoting.call(
                address, RequestCode.UNREGISTER_CLIENT, header, timeout_ms=_UNREGISTER_TIMEOUT_MS
            )
        except ClientError as error:
            log.info("unregister_failed address=%s error=%s", address, error)

    def _addresses(self) -> list[str]:
        """Return the addresses that get heartbeats: only masters, or all if there are consumers."""
        brokers = self._routes.brokers.values()
        if self.members:
            return sorted({address for ids in brokers for address in ids.values()})
        return sorted({ids[MASTER_ID] for ids in brokers if MASTER_ID in ids})

    async def _on_members_changed(self, address: str, request: Request[Any]) -> Reply | None:
        member = self.members.get(request.header.consumer_group)
        if member is not None:
            log.info("members_changed group=%s told_by=%s", member.group, address)
            member.rebalance_soon()
        return None
