"""Seeds find planted faults, and a search continues; test_first_seeds.py and others run seeds."""

from pathlib import Path

import pytest

from tests.simulation.faults.disk import File
from tests.simulation.faults.files import MemoryFiles
from tests.simulation.store import __main__ as command
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


def test_a_search_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def run(seed: int) -> None:
        ran.append(seed)
        if seed == 142:
            raise AssertionError("found")

    monkeypatch.setattr(command, "run", run)
    state = tmp_path / "state"
    assert command.main(["0:150", "--state", str(state), "--seconds", "0"]) == 3
    assert ran == []
    assert command.main(["0:100", "--state", str(state)]) == 0
    assert command.main(["0:150", "--state", str(state)]) == 1
    assert ran == list(range(150))
    assert state.read_text().split("\n")[:-1] == ["0 100", "failed 142", "100 150"]
    assert command.main(["0:150", "--state", str(state)]) == 1
    assert ran == list(range(150))
    assert "150 of 150 runs done, 1 failed" in capsys.readouterr().out
