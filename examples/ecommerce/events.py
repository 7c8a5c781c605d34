"""What the services tell each other: one topic, the kind of event as the tag, the order as key.

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
    """Something that happened to an order; ``at_ms`` is when, by the shop's clock."""

    order: str
    kind: Kind
    item: str
    pieces: int
    cents: int
    at_ms: int

    def message(self) -> cometmq.Message:
        """The message that tells of it."""
        return cometmq.Message(TOPIC, msgspec.json.encode(self), tag=self.kind, keys=(self.order,))

    def then(self, kind: Kind, at_ms: int) -> Self:
        """What follows for the same order."""
        return msgspec.structs.replace(self, kind=kind, at_ms=at_ms)


def decode(body: bytes) -> Event:
    """The event in a message. Raises msgspec.MsgspecError when there is none."""
    return msgspec.json.decode(body, type=Event)


@dataclass(frozen=True, slots=True)
class ShopClock:
    """A clock that runs faster, so that a short run has many minutes."""

    speed: int = 60
    first_ms: int = 1_772_355_600_000  # 2026-03-01, 9:00
    _started_ns: int = field(default_factory=time.monotonic_ns)

    def now_ms(self) -> int:
        """Milliseconds since the epoch, in the shop's time."""
        return self.first_ms + (time.monotonic_ns() - self._started_ns) * self.speed // 1_000_000
