"""What must hold, by name, whatever happens.

All is calm when what is felt of the last fault, or of the last member that came or went, is over
(see cluster.py). While it happens:

    place         what is acknowledged for a place is there, whoever reads it, for ever; a later
                  message of the same sender lies behind it in its queue
    order         an ordered queue gives a message only once all before it are done. Unless all was
                  calm since the last one it may go back to messages that were given before: a
                  suffix comes again, one message after the other. A new member may do that as
                  long as the lease of the one before could keep it waiting
    alone         of an ordered queue one message at a time is worked on, by whomever; unless the
                  locks were lost with a master, as long as a lease lasts
    retry delay   a message that failed comes again after its delay, never before, and within
                  SLACK_MS when all is calm; so does a delayed one
    transaction   a message whose transaction is open or rolled back is seen by nobody
    offsets       a master that starts has no group's offset behind the end of its queue
    kept          a master with SYNC_FLUSH has what was acknowledged after any crash; so has the
                  slave that takes the place of a SYNC_MASTER, unless a slave lost it, in a power
                  cut with ASYNC_FLUSH
    gone          what a log lost, or had cut off, is never in it again
    same log      a slave has its master's log as far as it goes, and goes no further; unless the
                  master lost some, and then it says so
    no surprise   nothing raises what nobody expects, and every start succeeds

At the end, when everything is well again:

    consumed      every acknowledged message is done in each group, or a dead letter
    dead letters  each message that fails for ever is among the dead letters, once for each of its
                  last attempts at the most, and no other message is
    settled       every transaction has ended, and every group's offsets are at its queues' ends
    copied        every slave has its master's log, queues and tables
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.testing.sim.history import Attempt, Local, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from cometmq.testing.sim.copies import Stored
    from cometmq.testing.sim.history import Group, History, Place, Sent
    from cometmq.testing.sim.trace import Trace

#: A retry has the delay of level 3 first, and the next one's each time.
FIRST_RETRY_LEVEL: Final = 3
#: How late a message may be: ticks of the broker, a few round trips in bad weather, busy members.
SLACK_MS: Final = 3_000
#: How long an ordered queue may wait for a member that is gone.
LEASE_MS: Final = 65_000


class Violated(AssertionError):
    """An invariant, by its ``name``, does not hold."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(f"{name}: {problem}")


class Watch:
    """Hears of everything that applications see; ``violation`` is the first thing that must not
    be. ``delays_ms`` are the broker's delay levels, from the first on."""

    def __init__(self, history: History, trace: Trace, delays_ms: Sequence[int]) -> None:
        self.history = history
        self.trace = trace
        self.violation: Violated | None = None
        #: Called when an invariant does not hold: what follows says nothing.
        self.stop: Callable[[], None] = lambda: None
        self._delays_ms = delays_ms
        self._held: dict[Place, Sent] = {}
        self._contested: set[Place] = set()
        #: When a master was lost with the locks that it had given.
        self.locks_lost_ms = -LEASE_MS
        #: When a wall clock jumped last: what was delayed before may come at any time.
        self._jumped_ms = -1
        self._newest: dict[tuple[str, str, int], int] = {}
        self._stored_times: dict[tuple[str, Place, str], int] = {}
        #: Of each ordered queue of a group: the offset below which all is done, and the last begun.
        self._done: dict[tuple[str, str, int], int] = {}
        self._last: dict[tuple[str, str, int], Attempt] = {}

    def violate(self, name: str, problem: str) -> None:
        """Note that an invariant does not hold."""
        self.trace.note(f"VIOLATED {name}: {problem}")
        if self.violation is None:
            self.violation = Violated(name, problem)
            self.stop()

    # --- what senders are told -------------------------------------------------------------------

    def stored_at(self, sent: Sent, place: Place) -> None:
        """The sender of a plain message was told where it is."""
        self._holds(place, sent)
        topic, queue_id, offset = place
        key = sent.sender, topic, queue_id
        before = self._newest.get(key, -1)
        if offset <= before:
            self.violate("place", f"{sent} is at {place}, before an older one at {before}")
        self._newest[key] = offset

    def _holds(self, place: Place, sent: Sent) -> None:
        known = self._held.setdefault(place, sent)
        if known is not sent:
            self.violate("place", f"{place} holds {sent.name}, and {known.name} was there before")

    def lost(self, gone: Sequence[Stored], kept: Collection[str], *, is_safe: bool) -> None:
        """The master lacks these records that it, or the one before it, had; it has the messages of
        ``kept``. ``is_safe`` says that what was acknowledged had to be kept."""
        for each in gone:
            sent = self.history.sent.get(each.body)
            self.trace.note(f"lost {each.body} at {each.place}")
            if sent is not None and not is_safe:
                sent.forgiven = True
            elif sent is not None and sent.is_acknowledged and sent.name not in kept:
                self.violate("kept", f"{sent} was acknowledged, and the master lacks it")
            self._free(each.place)

    def passed_over(self, held: Iterable[Stored]) -> None:
        """Of the records that are ``held``, those at places of lost ones may have been passed over
        by groups that had come further."""
        for each in held:
            if each.place in self._contested and each.body in self.history.sent:
                self.history.sent[each.body].forgiven = True

    @property
    def has_losses(self) -> bool:
        """Whether a master lacks any record that it had, or the one before it."""
        return bool(self._contested)

    def _free(self, place: Place) -> None:
        """A place may get another message. Who had come behind it may pass that over."""
        self._held.pop(place, None)
        self._contested.add(place)
        topic, queue_id, offset = place
        for known in [key for key in self._newest if key[1:] == (topic, queue_id)]:
            del self._newest[known]
        for group in self.history.groups:
            queue = group, topic, queue_id
            self._last.pop(queue, None)
            self._done[queue] = max(self._done.get(queue, 0), offset + 1)

    # --- what members see ------------------------------------------------------------------------

    def sent_of(self, body: bytes) -> Sent:
        """The message that a body is of."""
        return self.history.sent[body.decode()]

    def begun(self, attempt: Attempt) -> None:
        """Work on a message begins."""
        self.trace.note(f"begin {attempt}")
        sent, group = attempt.sent, self.history.groups[attempt.group]
        is_retry = attempt.place[0] == group.retry_topic
        known = self._stored_times.setdefault(
            (attempt.group, attempt.place, sent.name), attempt.reconsume_times
        )
        attempt.stored_times = known
        if attempt.place not in self._contested:  # it may have been read before the place was lost
            self._holds(attempt.place, sent)
        if sent.local in (Local.OPEN, Local.ROLLED_BACK):
            self.violate("transaction", f"{sent} is seen by {attempt.member}")
        if group.ordered:
            self._check_order(attempt)
        if is_retry:
            self._check_retry(attempt)
        elif sent.delay_level:
            self._check_delay(attempt)
        self.history.begin(attempt)

    def ended(self, attempt: Attempt) -> None:
        """Work on a message ended."""
        self.trace.note(f"{attempt.outcome.value} {attempt}")
        self.history.end(attempt)
        if attempt.outcome is Outcome.DONE:
            done = self._done.get(attempt.queue, 0)
            self._done[attempt.queue] = max(done, attempt.offset + 1)

    def _check_order(self, attempt: Attempt) -> None:
        last = self._last.get(attempt.queue)
        done = self._done.get(attempt.queue, 0)
        self._last[attempt.queue] = attempt
        if attempt.offset > done:
            self.violate("order", f"{attempt} begins, and {done} is not done")
        if last is None:
            return
        if last.outcome is Outcome.RUNNING and attempt.begun_ms > self.locks_lost_ms + LEASE_MS:
            self.violate("alone", f"{attempt} begins, and {last} runs since {last.begun_ms}")
        following = last.offset + (last.outcome is Outcome.DONE)
        felt_ms = 0 if attempt.member == last.member else LEASE_MS
        if attempt.offset < following and self.history.calm_ms + felt_ms < last.begun_ms:
            self.violate("order", f"{attempt} begins after {last}, and all was calm")

    def _check_retry(self, attempt: Attempt) -> None:
        times = attempt.stored_times - 1
        failures = [
            before.ended_ms
            for before in self.history.of(attempt.group, attempt.sent)
            if before.outcome is Outcome.FAILED
            # The broker may not have it any more; then a member counts the attempts.
            if times in (before.stored_times, before.reconsume_times)
        ]
        if not failures:
            self.violate("retry delay", f"{attempt} comes again, and never failed before")
            return
        self._check_due(attempt, failures, FIRST_RETRY_LEVEL + times)

    def _check_delay(self, attempt: Attempt) -> None:
        sent = attempt.sent
        self._check_due(attempt, [sent.sent_ms], sent.delay_level)

    def _check_due(self, attempt: Attempt, asked_ms: list[int], level: int) -> None:
        delay_ms = self._delays_ms[min(level, len(self._delays_ms)) - 1]
        early_ms = min(asked_ms) + delay_ms - attempt.begun_ms
        if early_ms > 0 and min(asked_ms) > self._jumped_ms:
            self.violate("retry delay", f"{attempt} comes {early_ms} ms before its time")
        late_ms = attempt.begun_ms - (max(asked_ms) + delay_ms)
        is_again = any(
            before.place == attempt.place for before in self.history.of(attempt.group, attempt.sent)
        )
        if late_ms > SLACK_MS and not is_again and self.history.calm_ms < min(asked_ms):
            self.violate("retry delay", f"{attempt} comes {late_ms} ms after its time")

    def clock_jumped(self, now_ms: int) -> None:
        """The wall clock of a machine was set, or another's counts from now on."""
        self._jumped_ms = now_ms

    def check_offsets(self, ahead: Sequence[str]) -> None:
        """Some offsets of a master that started are behind the ends of their queues."""
        if ahead:
            self.violate("offsets", f"offsets are behind the end: {ahead}")

    # --- at the end ------------------------------------------------------------------------------

    def check_consumed(self) -> None:
        """Every acknowledged message is done."""
        owed = list(self.history.owed())
        if owed:
            group, sent = owed[0]
            self.violate(
                "consumed", f"{len(owed)} messages are not done, as {sent} in group {group.name}"
            )

    def check_settled(self, transactions: int, behind: Sequence[str]) -> None:
        """So many transactions are open; some offsets are behind."""
        if transactions:
            self.violate("settled", f"{transactions} transactions are open")
        if behind:
            self.violate("settled", f"offsets are not at the end: {behind}")

    def check_dead(self, group: Group, names: Sequence[str]) -> None:
        """The dead letters of a group are these."""
        counts = {name: names.count(name) for name in names}
        for sent in self.history.poisonous(group):
            if sent.name not in counts:
                self.violate("dead letters", f"{sent} is not among those of {group.name}")
        for name, count in counts.items():
            last = sum(
                attempt.outcome is Outcome.FAILED
                and max(attempt.stored_times, attempt.reconsume_times) >= group.max_times
                for attempt in self.history.attempts.get((group.name, name), ())
            )
            if count > last:
                self.violate(
                    "dead letters", f"{name} is there {count} times, after {last} last attempts"
                )
