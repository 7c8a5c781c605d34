"""A received message as application code sees it, and how its processing ended."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

from cometmq.message import properties as props

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue, StoredMessage


class Outcome(Enum):
    """Result of a message that was delivered."""

    ACKNOWLEDGED = "acknowledged"
    RETRIED = "retried"
    RETURNED = "returned"


class MessageView:
    """Read-only content of a received message."""

    __slots__ = ("stored",)

    def __init__(self, stored: StoredMessage) -> None:
        #: The message as the broker stored it.
        self.stored = stored

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message_id} of {self.topic!r} tag {self.tag!r}>"

    @property
    def topic(self) -> str:
        """Topic that the message was first sent to; retries are stored in the group's retry
        topic.
        """
        return self.stored.properties.get(props.RETRY_TOPIC) or self.stored.topic

    @property
    def body(self) -> bytes:
        """Body as the sender passed it."""
        return self.stored.body

    @property
    def tag(self) -> str:
        """Tag, or an empty text."""
        return self.stored.tag

    @property
    def keys(self) -> tuple[str, ...]:
        """Index keys that the sender set."""
        return self.stored.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, reserved ones included."""
        return self.stored.properties

    @property
    def message_id(self) -> str:
        """Unique key set by the sender, the same in every copy made by retries."""
        return self.stored.message_id

    @property
    def queue(self) -> MessageQueue:
        """Queue that the message was read from."""
        return self.stored.queue

    @property
    def queue_offset(self) -> int:
        """Offset in that queue."""
        return self.stored.queue_offset

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries that were sent back."""
        return self.stored.reconsume_times

    @property
    def born_ms(self) -> int:
        """Time of sending, by the sender's clock, in milliseconds since the epoch."""
        return self.stored.born_ms

    @property
    def store_ms(self) -> int:
        """Time of storing, by the broker's clock, in milliseconds since the epoch."""
        return self.stored.store_ms
