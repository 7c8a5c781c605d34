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
    """The result of a start.

    ``damages`` are the places of the log that were skipped. ``cut`` is the offset from which
    durable bytes were given up, -1 if none were. ``remade`` are the queues that were rebuilt,
    ``kept`` the paths that were set aside. ``shrunk`` says that queues may end before the offsets
    of their consumers.
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
