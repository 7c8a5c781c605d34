"""The cluster of one run: servers, applications, and operations that cause faults."""

from __future__ import annotations

from errno import errorcode
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from tests.simulation.cluster import settings
from tests.simulation.cluster.applications import Consumer, Producer
from tests.simulation.cluster.clock import SimClock
from tests.simulation.cluster.holdings import ahead
from tests.simulation.cluster.losses import Losses
from tests.simulation.cluster.machines import BrokerMachine, until
from tests.simulation.cluster.nameservers import NameServerMachine
from tests.simulation.cluster.network import Network, Weather
from tests.simulation.faults.files import Moment

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from cometmq.client.config import ClientConfig
    from tests.simulation.cluster.history import Group
    from tests.simulation.cluster.invariants import Watch
    from tests.simulation.cluster.loop import SimLoop
    from tests.simulation.cluster.settings import Settings
    from tests.simulation.faults.files import Fault

#: Duration of a fault's effects: rebalancing, and reconnecting of clients to their servers.
FELT_MS: Final = 8_000
#: A broker closes silent connections after 120 s, and checks every 10 s.
SILENCE_FELT_MS: Final = 140_000
#: A master waits for a silent slave until it drops it after 20 s.
SLAVE_FELT_MS: Final = 30_000
_START_MS: Final = 60_000
_STARTS: Final = 3


class Cluster:
    """Name servers, a master and its slaves, any number of clients.

    ``crashes`` counts the processes that ended without a request.
    """

    def __init__(self, loop: SimLoop, chance: Random, chosen: Settings, watch: Watch) -> None:
        self.chance = chance
        self.clock = SimClock(loop)
        self.network = Network(loop, chance, watch.trace)
        self.network.weather = chosen.weather
        self.namesrvs = [
            NameServerMachine(loop, self.network, host, settings.NAMESRV_PORT)
            for host in settings.NAMESRV_HOSTS[: chosen.namesrvs]
        ]
        #: The first one is the master.
        self.brokers = [
            BrokerMachine(
                loop, self.network, chance, config, store, name=name, grain_ms=chosen.grain_ms
            )
            for name, config, store in chosen.machines()
        ]
        self.members: dict[str, list[Consumer]] = {}
        self.producers: list[Producer] = []
        self.crashes = 0
        #: Called when a broker ended at a file operation.
        self.on_broker_end: Callable[[BrokerMachine], None] = lambda machine: None
        self._loop = loop
        self._settings = chosen
        self._watch = watch
        self._clients = 0
        self.losses = Losses(self.brokers, watch)
        for machine in self.brokers:
            machine.on_end = partial(self._broker_died, machine)
            machine.on_open = partial(self._broker_opened, machine)

    @property
    def broker(self) -> BrokerMachine:
        """The master."""
        return self.brokers[0]

    @property
    def slaves(self) -> list[BrokerMachine]:
        """The slaves of the master."""
        return self.brokers[1:]

    def note(self, what: str, felt_ms: int = FELT_MS) -> None:
        """Record an operation on the cluster, whose effects last for ``felt_ms``."""
        history = self._watch.history
        history.operations += 1
        history.calm_ms = max(history.calm_ms, self.clock.monotonic_ms() + felt_ms)
        self._watch.trace.note(what)

    async def start(self) -> None:
        """Start the servers, and wait until they serve."""
        await self.start_master()
        self.start_slaves()
        await until(self.clock, lambda: all(each.is_serving for each in self.brokers), _START_MS)

    async def start_master(self) -> None:
        """Start the name servers and the master, and wait until the master serves."""
        for namesrv in self.namesrvs:
            namesrv.start()
        self.broker.start()
        await until(self.clock, lambda: self.broker.is_serving, _START_MS)

    def start_slaves(self) -> None:
        """Start the slaves."""
        for machine in self.slaves:
            machine.start()

    # --- applications ----------------------------------------------------------------------------

    def add_producer(self) -> Producer:
        """Return a new producer, not started yet."""
        made = Producer(*self._client("producer"))
        self.producers.append(made)
        return made

    def add_member(self, group: Group) -> Consumer:
        """Return a new member of a group, started."""
        made = Consumer(*self._client(group.name))
        self.members.setdefault(group.name, []).append(made)
        self.note(f"{made.name} joins")
        made.start(group)
        return made

    def _client(self, role: str) -> tuple[SimLoop, Network, Random, str, ClientConfig, Watch]:
        self._clients = number = self._clients + 1
        config = settings.client_config(
            self.chance,
            f"{role}-{number}",
            namesrvs=self._settings.namesrvs,
            default_topic_queues=self._settings.queues,
        )
        host = f"127.0.2.{number}"
        return self._loop, self.network, self.chance, host, config, self._watch

    def alive(self, group: str) -> list[Consumer]:
        """Return the members of a group whose processes run, and that are not leaving."""
        members = self.members.get(group, ())
        return [member for member in members if member.is_up and not member.leaving]

    def clients(self) -> list[Consumer | Producer]:
        """Return all clients of the run, ended ones included."""
        return [*self.producers, *chain.from_iterable(self.members.values())]

    def leave(self, member: Consumer) -> None:
        """Let a member leave cleanly."""
        self.note(f"{member.name} leaves")
        member.leave()

    def kill(self, client: Consumer | Producer, *, silently: bool) -> None:
        """End a client's process; with ``silently`` its host loses power, and its peers get no
        notice."""
        what = "power of" if silently else "kill"
        self.note(f"{what} {client.name}", SILENCE_FELT_MS if silently else FELT_MS)
        self.crashes += 1
        if silently:
            self.network.power_off(client.host)
        client.kill()

    # --- servers ---------------------------------------------------------------------------------

    def kill_broker(self, machine: BrokerMachine | None = None) -> None:
        """Kill the process of a broker; its kernel keeps what it wrote.

        Without an argument, this and the following methods mean the master.
        """
        machine = machine or self.broker
        self.note(f"kill {machine.name}", self._felt_ms(machine))
        self.crashes += machine.is_up
        machine.kill()

    def cut_broker_power(self, machine: BrokerMachine | None = None) -> None:
        """Cut the power of a broker's machine."""
        machine = machine or self.broker
        self.note(f"power of {machine.name}", self._felt_ms(machine))
        self.crashes += machine.is_up
        machine.cut_power()

    def end_broker_soon(self, machine: BrokerMachine | None = None) -> None:
        """End the process of a broker at one of its next file operations."""
        machine = machine or self.broker
        steps, moment = self.chance.randrange(30), self.chance.choice(tuple(Moment))
        self.note(f"{machine.name} ends in {steps} {moment.value}")
        machine.end_soon(steps, moment)

    def _broker_died(self, machine: BrokerMachine) -> None:
        self.note(f"{machine.name} ends", self._felt_ms(machine))
        self.crashes += 1
        self.on_broker_end(machine)

    def _broker_opened(self, machine: BrokerMachine) -> None:
        self.losses.opened(machine)
        if machine is self.broker and machine.broker is not None:
            self._watch.check_offsets(ahead(machine.broker))

    def stop_broker(self, machine: BrokerMachine | None = None) -> None:
        """Ask a broker to stop."""
        machine = machine or self.broker
        self.note(f"stop {machine.name}")
        machine.stop()

    def start_broker(
        self, machine: BrokerMachine | None = None, *, likely_early: float = 0.0
    ) -> None:
        """Start a broker; with probability ``likely_early`` it ends again soon, maybe before it
        serves."""
        machine = machine or self.broker
        ends_in, moment = -1, Moment.BEFORE
        if self.chance.random() < likely_early:
            ends_in = int(self.chance.random() ** 2 * 40)
            moment = self.chance.choice(tuple(Moment))
        self.note(f"start {machine.name} ends_in={ends_in} {moment.value}")
        machine.start(ends_in=ends_in, moment=moment)

    def fail_disk(self, machine: BrokerMachine, fault: Fault) -> None:
        """Make operations on the disk of a broker's machine fail."""
        what = f"{errorcode[fault.code]} of {fault.times} {fault.operation}"
        self.note(f"disk of {machine.name}: {what} at {fault.where!r}", SLAVE_FELT_MS)
        machine.fail(fault)

    def fill_disk(self, machine: BrokerMachine) -> None:
        """Fill the disk of a broker's machine."""
        self.note(f"disk of {machine.name} full", SLAVE_FELT_MS)
        machine.fill_disk()

    def mend_disk(self, machine: BrokerMachine) -> None:
        """Repair the disk of a broker's machine."""
        self.note(f"disk of {machine.name} mended", SLAVE_FELT_MS)
        machine.mend_disk()

    def jump_clock(self, name: str, clock: SimClock, offset_ms: int) -> None:
        """Set the wall clock of a machine."""
        self.note(f"clock of {name} jumps {offset_ms} ms", SLAVE_FELT_MS)
        self._watch.clock_jumped(self.clock.monotonic_ms())
        clock.jump_wall(offset_ms)

    def note_promotion(self, machine: BrokerMachine) -> None:
        """Record the promotion of a slave."""
        self.note(f"promote {machine.name} to {machine.config.broker_role.name}", SILENCE_FELT_MS)

    def _felt_ms(self, machine: BrokerMachine) -> int:
        """Return the duration of the effects of a broker's end: a master waits for a lost slave."""
        return FELT_MS if machine is self.broker else SLAVE_FELT_MS

    def kill_namesrv(self, machine: NameServerMachine) -> None:
        """Kill the process of a name server."""
        self.note(f"kill {machine.name}")
        self.crashes += machine.is_up
        machine.kill()

    def start_namesrv(self, machine: NameServerMachine) -> None:
        """Start a name server."""
        self.note(f"start {machine.name}")
        machine.start()

    # --- the network -----------------------------------------------------------------------------

    def cut_off(self, one: str, two: str) -> None:
        """Cut the network between two hosts, in one direction or both."""
        ways = self.chance.choice((1, 2, 3))
        self.note(f"cut {one} {two} {ways}", SLAVE_FELT_MS)
        if ways & 1:
            self.network.cut(one, two)
        if ways & 2:
            self.network.cut(two, one)

    def join_network(self) -> None:
        """Repair all cuts of the network."""
        self.note("join network")
        self.network.heal()

    def break_connections(self) -> None:
        """Reset some connections."""
        self.note("reset connections")
        self.network.break_connections(self.chance.choice((0.3, 1.0)))

    def change_weather(self) -> None:
        """Change the delays of the network."""
        self.network.weather = self.chance.choice(settings.WEATHERS)
        self.note(f"weather {self.network.weather.delays_us[-1]} us")

    def mend(self) -> None:
        """Repair the network and all disks, and start the name servers that are down."""
        self.network.heal()
        self.network.weather = Weather()
        self.note("heal")
        for machine in self.brokers:
            machine.mend_disk()
        for namesrv in self.namesrvs:
            if not namesrv.is_up:
                self.start_namesrv(namesrv)

    async def bring_up(self, machine: BrokerMachine) -> bool:
        """Start a broker if needed, and let it run without faults; return whether it serves."""
        if machine.is_serving and machine.log_failed:
            self.kill_broker(machine)
        for _ in range(_STARTS):
            if not machine.is_up:
                self.start_broker(machine)
            serves = await until(
                self.clock, lambda: machine.is_serving or not machine.is_up, _START_MS
            )
            if not serves or machine.failures:
                return False
            if machine.is_serving:
                machine.end_soon(1 << 60, Moment.BEFORE)
                return True
        return False
