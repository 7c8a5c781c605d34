"""Long polling: pulls that found nothing wait in one OffsetWaiters per queue.

After a dispatch of new messages the pulls of the queues that grew are released. A pull is also
released when its deadline passes; when its connection closes, it is dropped. The handler reads
again with the pull's filter and may hold the pull once more: a message that does not match moves
the pull's offset without a response. Pulls are released and served in later turns of the loop, a
few at a time, so that a hundred thousand consumers of one queue neither delay the response to the
producer nor block the loop. Queues take turns; the pulls of a queue are served in order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from cometmq.core.offsetwaiters import OffsetWaiters
from cometmq.net.limits import Limit
from cometmq.net.router import end_task
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from cometmq.protocol.headers import PullMessage
from cometmq.speedups import PullPosition

if TYPE_CHECKING:
    from cometmq.broker.pull.filtering import PullFilter
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.speedups import PullPlan
    from cometmq.store.dispatch import Listener
    from cometmq.store.queue.consumequeue import ConsumeQueue

QueueKey = tuple[str, int]

#: Maximum number of held pulls and of released ones that are not served yet; further ones are
#: answered at once. Each takes about 1 KB, so a broker with little memory holds fewer. Long texts
#: are also charged to their connections.
MAX_HELD: Final = 100_000
#: Maximum of one connection; a client has one pull held for each queue that it reads.
MAX_HELD_BY_PEER: Final = 10_000
#: Maximum number of released pulls served in one turn of the loop.
SERVED_PER_TURN: Final = 32
#: Maximum number of queues whose pulls one turn releases.
VISITED_PER_TURN: Final = 256
#: Time after which a turn serves no further pull.
SERVING_NS: Final = 5_000_000
#: Limit of the hold time that a client asks for; a client's own request timeout is 30 s.
MAX_HOLD_MS: Final = 60_000
TICK_MS: Final = 100
#: Entries of queues in ticks, beyond twice the number of held pulls, above which entries without
#: held pulls are removed.
_SPARE_SCHEDULED: Final = 10_000


class HeldPull:
    """A pull that waits, with the offset that it has reached and its filter.

    A plain pull has a ``plan`` and an ``opaque`` instead of a request, which is made on demand.
    ``rules`` are the access-control rules that allowed the pull; None without access control.
    ``position`` is the position of its group in the queue. ``begun_ns`` is the time since which it
    can be answered; 0 while it waits for messages. ``is_task`` is True while the pull counts as a
    slow request of its connection, because it waits for a later turn to evaluate an expensive
    filter; :meth:`end_task` ends that.
    """

    __slots__ = (
        "_asked_offset",
        "_request",
        "begun_ns",
        "deadline_ms",
        "is_task",
        "key",
        "offset",
        "opaque",
        "peer",
        "plan",
        "position",
        "queue",
        "rules",
        "wanted",
    )

    def __init__(
        self,
        peer: Peer,
        request: Request[PullMessage] | None,
        queue: QueueKey,
        offset: int,
        wanted: PullFilter,
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
        self.begun_ns = 0
        self.plan = plan
        self.position = PullPosition() if plan is None else plan.position
        self.opaque = opaque
        self.key = -1
        self.is_task = False
        self.rules: object = None

    def end_task(self) -> None:
        """Stop counting the pull as a slow request, if it was one."""
        if self.is_task:
            self.is_task = False
            end_task(self.peer)

    @property
    def request(self) -> Request[PullMessage]:
        """The request; for a plain pull it is made from the plan."""
        if self._request is None:
            assert self.plan is not None
            header = PullMessage(*self.plan.fields)
            header.queue_offset = self._asked_offset
            self._request = Request(RequestCode.PULL_MESSAGE, header, self.opaque)
        return self._request


class LongPoll:
    """Holds pulls until their queues grow or their deadlines pass.

    Released plain pulls are passed to ``serve_plain`` together, which returns those that it did not
    answer. ``serve(pull, final)`` is called with these and with every other released pull;
    ``final`` means that the deadline has passed, so the pull must be answered. ``call_soon`` runs a
    function in a later turn of the loop. While pulls are held, this object is in ``listeners``,
    the listeners of the store's dispatch.
    """

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
        #: True when this turn has spent its time on filters: further ones wait for the next turn.
        self.rests = False
        self._held: dict[QueueKey, OffsetWaiters[HeldPull]] = {}
        #: Queues with pulls to release: those that grew, with their end offsets, and those that may
        #: have overdue pulls, with the time up to which deadlines have passed.
        self._grown: OrderedDict[QueueKey, int] = OrderedDict()
        self._overdue: deque[tuple[Iterator[QueueKey], int]] = deque()
        self._of_peer: dict[Peer, set[HeldPull]] = {}
        # Queues by the tick (100 ms) in which one of their pulls is due. A busy queue holds and
        # releases thousands of pulls a second: one entry per pull would pile up until its deadline.
        self._due: dict[int, dict[QueueKey, None]] = {}
        self._ticks: list[int] = []
        self._scheduled = 0  # queues in all ticks
        self.count = 0

    def is_full_for(self, peer: Peer) -> bool:
        """Return whether as many pulls wait as the memory of the process allows."""
        waiting = self.count + len(self._ready)
        return waiting >= peer.memory.budget.max_waiting(MAX_HELD)

    def hold(self, pull: HeldPull) -> bool:
        """Hold ``pull`` until its queue has a message at its offset.

        Returns False at the limit of held pulls, or if the connection is closed.
        """
        pulls = self._of_peer.get(pull.peer)
        if pull.peer.closed:
            return False
        held = len(pulls or ())
        if held >= MAX_HELD_BY_PEER or self.is_full_for(pull.peer):
            reason = f"{held} pulls of the connection wait, {self.count} of all: answered at once"
            pull.peer.limits.hit(Limit.HELD_PULLS, pull.peer.address, reason)
            return False
        waiters = self._held.get(pull.queue)
        if waiters is None:
            waiters = self._held[pull.queue] = OffsetWaiters()
        pull.key = waiters.park(pull.offset + 1, pull.deadline_ms, pull)
        pull.begun_ns = 0
        if not self.count:
            self._listeners.append(self._dispatched)
        self.count += 1
        if pulls is None:
            pulls = self._of_peer[pull.peer] = set()
            pull.peer.on_close.append(self._forget)
        pulls.add(pull)
        self._schedule(pull)
        return True

    def _dispatched(self, grown: Sequence[ConsumeQueue]) -> None:
        self.wake([((queue.topic, queue.queue_id), queue.max_offset) for queue in grown])

    def _no_more(self, count: int) -> None:
        """Subtract released or dropped pulls; stop listening to the dispatch if none is left."""
        self.count -= count
        if count and not self.count:
            self._listeners.remove(self._dispatched)

    def wake(self, grown: Iterable[tuple[QueueKey, int]]) -> None:
        """Release the pulls that wait for offsets below the new maximum offsets of queues, from the
        next turn on."""
        for queue, max_offset in grown:
            if queue in self._held:
                self._grown[queue] = max_offset
        if self._grown:
            self._serve_soon()

    def look_on(self, pull: HeldPull) -> None:
        """Serve a pull in a later turn; it must be answered then if its deadline has passed."""
        is_late = 0 < pull.deadline_ms <= self._clock.monotonic_ms()
        self._ready.append((pull, is_late))
        self._serve_soon()

    def rest(self) -> None:
        """Set :attr:`rests` until the next turn, because a filter took long."""
        self.rests = True
        self._serve_soon()

    async def expire_forever(self) -> None:
        """Release pulls whose deadline has passed, every TICK_MS."""
        while True:
            await self._clock.sleep_ms(TICK_MS)
            self.expire(self._clock.monotonic_ms())

    def expire(self, now_ms: int) -> None:
        """Release the pulls whose deadline is at or before ``now_ms``, from the next turn on."""
        while self._ticks and self._ticks[0] * TICK_MS <= now_ms:
            queues = self._due.pop(heappop(self._ticks))
            self._scheduled -= len(queues)
            self._overdue.append((iter(queues), now_ms))
        if self._overdue:
            self._serve_soon()

    def _schedule(self, pull: HeldPull) -> None:
        # Round up, so that a tick comes after the deadlines in it.
        tick = -(-pull.deadline_ms // TICK_MS)
        queues = self._due.get(tick)
        if queues is None:
            queues = self._due[tick] = {}
            heappush(self._ticks, tick)
        if pull.queue not in queues:
            queues[pull.queue] = None
            self._scheduled += 1
            # A pull that was released or dropped before its deadline leaves its entry until then.
            if self._scheduled > 2 * self.count + _SPARE_SCHEDULED:
                self._schedule_again()

    def _schedule_again(self) -> None:
        """Rebuild the ticks from the pulls that are still held."""
        self._due.clear()
        self._ticks.clear()
        self._scheduled = 0
        for pulls in self._of_peer.values():
            for pull in pulls:
                self._schedule(pull)

    def _release_some(self) -> None:
        """Release as many pulls as one turn may serve; a queue with further pulls is visited again
        after the others."""
        ready, grown, overdue = self._ready, self._grown, self._overdue
        for _ in range(VISITED_PER_TURN):
            if len(ready) >= SERVED_PER_TURN or not (grown or overdue):
                return
            if grown:
                queue, end = grown.popitem(last=False)
                if self._release(queue, end, final=False):
                    grown[queue] = end
            if overdue:
                queues, until_ms = overdue[0]
                due = next(queues, None)
                if due is None:
                    overdue.popleft()
                elif self._release(due, until_ms, final=True):
                    overdue.append((iter((due,)), until_ms))

    def _release(self, queue: QueueKey, bound: int, *, final: bool) -> bool:
        """Release at most SERVED_PER_TURN pulls of a queue: up to the offset ``bound``, or with
        ``final`` up to the time ``bound``. Return whether there may be more."""
        waiters = self._held.get(queue)
        if waiters is None:
            return False
        take = waiters.expire if final else waiters.advance
        pulls = take(bound, SERVED_PER_TURN)
        self._drop_if_empty(queue)
        self._no_more(len(pulls))
        for pull in pulls:
            self._of_peer[pull.peer].discard(pull)
            self._ready.append((pull, final))
        return len(pulls) == SERVED_PER_TURN

    def _serve_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._serve_some)

    def _serve_some(self) -> None:
        self._is_due = self.rests = False
        self._release_some()
        ready, now_ns = self._ready, self._clock.monotonic_ns
        stop_ns = now_ns() + SERVING_NS
        some = [ready.popleft() for _ in range(min(SERVED_PER_TURN, len(ready)))]
        plain = [
            pull for pull, final in some if not (final or pull.plan is None or pull.peer.closed)
        ]
        # One call answers all plain pulls together; the others are served one by one below.
        if plain:
            odd = set(self._serve_plain(plain))
            answered = set(plain) - odd
            some = [each for each in some if each[0] not in answered]
        try:
            while some:
                pull, final = some.pop(0)
                pull.end_task()
                if not pull.peer.closed:
                    self._serve(pull, final)
                    if self.rests or now_ns() >= stop_ns:
                        break
        finally:
            # Pulls that were not served in time go back to the front, in the same order.
            ready.extendleft(reversed(some))
            if ready or self._grown or self._overdue:
                self._serve_soon()

    def _drop_if_empty(self, queue: QueueKey) -> None:
        if not len(self._held[queue]):
            del self._held[queue]

    def _forget(self, peer: Peer) -> None:
        """Drop the held pulls of a closed connection."""
        for pull in self._of_peer.pop(peer, ()):
            waiters = self._held[pull.queue]
            waiters.cancel(pull.key)
            self._no_more(1)
            self._drop_if_empty(pull.queue)
