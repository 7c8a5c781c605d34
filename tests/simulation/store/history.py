"""The model: every message that was ever sent, and the answers about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cometmq.message.record import Record

QueueKey = tuple[str, int]
#: Physical offset, size and tag code.
Entry = tuple[int, int, int]


class Fate(Enum):
    """What is known about a message, from its answer or from a start."""

    SENT = "sent"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class Message:
    """One message. ``offset`` is -1 if it has no entry in its queue.

    ``code`` is the code of its tag. A delayed message has the due time instead: its store time plus
    ``delay_ms``.
    """

    name: bytes
    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    keys: tuple[str, ...]
    code: int = 0
    delay_ms: int = 0
    phys: int = -1
    offset: int = -1
    fate: Fate = Fate.SENT

    def entry(self, record: Record) -> Entry:
        """Return the queue entry of its record."""
        code = record.store_ms + self.delay_ms if self.delay_ms else self.code
        return record.physical_offset, record.size_bytes, code


@dataclass(slots=True)
class Commits:
    """Offsets that a group committed for one queue, in order; -1 is no offset.

    ``saved`` is the position of the last one that is surely in the file.
    """

    values: list[int] = field(default_factory=lambda: [-1])
    saved: int = 0

    def note_saved(self, place: int) -> None:
        """Record that the value at ``place`` is on the device."""
        self.saved = max(self.saved, place)


@dataclass(slots=True)
class History:
    """Everything that clients were told, and what follows from it.

    ``durable`` is the highest offset that was reported to be on the device, ``log_start`` the
    highest start of the log. ``seen`` are the messages that consumers read. For each topic that was
    deleted, ``ends`` has the ends of the log at the deletions that may be in effect: the last
    acknowledged one (0 for none), then those that were not acknowledged, which a crash may undo.
    ``remade`` are the ends at the last deletions. ``faults`` is true if the disk ever failed,
    ``shortened`` if the end of the log was ever lost, which only ASYNC_FLUSH allows.
    """

    messages: dict[bytes, Message] = field(default_factory=dict)
    seen: dict[QueueKey, dict[int, bytes]] = field(default_factory=dict)
    commits: dict[QueueKey, Commits] = field(default_factory=dict)
    ends: dict[str, list[int]] = field(default_factory=dict)
    remade: dict[str, int] = field(default_factory=dict)
    durable: int = 0
    log_start: int = 0
    acknowledged: int = 0
    faults: bool = False
    shortened: bool = False

    def acknowledge(self, message: Message) -> None:
        """Record the answer that a message is stored."""
        assert message.fate is Fate.SENT, message
        message.fate = Fate.ACKNOWLEDGED
        self.acknowledged += 1

    def fail(self, message: Message) -> None:
        """Record the answer that a message is not stored; it may still appear after a crash."""
        message.fate = Fate.FAILED
        message.phys = message.offset = -1

    def delete(self, topic: str, log_end: int) -> dict[QueueKey, int]:
        """Record the deletion of a topic with its group's offsets.

        Return the positions of that change in the commits of each queue.
        """
        self.ends.setdefault(topic, [0]).append(log_end)
        self.remade[topic] = log_end
        for key in [key for key in self.seen if key[0] == topic]:
            del self.seen[key]
        places: dict[QueueKey, int] = {}
        for key, commits in self.commits.items():
            if key[0] == topic:
                places[key] = len(commits.values)
                commits.values.append(-1)
        return places

    def settle(self, topic: str) -> None:
        """Record that the last deletion of a topic was acknowledged."""
        del self.ends[topic][:-1]

    def keep(self, message: Message, record: Record) -> None:
        """Record that a start found a message and synced it: it must not be lost any more."""
        message.phys = record.physical_offset
        message.fate = Fate.ACKNOWLEDGED
