"""Progress of a server's start.

A start blocks the event loop while a store recovers, so the HTTP port reads the progress from its
own thread. Every attribute is therefore replaced as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_NOT_YET: Final = "has not started yet"


@dataclass(frozen=True, slots=True)
class Readiness:
    """State of the server ``name``: whether it is ready, and the reason if it is not.

    ``is_starting`` is True while its start may block the event loop.
    """

    name: str
    is_ready: bool
    text: str
    is_starting: bool = False


@dataclass(frozen=True, slots=True)
class Recovered:
    """Progress of recovery: offsets of the log that it has reached, began at, and will end at."""

    position: int = 0
    begin: int = 0
    end: int = 0

    @property
    def percent(self) -> int:
        """Share of the work that is done, from 0 to 100."""
        return min(100 * (self.position - self.begin) // max(self.end - self.begin, 1), 100)


class StartProgress:
    """Progress of one start. The server writes it; any thread may read it."""

    def __init__(self) -> None:
        self.recovered: Recovered | None = None
        self.stage = _NOT_YET
        self.is_starting = True
        self.is_serving = False

    def begin(self, stage: str) -> None:
        """Set the current step of the start.

        ``stage`` completes a sentence that begins with the server's name.
        """
        self.stage = stage

    def reading(self, position: int, end: int) -> None:
        """Record how far recovery has read the log, and the expected end.

        An offset lower than the previous one begins another pass over the log.
        """
        known = self.recovered
        begin = position if known is None or position < known.position else known.begin
        self.recovered = Recovered(position, begin, end)

    def done(self) -> None:
        """Note that the start is complete."""
        self.is_serving, self.is_starting = True, False
        self.stage = "serves"

    def ending(self) -> None:
        """Note that the server stops."""
        self.is_serving = self.is_starting = False
        self.stage = "stops"

    @property
    def text(self) -> str:
        """The step, with the progress of recovery."""
        recovered = self.recovered
        if not self.is_starting or recovered is None:
            return self.stage
        return (
            f"{self.stage}: {recovered.percent} % of the log is read "
            f"({recovered.position} of {recovered.end} bytes)"
        )
