"""Bugs of what is to survive a machine, put in on purpose: each is found within SEEDS seeds.

CI begins with a seed that is known to find each, so that it takes a moment; a deep run begins
with the first.
"""

from collections.abc import Callable, Iterable

import pytest

from cometmq.broker.durability import Appender, Turn
from cometmq.broker.offsets import ConsumerOffsets
from cometmq.protocol.codes import ResponseCode
from cometmq.replication.slave import _Connection as Connection
from cometmq.testing.faults.files import MemoryFiles
from cometmq.testing.sim.invariants import Violated
from cometmq.testing.sim.run import run
from tests.testing.sim.test_bugs import acknowledged_before_flush

#: Minutes of simulated clusters: more than the unit tests have.
pytestmark = pytest.mark.operation

#: In how many seeds every one of these bugs is found.
SEEDS = 2000
#: How many CI looks at from the known seed on: a change of anything changes what a seed does.
NEAR = 60

Patch = pytest.MonkeyPatch


def acknowledged_before_replication(patch: Patch) -> None:
    """A SYNC_MASTER answers once the message is in its own log."""

    def answer(self: Appender, turn: Turn) -> None:
        self._answer(turn, ResponseCode.SUCCESS, None)

    patch.setattr(Appender, "_stored", answer)


def offsets_ahead(patch: Patch) -> None:
    """Offsets behind the end of their queue stay there."""
    patch.setattr(ConsumerOffsets, "clamp", lambda self, store: None)


def entry_not_synced(patch: Patch) -> None:
    """The name of a new log file is not made durable."""
    sync = MemoryFiles.sync_directory

    def forget(self: MemoryFiles, path: str) -> None:
        if not path.endswith("/commitlog"):
            sync(self, path)

    patch.setattr(MemoryFiles, "sync_directory", forget)


def transfer_at_the_wrong_offset(patch: Patch) -> None:
    """A slave puts what comes behind what it has, whatever offset it is for."""

    def take(self: Connection, offset: int, piece: memoryview) -> None:
        self._slave.replica.take(piece)

    patch.setattr(Connection, "_take", take)


BUGS: list[tuple[Callable[[Patch], None], set[str], int]] = [
    (acknowledged_before_flush, {"consumed", "place", "kept"}, 0),
    (acknowledged_before_replication, {"kept"}, -1),
    (offsets_ahead, {"offsets", "settled", "consumed"}, -1),
    (entry_not_synced, {"consumed", "place", "no surprise", "kept"}, 0),
    (transfer_at_the_wrong_offset, {"copied", "same log", "kept"}, 0),
]
NAMES = [bug.__name__ for bug, _, _ in BUGS]
#: Those that take long to find (-1) are left to deep runs.
QUICK = [each for each in BUGS if each[2] >= 0]


def first_violation(seeds: Iterable[int]) -> tuple[int, Violated] | None:
    """What the seeds find, and which of them did."""
    for seed in seeds:
        try:
            run(seed)
        except Violated as error:
            return seed, error
    return None


@pytest.mark.parametrize(("bug", "names", "known"), QUICK)
def test_a_bug_is_found(
    bug: Callable[[Patch], None], names: set[str], known: int, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    found = first_violation(range(known, known + NEAR))
    assert found is not None, f"seeds {known} to {known + NEAR} did not find it"
    assert found[1].name in names


@pytest.mark.deep
@pytest.mark.parametrize(("bug", "names", "known"), BUGS, ids=NAMES)
def test_a_bug_is_found_by_whom_knows_no_seed(
    bug: Callable[[Patch], None], names: set[str], known: int, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    found = first_violation(range(SEEDS))
    assert found is not None, f"{SEEDS} seeds did not find it"
    assert found[1].name in names
