"""Programs that use the cluster, as users' programs do: each is a process with a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client.client import Client
from cometmq.client.sendrequests import SendStatus
from cometmq.core.errors import CometError
from cometmq.message.ids import UniqueKeys
from tests.simulation.cluster.clock import SimClock
from tests.simulation.cluster.history import Attempt, Local, Outcome
from tests.simulation.cluster.loop import Process
from tests.simulation.cluster.threads import LoopThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random
    from typing import Any

    from cometmq.client.config import ClientConfig
    from cometmq.client.consumer.pushconsumer import Subscription
    from cometmq.client.consumer.received import ReceivedMessage
    from cometmq.message.model import MessageView
    from tests.simulation.cluster.history import Group, Sent
    from tests.simulation.cluster.invariants import Watch
    from tests.simulation.cluster.loop import SimLoop
    from tests.simulation.cluster.network import Network

#: Producer group of all transactions.
SHOP: Final = "shop"
_IP: Final = bytes((127, 0, 0, 1))
_WORK_MS: Final = (1, 2, 5, 10, 50)
_MEMBERS_WORK_ON: Final = 4
_LONG_MS: Final = 3_600_000


class WorkFailed(Exception):
    """The application could not do its work."""


class Application:
    """One process with a client on ``host``."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        chance: Random,
        host: str,
        config: ClientConfig,
        watch: Watch,
    ) -> None:
        self.host = host
        self.name = config.client_id
        self.process = Process(self.name, host)
        self._loop = loop
        self._chance = chance
        self.clock = SimClock(loop)
        self._client = Client(config=config, clock=self.clock)
        self._watch = watch
        self._history = watch.history
        network.join(self.process)
        LoopThreads(loop, self.process, chance)

    @property
    def is_up(self) -> bool:
        """True if its process runs."""
        return self.process.alive

    def launch(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the process and its client; it ends when ``main`` does."""

        async def run() -> None:
            await self._client.start()
            # A real client derives unique keys from its process id, which differs in every run.
            salt = self._chance.getrandbits(32)
            self._client.session.unique_keys = UniqueKeys(_IP, 1, salt)
            await main()
            await self._client.close()
            self.process.end()

        self._loop.launch(self.process, run())

    def kill(self) -> None:
        """End the process."""
        self.process.end()

    async def _work(self) -> None:
        await self.clock.sleep_ms(self._chance.choice(_WORK_MS))


class Producer(Application):
    """Sends messages, one after the other, until ``next_message`` returns None.

    A message may come with an order key, which keeps messages in order.
    """

    def start(
        self,
        next_message: Callable[[], tuple[Sent, str | None] | None],
        pauses_ms: tuple[int, ...],
        *,
        stays: bool = False,
    ) -> None:
        """Start the process; with ``stays`` it stays alive after its last message."""

        async def main() -> None:
            self._client.transaction_checker(SHOP, topic="events")(self._check)
            while (found := next_message()) is not None:
                sent, order_key = found
                sent.sender = self.name
                self._history.send(sent, self.clock.monotonic_ms())
                self._watch.trace.note(f"send {sent} by {self.name}")
                if sent.local is Local.NONE:
                    await self._send(sent, order_key)
                else:
                    await self._transact(sent)
                await self.clock.sleep_ms(self._chance.choice(pauses_ms))
            while stays:
                await self.clock.sleep_ms(_LONG_MS)

        self.launch(main)

    async def _send(self, sent: Sent, order_key: str | None) -> None:
        body = sent.name.encode()
        try:
            result = await self._client.send(
                sent.topic, body, order_key=order_key, delay_level=sent.delay_level
            )
        except CometError as error:
            self._watch.trace.note(f"failed {sent}: {error}")
            return
        if result.status is not SendStatus.OK:
            return
        self._history.acknowledge(sent, self.clock.monotonic_ms())
        self._watch.trace.note(f"stored {sent} {result.queue.queue_id}:{result.queue_offset}")
        if not sent.delay_level:
            place = sent.topic, result.queue.queue_id, result.queue_offset
            self._watch.stored_at(sent, place)

    async def _transact(self, sent: Sent) -> None:
        verdict = self._chance.random() < 0.6
        transaction = self._client.transaction(sent.topic, sent.name.encode(), group=SHOP)
        try:
            async with transaction:
                self._history.acknowledge(sent, self.clock.monotonic_ms())
                await self._work()
                # The sender's own data changes here, whatever happens to the message afterwards.
                sent.local = Local.COMMITTED if verdict else Local.ROLLED_BACK
                self._watch.trace.note(f"ended {sent}")
                if self._chance.random() < 0.3:
                    transaction.leave_open()
                elif not verdict:
                    raise WorkFailed
        except WorkFailed:
            return
        except CometError as error:
            sent.local = Local.ROLLED_BACK  # its work never began
            self._watch.trace.note(f"failed {sent}: {error}")

    async def _check(self, message: MessageView) -> bool | None:
        await self._work()
        sent = self._watch.sent_of(message.body)
        if sent.local is Local.OPEN and self._is_alive(sent.sender):
            return None
        if sent.local is Local.OPEN:
            sent.local = Local.ROLLED_BACK  # the end of its process rolled its data back
        self._watch.trace.note(f"checked {sent} by {self.name}")
        return sent.local is Local.COMMITTED

    def _is_alive(self, sender: str) -> bool:
        return any(process.name == sender and process.alive for process in self._loop.processes)


class Consumer(Application):
    """A member of a group."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: True after it was asked to leave.
        self.leaving = False
        self._subscription: Subscription | None = None
        self._running: dict[Attempt, None] = {}
        self.process.on_end.append(self._cut_off)

    def start(self, group: Group) -> None:
        """Start the process as a member of ``group``."""

        async def main() -> None:
            subscription = self._subscription = self._client.subscribe(
                dict.fromkeys(group.topics, "*"),
                group=group.name,
                start="first",
                ordered=group.ordered,
                concurrency=_MEMBERS_WORK_ON,
                max_reconsume_times=group.max_times,
            )
            await subscription.run(lambda message: self._handle(message, group.name))

        self.launch(main)

    def leave(self) -> None:
        """Leave the group and end cleanly, which takes a while."""
        if self._subscription is not None:
            self.leaving = True
            leaving = self._subscription.close()
            self._loop.create_task(leaving, name="leave", context=self.process.context)

    async def _handle(self, message: ReceivedMessage, group: str) -> None:
        stored = message.stored
        sent = self._watch.sent_of(message.body)
        place = stored.topic, stored.queue_id, stored.queue_offset
        attempt = Attempt(
            group, self.name, sent, place, stored.reconsume_times, self.clock.monotonic_ms()
        )
        self._running[attempt] = None
        self._watch.begun(attempt)
        await self._work()
        failed = self._history.fails_now(group, sent)
        self._end(attempt, Outcome.FAILED if failed else Outcome.DONE)
        if failed:
            raise WorkFailed(str(attempt))

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        del self._running[attempt]
        attempt.ended_ms = self.clock.monotonic_ms()
        attempt.outcome = outcome
        self._watch.ended(attempt)

    def _cut_off(self) -> None:
        for attempt in list(self._running):
            self._end(attempt, Outcome.CUT_OFF)
