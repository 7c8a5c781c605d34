"""The ledger of a deep run."""

from pathlib import Path

from tests.simulation.ledger import Ledger, program_hash


def test_a_ledger_remembers(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path, "p1")
    ledger.note_passed(3, "abc")
    ledger.note_failed(4, "retry delay")
    again = Ledger(path, "p1")
    assert again.passed == {3}
    assert again.failed == {4: "retry delay"}


def test_a_line_that_was_cut_short_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger(path, "p1").note_passed(3, "abc")
    with path.open("a") as file:
        file.write("5 ok")
    assert Ledger(path, "p1").passed == {3}


def test_another_program_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger(path, "p1").note_passed(3, "abc")
    assert Ledger(path, "p2").passed == set()
    assert Ledger(path, "p2").passed == set()
    Ledger(path, "p2").note_passed(5, "abc")
    assert Ledger(path, "p2").passed == {5}


def test_without_a_file_nothing_is_kept() -> None:
    ledger = Ledger(None, "p1")
    ledger.note_passed(1, "a")
    ledger.note_failed(2, "order")
    assert (ledger.passed, ledger.failed) == ({1}, {2: "order"})


def test_the_hash_of_a_program_covers_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    first = program_hash([tmp_path])
    assert first == program_hash([tmp_path])
    (tmp_path / "test_a.py").write_text("2")
    assert program_hash([tmp_path]) == first
    (tmp_path / "a.py").write_text("2")
    assert program_hash([tmp_path]) != first
