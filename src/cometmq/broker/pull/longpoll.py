"""Pulls that found nothing and wait: one Watermark a queue, woken after dispatch, once a turn.

A held pull is given back when its queue grows, when its time is up, or never when its connection
closes. Whoever takes it back reads again with the pull's filter and may hold it once more, so a
message that does not match moves the pull on without answering it. Pulls are given back in turns of
their own, a few at a time: a thousand consumers that wait for one queue must neither delay the
answer to the message that woke them nor hold the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from cometmq.core.watermark import Watermark
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from cometmq.protocol.headers import PullMessage

if TYPE_CHECKING:
    from cometmq.broker.pull.filtering import Wanted
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.speedups import PullPlan
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from cometmq.store.write.dispatch import Listener

QueueKey = tuple[str, int]

#: Beyond this a pull is answered at once: each held one costs about a kilobyte. Where memory is
#: small there are fewer; those with long texts are charged to their connections besides.
MAX_HELD: Final = 100_000
#: The share of one connection; a client holds one pull for each queue it reads.
MAX_HELD_BY_PEER: Final = 10_000
#: Pulls that are served before the loop gets a turn of its own.
SERVED_PER_TURN: Final = 32
#: After so long no further pull is served in a turn.
SERVING_NS: Final = 5_000_000
#: A client may ask to be held for any time; its own request timeout is 30 s.
MAX_HOLD_MS: Final = 60_000
TICK_MS: Final = 100


class HeldPull:
    """A pull that waits: where it has got to and what it accepts. A plain one has a ``plan`` and an
    ``opaque``; its request is made when it is asked for. ``is_task`` says that it counts among its
    connection's slow requests, for it waits for a turn of its own."""

    __slots__ = (
        "_asked_offset",
        "_request",
        "deadline_ms",
        "is_task",
        "key",
        "offset",
        "opaque",
        "peer",
        "plan",
        "queue",
        "wanted",
    )

    def __init__(
        self,
        peer: Peer,
        request: Request[PullMessage] | None,
        queue: QueueKey,
        offset: int,
        wanted: Wanted,
        deadline_ms: int,
        plan: PullPlan | None = None,
        opaque: int = 0,
    ) -> None:
        self.peer = peer
        self._request = request
        self.queue = queue
        self.offset = self._asked_offset = offset
        self.wanted = wanted
        self.deadline_ms = deadline_ms
        self.plan = plan
        self.opaque = opaque
        self.key = -1
        self.is_task = False

    @property
    def request(self) -> Request[PullMessage]:
        """The request."""
        if self._request is None:
            assert self.plan is not None
            header = PullMessage(*self.plan.fields)
            header.queue_offset = self._asked_offset
            self._request = Request(RequestCode.PULL_MESSAGE, header, self.opaque)
        return self._request


class LongPoll:
    """Holds pulls. Plain ones whose queues grew are given to ``serve_plain`` together, which gives
    back those that it did not answer. ``serve(pull, final)`` is called with these and each other
    pull that is released; ``final`` means its time is up and it must be answered. ``call_soon``
    runs a function in a later turn. While pulls are held, one of ``listeners`` hears of what was
    dispatched."""

    def __init__(
        self,
        clock: Clock,
        serve: Callable[[HeldPull, bool], None],
        serve_plain: Callable[[list[HeldPull]], list[HeldPull]],
        call_soon: Callable[[Callable[[], None]], object],
        listeners: list[Listener],
    ) -> None:
        self._clock = clock
        self._serve = serve
        self._serve_plain = serve_plain
        self._call_soon = call_soon
        self._listeners = listeners
        self._ready: deque[tuple[HeldPull, bool]] = deque()
        self._is_due = False
        #: Whether enough was looked at in this turn: whoever filters waits for the next one.
        self.rests = False
        self._held: dict[QueueKey, Watermark[HeldPull]] = {}
        self._of_peer: dict[Peer, set[HeldPull]] = {}
        # Queues by the tenth of a second in which one of their pulls is due. A busy queue holds
        # and releases thousands of pulls a second: an entry a pull would pile up until its time.
        self._due: dict[int, dict[QueueKey, None]] = {}
        self._ticks: list[int] = []
        self.count = 0

    def hold(self, pull: HeldPull) -> bool:
        """Hold ``pull`` until its queue has a message at its offset; False at the bound."""
        pulls = self._of_peer.get(pull.peer)
        if pull.peer.closed or self.count >= pull.peer.memory.budget.max_waiting(MAX_HELD):
            return False
        if pulls is not None and len(pulls) >= MAX_HELD_BY_PEER:
            return False
        watermark = self._held.get(pull.queue)
        if watermark is None:
            watermark = self._held[pull.queue] = Watermark()
        pull.key = watermark.park(pull.offset + 1, pull.deadline_ms, pull)
        if not self.count:
            self._listeners.append(self._dispatched)
        self.count += 1
        self._schedule(pull)
        if pulls is None:
            pulls = self._of_peer[pull.peer] = set()
            pull.peer.on_close.append(self._forget)
        pulls.add(pull)
        return True

    def _dispatched(self, grown: Sequence[ConsumeQueue]) -> None:
        self.wake([((queue.topic, queue.queue_id), queue.max_offset) for queue in grown])

    def _no_more(self, count: int) -> None:
        """Pulls are not held any more."""
        self.count -= count
        if count and not self.count:
            self._listeners.remove(self._dispatched)

    def wake(self, grown: Iterable[tuple[QueueKey, int]]) -> None:
        """Queues now end at the given maximum offsets: serve the pulls that waited for less."""
        for queue, max_offset in grown:
            watermark = self._held.get(queue)
            if watermark is not None:
                self._release(queue, watermark.advance(max_offset), final=False)

    def look_on(self, pull: HeldPull) -> None:
        """Serve a pull in a later turn; when its time is up by now, it must be answered then."""
        is_late = 0 < pull.deadline_ms <= self._clock.monotonic_ms()
        self._ready.append((pull, is_late))
        self._serve_soon()

    def rest(self) -> None:
        """A look at messages took long: :attr:`rests` until the next turn."""
        self.rests = True
        self._serve_soon()

    async def expire_forever(self) -> None:
        """Serve the pulls whose time is up."""
        while True:
            await self._clock.sleep_ms(TICK_MS)
            self.expire(self._clock.monotonic_ms())

    def expire(self, now_ms: int) -> None:
        """Serve the pulls whose deadline is at or before ``now_ms``."""
        while self._ticks and self._ticks[0] * TICK_MS <= now_ms:
            for queue in self._due.pop(heappop(self._ticks)):
                watermark = self._held.get(queue)
                if watermark is not None:
                    self._release(queue, watermark.expire(now_ms), final=True)

    def _schedule(self, pull: HeldPull) -> None:
        tick = -(-pull.deadline_ms // TICK_MS)
        queues = self._due.get(tick)
        if queues is None:
            queues = self._due[tick] = {}
            heappush(self._ticks, tick)
        queues[pull.queue] = None

    def _release(self, queue: QueueKey, pulls: list[HeldPull], *, final: bool) -> None:
        self._drop_if_empty(queue)
        self._no_more(len(pulls))
        for pull in pulls:
            self._of_peer[pull.peer].discard(pull)
            self._ready.append((pull, final))
        if pulls:
            self._serve_soon()

    def _serve_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._serve_some)

    def _serve_some(self) -> None:
        self._is_due = self.rests = False
        ready, now_ns = self._ready, self._clock.monotonic_ns
        stop_ns = now_ns() + SERVING_NS
        some = [ready.popleft() for _ in range(min(SERVED_PER_TURN, len(ready)))]
        plain = [
            pull for pull, final in some if not (final or pull.plan is None or pull.peer.closed)
        ]
        if plain:
            odd = set(self._serve_plain(plain))
            answered = set(plain) - odd
            some = [each for each in some if each[0] not in answered]
        while some:
            pull, final = some.pop(0)
            if not pull.peer.closed:
                self._serve(pull, final)
                if self.rests or now_ns() >= stop_ns:
                    break
        ready.extendleft(reversed(some))
        if ready:
            self._serve_soon()

    def _drop_if_empty(self, queue: QueueKey) -> None:
        if not len(self._held[queue]):
            del self._held[queue]

    def _forget(self, peer: Peer) -> None:
        for pull in self._of_peer.pop(peer, ()):
            watermark = self._held[pull.queue]
            watermark.cancel(pull.key)
            self._no_more(1)
            self._drop_if_empty(pull.queue)
