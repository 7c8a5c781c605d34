"""The findings of a start, which the store keeps for operators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the log that holds no valid record, from ``offset`` in the file ``path``.

    ``next_offset`` is the offset of the next valid record, -1 if there is none.
    """

    path: str
    offset: int
    next_offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a start found.

    ``damages`` are places of the log that were skipped, ``cut`` where proven bytes were given up
    (-1 when none were), ``remade`` queues that got entries again, ``kept`` what was set aside.
    ``shrunk`` says that queues may be shorter than what consumers have read.
    """

    crashed: bool
    reason: str
    start: int
    end: int
    records: int
    torn: bool
    duration_ms: int
    shrunk: bool = False
    damages: tuple[Damage, ...] = ()
    cut: int = -1
    remade: tuple[tuple[str, int], ...] = ()
    kept: tuple[str, ...] = ()
