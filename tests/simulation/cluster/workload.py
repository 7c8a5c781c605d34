"""Messages that the producers of a run send, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.cluster.history import POISON, Group, Local, Sent

if TYPE_CHECKING:
    from random import Random

WORKERS: Final = Group("workers", ("events",), max_times=2)
LINE: Final = Group("line", ("orders",), ordered=True)
#: Sets of groups; each run has one of them.
CASTS: Final = ((WORKERS,), (LINE,), (WORKERS, LINE), (WORKERS, LINE))

_FAILING: Final = 0.15
_POISONOUS: Final = 0.03
_DELAYED: Final = 0.06
_TRANSACTIONAL: Final = 0.12
_PAUSES_MS: Final = ((20, 50), (10, 20, 100), (50, 100))
_ORDER_KEYS: Final = ("a", "b", "c")


class Workload:
    """Messages for ``groups``, until ``ended`` is set."""

    def __init__(self, chance: Random, groups: tuple[Group, ...]) -> None:
        self.ended = False
        self._chance = chance
        self._groups = groups
        self._count = 0

    def pauses_ms(self) -> tuple[int, ...]:
        """Return the pauses in ms from which a producer draws after each message."""
        return self._chance.choice(_PAUSES_MS)

    def next_message(self) -> tuple[Sent, str | None] | None:
        """Return a message and its order key, if any; None at the end."""
        if self.ended:
            return None
        self._count += 1
        chance = self._chance
        group = chance.choice(self._groups)
        # Names have one length, so that a record that was cut off may begin where a new one ends.
        sent = Sent(f"m{self._count:04}", group.topics[0])
        if chance.random() < _FAILING:
            sent.fails = chance.choice((1, 1, 2))
        if group.ordered:
            return sent, chance.choice(_ORDER_KEYS)
        drawn = chance.random()
        if drawn < _POISONOUS:
            sent.fails = POISON
        elif drawn < _POISONOUS + _DELAYED:
            sent.delay_level = chance.choice((1, 2, 3))
        elif drawn < _POISONOUS + _DELAYED + _TRANSACTIONAL:
            sent.local = Local.OPEN
        return sent, None


def no_message() -> None:
    """Return None: a producer with this function only answers transaction checks."""
