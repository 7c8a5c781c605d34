"""Docstrings and comments are plain English."""

from pathlib import Path

import pytest

from tests.architecture import rules, wording

SOURCES = rules.python_files(rules.SRC)


def test_public_functions_begin_with_a_verb() -> None:
    assert wording.functions_without_verb(SOURCES) == []


@pytest.mark.parametrize(
    ("docstring", "found"),
    [
        ("Return the offset.", 0),
        ("Pass the frame on.", 0),
        ("Returns the offset.", 1),
        ("What the broker stores.", 1),
        ("Whether the queue is empty.", 1),
        ("The next offset.", 1),
        ("Offsets of the group.", 1),
        ("``offset`` of the queue.", 0),
        ("1 for a master.", 1),
    ],
)
def test_a_docstring_without_verb_is_found(tmp_path: Path, docstring: str, found: int) -> None:
    path = tmp_path / "a.py"
    path.write_text(f'class A:\n    async def b(self):\n        """{docstring}"""\n')
    assert len(wording.functions_without_verb([path])) == found


def test_a_property_names_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text('class A:\n    @property\n    def b(self):\n        """The next offset."""\n')
    assert wording.functions_without_verb([path]) == []


def test_no_wording_to_puzzle_over() -> None:
    assert wording.banned_wording(SOURCES) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""Read anew."""\n', 1),
        ('def a():\n    """Wait by\n    and by."""\n', 1),
        ("x = 1  # whoever asks\n", 1),
        ("#: Read again.\nx = 1\n", 0),
        ('x = "anew"\n', 0),
    ],
)
def test_wording_to_puzzle_over_is_found(tmp_path: Path, text: str, found: int) -> None:
    path = tmp_path / "a.py"
    path.write_text(text)
    assert len(wording.banned_wording([path])) == found
