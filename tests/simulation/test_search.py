"""Searches over seeds and their state files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.simulation.search import SearchState, main, program_hash

PROGRAM = "tests.simulation"


class Runs(list[int]):
    """The seeds that were run; every third fails."""

    def __call__(self, seed: int) -> Sequence[str]:
        self.append(seed)
        if seed % 3 == 2:
            error = AssertionError(f"order of seed {seed}")
            error.add_note(f"the trace of {seed}")
            raise error
        return f"seed {seed} is well", "a step"


def test_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs()
    assert main(PROGRAM, runs, ["7"]) == 0
    assert runs == [7]
    said = capsys.readouterr().out
    assert "seed 7 is well" in said
    assert "a step" not in said
    assert main(PROGRAM, runs, ["7", "--trace"]) == 0
    assert "a step" in capsys.readouterr().out


def test_many_seeds_say_what_they_found(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs()
    assert main(PROGRAM, runs, ["0:200", "300:500"]) == 1
    said = capsys.readouterr().out
    assert len(runs) == 400
    assert "AssertionError: order of seed 497\nthe trace of 497" in said.replace("\n\n", "\n")
    assert "400 of 400 seeds done, 132 failed" in said
    assert main(PROGRAM, runs, ["0:9", "--stop"]) == 1
    assert runs[400:] == [0, 1, 2]


def test_a_search_continues_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, state = Runs(), str(tmp_path / "build" / "state")
    assert main(PROGRAM, runs, ["0:5", "--state", state, "--seconds", "0"]) == 3
    assert runs == []
    assert main(PROGRAM, runs, ["0:2", "--state", state]) == 0
    assert main(PROGRAM, runs, ["0:8", "--state", state]) == 1
    assert main(PROGRAM, runs, ["0:8", "--state", state]) == 1
    assert runs == list(range(8))
    assert "8 of 8 seeds done, 2 failed" in capsys.readouterr().out


def test_a_state_remembers(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = SearchState(path, "p1")
    state.note_passed(3)
    state.note_failed(4, "Violated: retry delay")
    again = SearchState(path, "p1")
    assert again.passed == {3}
    assert again.failed == {4: "Violated: retry delay"}


def test_a_line_that_was_cut_short_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state"
    SearchState(path, "p1").note_passed(3)
    with path.open("a") as file:
        file.write("5 pass")
    SearchState(path, "p1").note_passed(6)
    assert SearchState(path, "p1").passed == {3, 6}


def test_another_program_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "state"
    SearchState(path, "p1").note_passed(3)
    assert SearchState(path, "p2").passed == set()
    SearchState(path, "p2").note_passed(5)
    assert SearchState(path, "p2").passed == {5}


def test_without_a_file_nothing_is_kept() -> None:
    state = SearchState(None, "p1")
    state.note_passed(1)
    state.note_failed(2, "order")
    assert (state.passed, state.failed) == ({1}, {2: "order"})


def test_the_hash_of_a_program_covers_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    first = program_hash([tmp_path])
    assert first == program_hash([tmp_path])
    (tmp_path / "test_a.py").write_text("2")
    assert program_hash([tmp_path]) == first
    (tmp_path / "a.py").write_text("2")
    assert program_hash([tmp_path]) != first
