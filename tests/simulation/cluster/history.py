"""Record of a run from the applications' view: messages sent, attempts to process them, and
outcomes of the senders' own parts of transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Value of ``Sent.fails`` for a message whose processing always fails.
POISON: Final = -1

#: Topic, queue id, offset.
Place = tuple[str, int, int]


class Local(Enum):
    """Outcome of the sender's own work, for the message of a transaction."""

    NONE = "no transaction"
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Outcome(Enum):
    """Outcome of an attempt to process a message."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CUT_OFF = "cut off"


@dataclass(slots=True, eq=False)
class Sent:
    """A message that an application sends.

    ``fails`` is the number of attempts in each group that fail before one succeeds. Times are those
    of the simulation; ``acknowledged_ms`` is -1 until the sender got the acknowledgement.
    """

    name: str
    topic: str
    sender: str = ""
    fails: int = 0
    delay_level: int = 0
    local: Local = Local.NONE
    sent_ms: int = 0
    acknowledged_ms: int = -1
    #: True if it may be lost: it was stored without a promise to keep it.
    forgiven: bool = False

    @property
    def is_acknowledged(self) -> bool:
        """True if its sender got the acknowledgement."""
        return self.acknowledged_ms >= 0

    @property
    def is_owed(self) -> bool:
        """True if every group must get it."""
        is_stored = self.is_acknowledged and not self.forgiven
        return is_stored and self.local in (Local.NONE, Local.COMMITTED)

    def __str__(self) -> str:
        extra = f" delayed {self.delay_level}" if self.delay_level else ""
        extra += f" {self.local.value}" if self.local is not Local.NONE else ""
        return f"{self.name} to {self.topic}{extra}"


@dataclass(slots=True, eq=False)
class Attempt:
    """A member's attempt to process a message at its place in its topic or in the retry topic.

    ``stored_times`` is the number of failures before it was stored there.
    """

    group: str
    member: str
    sent: Sent
    place: Place
    reconsume_times: int
    begun_ms: int
    stored_times: int = 0
    ended_ms: int = -1
    outcome: Outcome = Outcome.RUNNING

    @property
    def queue(self) -> tuple[str, str, int]:
        """The group, and the queue that the message came from."""
        return self.group, self.place[0], self.place[1]

    @property
    def offset(self) -> int:
        """Queue offset of the message."""
        return self.place[2]

    def __str__(self) -> str:
        topic, queue_id, offset = self.place
        times = f" x{self.reconsume_times}" if self.reconsume_times else ""
        return f"{self.sent.name} at {topic}-{queue_id}:{offset}{times} by {self.member}"


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group.

    ``max_times`` is the number of failures after which a message is a dead letter; -1 means never.
    """

    name: str
    topics: tuple[str, ...]
    ordered: bool = False
    max_times: int = -1

    @property
    def retry_topic(self) -> str:
        """Topic in which failed messages wait for another attempt."""
        return "%RETRY%" + self.name

    @property
    def dead_topic(self) -> str:
        """Topic of its dead letters."""
        return "%DLQ%" + self.name


@dataclass(slots=True)
class History:
    """Everything that happened in a run.

    From ``calm_ms`` on, no fault, repair or change of members has any effect left that could fail a
    request, delay a message or move a queue.
    """

    sent: dict[str, Sent] = field(default_factory=dict)
    attempts: dict[tuple[str, str], list[Attempt]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    acknowledged: int = 0
    operations: int = 0
    calm_ms: int = 0
    _done: dict[str, set[str]] = field(default_factory=dict)

    def send(self, sent: Sent, now_ms: int) -> None:
        """Record that an application begins to send a message."""
        self.operations += 1
        sent.sent_ms = now_ms
        self.sent[sent.name] = sent

    def acknowledge(self, sent: Sent, now_ms: int) -> None:
        """Record that the sender got the acknowledgement."""
        sent.acknowledged_ms = now_ms
        self.acknowledged += 1

    def begin(self, attempt: Attempt) -> None:
        """Record the beginning of an attempt."""
        self.operations += 1
        self.attempts.setdefault((attempt.group, attempt.sent.name), []).append(attempt)

    def end(self, attempt: Attempt) -> None:
        """Record the end of an attempt."""
        if attempt.outcome is Outcome.DONE:
            self._done.setdefault(attempt.group, set()).add(attempt.sent.name)

    def of(self, group: str, sent: Sent) -> list[Attempt]:
        """Return all attempts of a group on a message."""
        return self.attempts.get((group, sent.name), [])

    def is_done(self, group: str, sent: Sent) -> bool:
        """Decide whether a member of a group has processed a message."""
        return sent.name in self._done.get(group, ())

    def fails_now(self, group: str, sent: Sent) -> bool:
        """Decide whether the attempt that ends now fails."""
        if sent.fails == POISON:
            return True
        failed = sum(attempt.outcome is Outcome.FAILED for attempt in self.of(group, sent))
        return failed < sent.fails

    def owed(self) -> Iterator[tuple[Group, Sent]]:
        """Yield every group with each message that it still has to process."""
        for group in self.groups.values():
            done = self._done.get(group.name, ())
            for sent in self.sent.values():
                if sent.name in done or sent.topic not in group.topics:
                    continue
                if sent.fails != POISON and sent.is_owed:
                    yield group, sent

    def poisonous(self, group: Group) -> list[Sent]:
        """Return the messages that must end as dead letters of a group."""
        return [
            sent
            for sent in self.sent.values()
            if sent.topic in group.topics and sent.fails == POISON and sent.is_owed
        ]
