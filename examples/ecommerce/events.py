"""The events between the services: one topic, the kind of event as the tag, the order as the key.

placed -> paid -> shipped                    placed -> paid -> sold-out -> refunded
"""

import time
from dataclasses import dataclass, field
from typing import Final, Literal, Self

import msgspec

import cometmq

TOPIC: Final = "shop-events"

Kind = Literal["placed", "paid", "shipped", "sold-out", "refunded"]


class Event(msgspec.Struct, frozen=True):
    """An event of an order. ``at_ms`` is its time by the shop's clock."""

    order: str
    kind: Kind
    item: str
    pieces: int
    cents: int
    at_ms: int

    def message(self) -> cometmq.Message:
        """Return the message with this event."""
        return cometmq.Message(TOPIC, msgspec.json.encode(self), tag=self.kind, keys=(self.order,))

    def then(self, kind: Kind, at_ms: int) -> Self:
        """Return the next event of the same order."""
        return msgspec.structs.replace(self, kind=kind, at_ms=at_ms)


def decode(body: bytes) -> Event:
    """Return the event in a message. Raises msgspec.MsgspecError if there is none."""
    return msgspec.json.decode(body, type=Event)


@dataclass(frozen=True, slots=True)
class ShopClock:
    """A clock that runs faster than real time, so that a short run covers many minutes."""

    speed: int = 60
    first_ms: int = 1_772_355_600_000  # 2026-03-01, 9:00
    _started_ns: int = field(default_factory=time.monotonic_ns)

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, in the shop's time."""
        return self.first_ms + (time.monotonic_ns() - self._started_ns) * self.speed // 1_000_000
