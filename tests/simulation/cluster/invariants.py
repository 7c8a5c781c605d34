"""Invariants of a run, by name.

The run is calm when the effects of the last fault and of the last change of members are over (see
cluster.py). At all times:

    place         an acknowledged message stays at its place, for every reader; a later
                  message of the same sender has a higher offset in its queue
    order         an ordered queue delivers a message only once all before it are done. Unless the
                  run was calm since the last delivery, it may go back to earlier messages: then a
                  suffix comes again, in order. A new member may go back for as long as the lease
                  of the member before it could make it wait
    alone         only one message of an ordered queue is being processed at a time; except for the
                  length of a lease after the locks were lost with a master
    retry delay   a failed message comes again after its delay, never before, and within SLACK_MS
                  if the run is calm; the same holds for a delayed message
    transaction   no consumer sees a message whose transaction is open or rolled back
    offsets       when a master starts, no group's offset is past the end of its queue
    kept          a master with SYNC_FLUSH has all acknowledged messages after any crash; so has a
                  slave that replaces a SYNC_MASTER, unless a slave lost some in a power cut with
                  ASYNC_FLUSH
    gone          records that a log lost, or that were cut off, never reappear in it
    same log      a slave's log is a prefix of its master's; unless the master lost records, in
                  which case the slave reports the difference
    no surprise   no unexpected exception is raised, and every start succeeds

At the end, after all repairs:

    consumed      every acknowledged message is done in each group, or a dead letter
    dead letters  each message that always fails is among the dead letters, at most once for each
                  of its last attempts, and no other message is
    settled       every transaction has ended, and every group's offsets are at its queues' ends
    copied        every slave has its master's log, queues and tables
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.cluster.history import Attempt, Local, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from tests.simulation.cluster.copies import Stored
    from tests.simulation.cluster.history import Group, History, Place, Sent
    from tests.simulation.cluster.trace import Trace

#: Delay level of the first retry; each further retry has the next level.
FIRST_RETRY_LEVEL: Final = 3
#: Allowed lateness of a message: ticks of the broker, a few round trips in bad weather, busy
#: members.
SLACK_MS: Final = 3_000
#: Longest time that an ordered queue may wait for a lost member.
LEASE_MS: Final = 65_000


class Violated(AssertionError):
    """The invariant ``name`` does not hold."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(f"{name}: {problem}")


class Watch:
    """Checks the invariants on everything that applications see.

    ``violation`` is the first violation. ``delays_ms`` are the broker's delay levels, from level 1
    on.
    """

    def __init__(self, history: History, trace: Trace, delays_ms: Sequence[int]) -> None:
        self.history = history
        self.trace = trace
        self.violation: Violated | None = None
        #: Called at a violation, because later observations mean nothing.
        self.stop: Callable[[], None] = lambda: None
        self._delays_ms = delays_ms
        self._held: dict[Place, Sent] = {}
        self._contested: set[Place] = set()
        #: Time at which a master was lost together with the queue locks that it had granted.
        self.locks_lost_ms = -LEASE_MS
        #: Time of the last jump of a wall clock; messages delayed before it may come at any time.
        self._jumped_ms = -1
        self._newest: dict[tuple[str, str, int], int] = {}
        self._stored_times: dict[tuple[str, Place, str], int] = {}
        #: For each ordered queue of a group: the offset below which all is done, and the last
        #: attempt.
        self._done: dict[tuple[str, str, int], int] = {}
        self._last: dict[tuple[str, str, int], Attempt] = {}

    def violate(self, name: str, problem: str) -> None:
        """Record that an invariant does not hold."""
        self.trace.note(f"VIOLATED {name}: {problem}")
        if self.violation is None:
            self.violation = Violated(name, problem)
            self.stop()

    # --- acknowledgements ------------------------------------------------------------------------

    def stored_at(self, sent: Sent, place: Place) -> None:
        """Check the place that was acknowledged to the sender of a plain message."""
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
        """Check the records that a new or restarted master lacks, compared with the master before.

        ``kept`` are the bodies that it has. With ``is_safe``, all acknowledged messages must be
        kept.
        """
        for each in gone:
            sent = self.history.sent.get(each.body)
            self.trace.note(f"lost {each.body} at {each.place}")
            if sent is not None and not is_safe:
                sent.forgiven = True
            elif sent is not None and sent.is_acknowledged and sent.name not in kept:
                self.violate("kept", f"{sent} was acknowledged, and the master lacks it")
            self._free(each.place)

    def passed_over(self, held: Iterable[Stored]) -> None:
        """Forgive those ``held`` records that stand at places of lost records.

        Groups whose offsets were past such a place may have skipped the new record.
        """
        for each in held:
            if each.place in self._contested and each.body in self.history.sent:
                self.history.sent[each.body].forgiven = True

    @property
    def has_losses(self) -> bool:
        """True if a master ever lacked records of the master before, or of its own earlier
        state."""
        return bool(self._contested)

    def _free(self, place: Place) -> None:
        """Free a place for another message. Groups whose offsets were past it may skip that one."""
        self._held.pop(place, None)
        self._contested.add(place)
        topic, queue_id, offset = place
        for known in [key for key in self._newest if key[1:] == (topic, queue_id)]:
            del self._newest[known]
        for group in self.history.groups:
            queue = group, topic, queue_id
            self._last.pop(queue, None)
            self._done[queue] = max(self._done.get(queue, 0), offset + 1)

    # --- deliveries to members -------------------------------------------------------------------

    def sent_of(self, body: bytes) -> Sent:
        """Return the message that a body belongs to."""
        return self.history.sent[body.decode()]

    def begun(self, attempt: Attempt) -> None:
        """Check and record the beginning of an attempt."""
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
        """Record the end of an attempt."""
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
            # The broker may have lost the message; then the member counts the attempts itself.
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
        """Record that a machine's wall clock was set, or that another machine's counts from now
        on."""
        self._jumped_ms = now_ms

    def check_offsets(self, ahead: Sequence[str]) -> None:
        """Check that no offset was past the end of its queue when a master started."""
        if ahead:
            self.violate("offsets", f"offsets are behind the end: {ahead}")

    # --- at the end ------------------------------------------------------------------------------

    def check_consumed(self) -> None:
        """Check that every acknowledged message is done."""
        owed = list(self.history.owed())
        if owed:
            group, sent = owed[0]
            self.violate(
                "consumed", f"{len(owed)} messages are not done, as {sent} in group {group.name}"
            )

    def check_settled(self, transactions: int, behind: Sequence[str]) -> None:
        """Check that no transactions are open, and that no offsets lag."""
        if transactions:
            self.violate("settled", f"{transactions} transactions are open")
        if behind:
            self.violate("settled", f"offsets are not at the end: {behind}")

    def check_dead(self, group: Group, names: Sequence[str]) -> None:
        """Check that the dead letters of a group are exactly those expected."""
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
