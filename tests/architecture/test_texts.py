"""Committed text holds on any machine."""

from pathlib import Path

import pytest

from tests.architecture.rules import ROOT
from tests.architecture.texts import committed_texts, private_places


def test_no_text_names_a_private_place() -> None:
    assert private_places(committed_texts()) == []


def test_the_texts_are_found() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in committed_texts()}
    assert {"README.md", "Makefile", ".ci/run", "requirements/all.lock", "docs/index.md"} <= names
    assert not any("__pycache__" in name for name in names)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("see ../sha" + "red/x", 1),
        ("cd /wo" + "rk/main", 1),
        ("data in /t" + "mp/x", 1),
        ("from py" + "pi.org", 1),
        ("https://repo.ma" + "ven.apache.org/x", 1),
        ("as in proto" + "col.md section 4", 1),
        ("http://ma" + "ven.apache.org/POM/4.0.0", 0),
        ("src/cometmq/protocol/frame.py", 0),
        ("a/work/b and docs/how-to/home.md", 0),
    ],
)
def test_a_private_place_is_found(tmp_path: Path, line: str, found: int) -> None:
    path = tmp_path / "a.md"
    path.write_text(f"fine\n{line}\n", encoding="utf-8")
    assert len(private_places([path])) == found
