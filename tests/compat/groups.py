"""Consumer groups of the Java programs, as tests hold them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.compat.conftest import Target
    from tests.compat.driver import Driver, Json

TIMEOUT_MS: Final = 60_000


class Group:
    """The members of a consumer group in the Java programs."""

    ids = count()

    def __init__(self, driver: Driver, target: Target, group: str, topic: str) -> None:
        self._driver = driver
        self._common = {"namesrv": target.namesrv, "group": group, "topic": topic}
        self._members: list[str] = []

    def join(self, **options: object) -> str:
        """One more member; gives the id by which it is asked."""
        member = f"member{next(self.ids)}"
        self._driver.ask("consume", id=member, **{"filter": "*", **self._common, **options})
        self._members.append(member)
        return member

    def received(self, member: str, number: int, settle_ms: int = 500) -> list[dict[str, Json]]:
        """What a member got once that were `number` messages, and what came just after."""
        waits = {"timeoutMs": TIMEOUT_MS, "settleMs": settle_ms}
        return self._driver.rows("received", id=member, count=number, **waits)

    def leave(self, member: str) -> None:
        """A member goes."""
        self._members.remove(member)
        self._driver.ask("stop", id=member)

    def close(self) -> None:
        """All go."""
        for member in list(self._members):
            self.leave(member)


class Groups:
    """Makes groups for one test."""

    def __init__(self, driver: Driver, target: Target) -> None:
        self._driver = driver
        self._target = target
        self._made: list[Group] = []

    def make(self, topic: str, kind: str = "g") -> Group:
        """A group without members, named after its topic and what distinguishes it."""
        made = Group(self._driver, self._target, f"{kind}-{topic}", topic)
        self._made.append(made)
        return made

    def close(self) -> None:
        """Ends all of them."""
        for made in self._made:
            made.close()
