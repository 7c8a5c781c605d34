"""What a turn of the loop appended to the log and has not committed yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.speedups import TransactionBatch
from cometmq.store.runs import take_back

if TYPE_CHECKING:
    from cometmq.store.dispatch import Dispatched
    from cometmq.store.runs import Segment


class Turn:
    """``rows`` are the single messages since the last write batch; ``segments`` all before them, in
    the order of the log."""

    __slots__ = ("rows", "segments")

    def __init__(self) -> None:
        self.rows: list[Dispatched] = []
        self.segments: list[Segment] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was appended yet."""
        return not self.rows and not self.segments

    def add(self, batch: TransactionBatch) -> None:
        """Take a write batch behind what was appended so far."""
        if self.rows:
            self.segments.append(self.rows)
            self.rows = []
        self.segments.append(batch)

    def open_batch(self) -> TransactionBatch | None:
        """The write batch that the next rows may join: nothing was appended behind it."""
        if self.rows or not self.segments:
            return None
        last = self.segments[-1]
        return last if isinstance(last, TransactionBatch) else None

    def end(self) -> list[Segment]:
        """Everything that was appended, to be committed now; the next turn begins."""
        segments, rows = self.segments, self.rows
        if not rows and not segments:
            return segments
        self.rows = []
        if not segments:
            return [rows]
        self.segments = []
        return [*segments, rows] if rows else segments


def undo(segments: list[Segment]) -> int:
    """Nothing of them could be stored: their queue offsets are given again. Gives the messages."""
    for segment in reversed(segments):
        take_back(segment)
    return sum(map(len, segments))
