"""Seeds find planted faults, and a search continues; test_first_seeds.py and others run seeds."""

import pytest

from tests.simulation.faults.disk import File
from tests.simulation.faults.files import MemoryFiles
from tests.simulation.store import seeded

#: Number of seeds that is enough to find each of the planted faults.
ENOUGH = 150


class Forgetful(MemoryFiles):
    """Files whose syncs do nothing."""

    def datasync(self, handle: int) -> None:
        pass


class Nameless(MemoryFiles):
    """Files whose syncs of folders do nothing."""

    def sync_directory(self, path: str) -> None:
        pass


class Torn(MemoryFiles):
    """Files that are renamed by a copy, which may be incomplete."""

    def rename(self, source: str, target: str) -> None:
        node = self.disk.find(source)
        if isinstance(node, File):
            handle = self.open(target, create=True)
            self.resize(handle, 0)
            self.pwrite(handle, bytes(node.data[: node.size]), 0)
            self.close(handle)
            self.unlink(source)
        else:
            super().rename(source, target)


@pytest.mark.parametrize("plant", [Forgetful, Nameless, Torn])
def test_a_disk_that_promises_what_it_does_not_keep_is_found(plant: type[MemoryFiles]) -> None:
    found = first_failure(plant)
    assert found is not None
    assert any(note.startswith("seed ") for note in found.__notes__)


def first_failure(plant: type[MemoryFiles]) -> Exception | None:
    for seed in range(ENOUGH):
        try:
            seeded.run(seed, plant)
        except Exception as error:
            return error
    return None


def test_a_seed_gives_the_same_run_every_time() -> None:
    traces = []
    for _ in range(2):
        made = seeded.Run(5)
        with seeded.quiet():
            made.run()
        traces.append(made.world.trace)
        made.world.close()
    assert traces[0] == traces[1]


def test_every_run_acknowledges_and_crashes() -> None:
    with seeded.quiet():
        for seed in range(10):
            made = seeded.Run(seed)
            made.run()
            world = made.world
            assert world.operations >= seeded.OPERATIONS
            assert world.crashes > 0 < world.history.acknowledged
            world.close()
