"""Bugs of replication and recovery, put in on purpose: each is found within SEEDS seeds."""

from collections.abc import Callable, Iterable

import pytest

from cometmq.broker.acknowledgement import Appender, Turn
from cometmq.broker.consumers.offsets import ConsumerOffsets
from cometmq.protocol.codes import ResponseCode
from cometmq.replication.slave import _Connection as Connection
from cometmq.store.log.segments import LogFile
from tests.simulation.cluster.invariants import Violated
from tests.simulation.cluster.run import run
from tests.simulation.cluster.test_bugs import acknowledged_before_flush
from tests.simulation.faults.files import MemoryFiles

#: Minutes of simulated clusters: more than the unit tests have.
pytestmark = pytest.mark.operation

#: Number of seeds within which each of these bugs is found; a few dozen are mostly enough.
SEEDS = 300

Patch = pytest.MonkeyPatch


def acknowledged_before_replication(patch: Patch) -> None:
    """A SYNC_MASTER answers once the message is in its own log."""

    def answer(self: Appender, turn: Turn) -> None:
        self._answer(turn, ResponseCode.SUCCESS, None)

    patch.setattr(Appender, "_answer_when_copied", answer)


def offsets_ahead(patch: Patch) -> None:
    """Offsets after the end of their queue are not corrected."""
    patch.setattr(ConsumerOffsets, "clamp", lambda self, store: None)


def entry_not_synced(patch: Patch) -> None:
    """The name of a new log file is not made durable."""
    sync = MemoryFiles.sync_directory

    def forget(self: MemoryFiles, path: str) -> None:
        if not path.endswith("/commitlog"):
            sync(self, path)

    patch.setattr(MemoryFiles, "sync_directory", forget)


def stale_tail(patch: Patch) -> None:
    """A cut of the log overwrites only the head of the next record; later records stay."""

    def clear_from(self: LogFile, offset: int) -> None:
        at = offset - self.base
        if at < self.size_bytes:
            self._files.pwrite(self.handle, bytes(min(8, self.size_bytes - at)), at)
        self._files.datasync(self.handle)

    patch.setattr(LogFile, "clear_from", clear_from)


def transfer_at_the_wrong_offset(patch: Patch) -> None:
    """A slave appends what it receives to its log, whatever the offset."""

    def take(self: Connection, offset: int, piece: memoryview) -> None:
        self._slave.replica.take(piece)

    patch.setattr(Connection, "_take", take)


BUGS: list[tuple[Callable[[Patch], None], set[str]]] = [
    (acknowledged_before_flush, {"consumed", "place", "kept"}),
    (acknowledged_before_replication, {"kept"}),
    (stale_tail, {"gone", "same log", "place", "consumed", "kept", "copied"}),
    (offsets_ahead, {"offsets", "settled", "consumed"}),
    (entry_not_synced, {"consumed", "place", "no surprise", "kept"}),
    # Without a slave that confirms, a SYNC_MASTER refuses messages that are sent back.
    (transfer_at_the_wrong_offset, {"copied", "same log", "kept", "settled", "retry delay"}),
]


def first_violation(seeds: Iterable[int]) -> tuple[int, Violated] | None:
    """Return the first failing seed and its violation; None if all pass."""
    for seed in seeds:
        try:
            run(seed)
        except Violated as error:
            return seed, error
    return None


@pytest.mark.parametrize(("bug", "names"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_a_bug_is_found(bug: Callable[[Patch], None], names: set[str], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    found = first_violation(range(SEEDS))
    assert found is not None, f"{SEEDS} seeds did not find it"
    assert found[1].name in names
