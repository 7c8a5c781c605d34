"""The model: every message that was ever sent, and what anybody was told about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cometmq.message.record import Record

QueueKey = tuple[str, int]
#: Physical offset, size and tag code.
Entry = tuple[int, int, int]


class Fate(Enum):
    """What the sender of a message, or a start, knows of it."""

    SENT = "sent"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class Message:
    """One message. ``offset`` is -1 for one that takes no place in its queue.

    ``code`` is its tag's, ``delay_ms`` what comes on top of its store time in place of that.
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
        """The queue entry of its record."""
        code = record.store_ms + self.delay_ms if self.delay_ms else self.code
        return record.physical_offset, record.size_bytes, code


@dataclass(slots=True)
class Commits:
    """What a group committed for one queue, in order, -1 for nothing; ``saved`` is the place of
    the last one that is surely in the file."""

    values: list[int] = field(default_factory=lambda: [-1])
    saved: int = 0

    def note_saved(self, place: int) -> None:
        """The value at a place is on the device."""
        self.saved = max(self.saved, place)


@dataclass(slots=True)
class History:
    """Everything the outside world was told.

    ``durable`` is how far the log was ever said to be on the device, ``log_start`` the highest
    start that a running store had. ``seen`` are the messages that consumers read. ``ends`` gives
    for each topic that was ever deleted the log's ends at those deletions that may hold: the last
    one that surely does, 0 for none, then those nobody was told of, of which a crash may undo some.
    ``remade`` are the ends of the last ones. ``faults`` says that the disk ever failed,
    ``shortened`` that the end of the log was ever lost, which only ASYNC_FLUSH allows.
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
        """The answer that a message is stored has left."""
        assert message.fate is Fate.SENT, message
        message.fate = Fate.ACKNOWLEDGED
        self.acknowledged += 1

    def fail(self, message: Message) -> None:
        """The answer that a message is not stored has left; a crash may still bring it."""
        message.fate = Fate.FAILED
        message.phys = message.offset = -1

    def delete(self, topic: str, log_end: int) -> dict[QueueKey, int]:
        """A topic was deleted, and the progress of its group with it, which is the last change for
        the queues that are returned."""
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
        """Somebody was told of the last deletion of a topic."""
        del self.ends[topic][:-1]

    def keep(self, message: Message, record: Record) -> None:
        """A start shows a message, and has synced it: from now on it must not be lost."""
        message.phys = record.physical_offset
        message.fate = Fate.ACKNOWLEDGED
