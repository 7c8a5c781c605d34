"""The cluster of one run: servers, applications, and the faults that befall them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from cometmq.message.record import iter_decode
from cometmq.testing.faults.files import Moment
from cometmq.testing.sim import settings
from cometmq.testing.sim.applications import Consumer, Producer
from cometmq.testing.sim.clock import SimClock
from cometmq.testing.sim.machines import BrokerMachine, NameServerMachine, until
from cometmq.testing.sim.network import Network, Weather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from cometmq.client.config import ClientConfig
    from cometmq.testing.sim.history import Group
    from cometmq.testing.sim.invariants import Watch
    from cometmq.testing.sim.loop import SimLoop
    from cometmq.testing.sim.settings import Settings

#: Queues have found their members again, and clients their servers.
FELT_MS: Final = 8_000
#: A broker closes silent connections after 120 s, which it looks for every 10 s.
SILENCE_FELT_MS: Final = 140_000
_START_MS: Final = 60_000
_READ_AT_ONCE: Final = 32


class Cluster:
    """One name server, one broker, any number of clients. ``crashes`` counts processes that ended
    without being asked."""

    def __init__(self, loop: SimLoop, chance: Random, chosen: Settings, watch: Watch) -> None:
        self.chance = chance
        self.clock = SimClock(loop)
        self.network = Network(loop, chance, watch.trace)
        self.network.weather = chosen.weather
        self.namesrv = NameServerMachine(
            loop, self.network, settings.NAMESRV_HOST, settings.NAMESRV_PORT
        )
        self.broker = BrokerMachine(
            loop, self.network, chance, chosen.broker, chosen.store, grain_ms=chosen.grain_ms
        )
        self.members: dict[str, list[Consumer]] = {}
        self.producers: list[Producer] = []
        self.crashes = 0
        #: Called when the broker ended at a file operation.
        self.on_broker_end: Callable[[], None] = lambda: None
        self._loop = loop
        self._settings = chosen
        self._watch = watch
        self._clients = 0
        self.broker.on_end = self._broker_died

    def note(self, what: str, felt_ms: int = FELT_MS) -> None:
        """Something is done to the cluster, and felt for so long."""
        history = self._watch.history
        history.operations += 1
        history.calm_ms = max(history.calm_ms, self.clock.monotonic_ms() + felt_ms)
        self._watch.trace.note(what)

    async def start(self) -> None:
        """Start the servers, and wait until they serve."""
        self.namesrv.start()
        self.broker.start()
        await until(self.clock, lambda: self.broker.is_serving, _START_MS)

    # --- applications ----------------------------------------------------------------------------

    def add_producer(self) -> Producer:
        """A new producer, not started yet."""
        made = Producer(*self._client("producer"))
        self.producers.append(made)
        return made

    def add_member(self, group: Group) -> Consumer:
        """A new member of a group, started."""
        made = Consumer(*self._client(group.name))
        self.members.setdefault(group.name, []).append(made)
        self.note(f"{made.name} joins")
        made.start(group)
        return made

    def _client(self, role: str) -> tuple[SimLoop, Network, Random, str, ClientConfig, Watch]:
        self._clients = number = self._clients + 1
        config = settings.client_config(
            self.chance, f"{role}-{number}", default_topic_queues=self._settings.queues
        )
        host = f"127.0.2.{number}"
        return self._loop, self.network, self.chance, host, config, self._watch

    def alive(self, group: str) -> list[Consumer]:
        """The members of a group whose processes run, and that stay."""
        members = self.members.get(group, ())
        return [member for member in members if member.is_up and not member.leaving]

    def clients(self) -> list[Consumer | Producer]:
        """All clients that ever were."""
        return [*self.producers, *chain.from_iterable(self.members.values())]

    def leave(self, member: Consumer) -> None:
        """A member leaves in order."""
        self.note(f"{member.name} leaves")
        member.leave()

    def kill(self, client: Consumer | Producer, *, silently: bool) -> None:
        """A client's process ends; ``silently`` its whole host goes down, and nobody hears it."""
        what = "power of" if silently else "kill"
        self.note(f"{what} {client.name}", SILENCE_FELT_MS if silently else FELT_MS)
        self.crashes += 1
        if silently:
            self.network.power_off(client.host)
        client.kill()

    # --- servers ---------------------------------------------------------------------------------

    def kill_broker(self) -> None:
        """The broker's process ends; its kernel keeps what it wrote."""
        self.note("kill broker")
        self.crashes += self.broker.is_up
        self.broker.kill()

    def cut_broker_power(self) -> None:
        """The broker's machine goes down."""
        self.note("power of broker")
        self.crashes += self.broker.is_up
        self.broker.cut_power()

    def end_broker_soon(self) -> None:
        """The broker's process ends at one of its next file operations."""
        steps, moment = self.chance.randrange(30), self.chance.choice(tuple(Moment))
        self.note(f"broker ends in {steps} {moment.value}")
        self.broker.end_soon(steps, moment)

    def _broker_died(self) -> None:
        self.note("broker ends")
        self.crashes += 1
        self.on_broker_end()

    def stop_broker(self) -> None:
        """The broker is asked to stop."""
        self.note("stop broker")
        self.broker.stop()

    def start_broker(self, *, likely_early: float = 0.0) -> None:
        """Start the broker; it may end again before it serves."""
        ends_in, moment = -1, Moment.BEFORE
        if self.chance.random() < likely_early:
            ends_in = int(self.chance.random() ** 2 * 40)
            moment = self.chance.choice(tuple(Moment))
        self.note(f"start broker ends_in={ends_in} {moment.value}")
        self.broker.start(ends_in=ends_in, moment=moment)

    def kill_namesrv(self) -> None:
        """The name server's process ends."""
        self.note("kill namesrv")
        self.crashes += self.namesrv.is_up
        self.namesrv.kill()

    def start_namesrv(self) -> None:
        """Start the name server."""
        self.note("start namesrv")
        self.namesrv.start()

    # --- the network -----------------------------------------------------------------------------

    def cut_off(self, host: str) -> None:
        """A host no longer hears the broker, or is not heard, or both."""
        ways = self.chance.choice((1, 2, 3))
        self.note(f"cut {host} {ways}")
        if ways & 1:
            self.network.cut(host, self.broker.host)
        if ways & 2:
            self.network.cut(self.broker.host, host)

    def join_network(self) -> None:
        """Everybody hears everybody again."""
        self.note("join network")
        self.network.heal()

    def break_connections(self) -> None:
        """Some connections are reset."""
        self.note("reset connections")
        self.network.break_connections(self.chance.choice((0.3, 1.0)))

    def change_weather(self) -> None:
        """The network becomes better or worse."""
        self.network.weather = self.chance.choice(settings.WEATHERS)
        self.note(f"weather {self.network.weather.delays_us[-1]} us")

    async def heal(self) -> None:
        """Everything that serves is up again, and everybody hears everybody."""
        self.network.heal()
        self.network.weather = Weather()
        self.note("heal")
        if not self.namesrv.is_up:
            self.start_namesrv()
        for _ in range(3):
            if not self.broker.is_up:
                self.start_broker()
            serves = await until(
                self.clock, lambda: self.broker.is_serving or not self.broker.is_up, _START_MS
            )
            if not serves or self.broker.failures:
                return
            if self.broker.is_serving:
                self.broker.end_soon(1 << 60, Moment.BEFORE)
                break
        self.note("healed")

    # --- what the broker holds -------------------------------------------------------------------

    async def bodies(self, topic: str) -> list[str]:
        """The messages of the first queue of a topic, by name."""
        assert self.broker.broker is not None
        store = self.broker.broker.store
        found: list[str] = []
        offset = 0
        while True:
            result = store.read(topic, 0, offset, _READ_AT_ONCE)
            if result.cold:
                await store.load(result)
            if not result.count or not result.chunks:
                return found
            body = b"".join(result.chunks)
            found += [record.body.decode() for record in iter_decode(body)]
            offset = result.next_offset

    def behind(self, groups: Sequence[Group]) -> list[str]:
        """The queues in which a group's offset is not at the end."""
        assert self.broker.broker is not None
        broker = self.broker.broker
        found = []
        for group in groups:
            for topic in (*group.topics, group.retry_topic):
                for queue_id in broker.store.topics().get(topic, ()):
                    queue = broker.store.find_queue(topic, queue_id)
                    end = 0 if queue is None else queue.max_offset
                    offset = broker.offsets.query(group.name, topic, queue_id)
                    if offset != end and end:
                        found.append(f"{group.name} {topic}-{queue_id} at {offset} of {end}")
        return found

    @property
    def open_transactions(self) -> int:
        """Transactions that the broker knows, and whose end it does not."""
        assert self.broker.broker is not None
        return len(self.broker.broker.transactions.index)
