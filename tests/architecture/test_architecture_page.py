"""The documentation names modules that exist; docs/architecture.md draws import-linter's layers."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.architecture.rules import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MODULE = re.compile(r"(?<![\w/.])[a-z0-9_]+(?:/[a-z0-9_]+)+\.py\b")


def contract_layers(identity: str) -> list[str]:
    """Return the layers of an import-linter contract from the top down, without brackets."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == identity)
    # A layer in brackets may be missing; a package that is missing is not drawn.
    present = (
        " | ".join(
            name.strip("()")
            for name in layer.split(" | ")
            if not name.startswith("(") or (PACKAGE / name.strip("()")).is_dir()
        )
        for layer in layers
    )
    return [layer for layer in present if layer]


def drawn_layers(heading: str) -> list[str]:
    """Return the boxes of the diagram below a heading from the top down."""
    diagram = PAGE.split(f"{heading}\n", 1)[1].split("```mermaid\n", 1)[1].split("```", 1)[0]
    boxes: list[str] = []
    for line in diagram.splitlines()[1:]:
        for box in line.strip().split(" --> "):
            named = re.fullmatch(r'(\w+)(?:\["(.+)"\])?', box)
            assert named is not None, line
            known = [label for label in boxes if label.split(" ", 1)[0] == named[1]]
            if not known:
                boxes.append(named[2] or named[1])
    return boxes


@pytest.mark.parametrize(
    ("heading", "contract"),
    [
        ("## Packages", "layers"),
        ("### The store", "store-rooms"),
        ("### The broker", "broker-rooms"),
    ],
)
def test_a_diagram_shows_the_layers(heading: str, contract: str) -> None:
    assert drawn_layers(heading) == contract_layers(contract)


def missing_modules(text: str) -> list[str]:
    """Return the paths of modules in a text that do not exist."""
    folders = (PACKAGE, PACKAGE / "speedups", PACKAGE.parent, ROOT)
    named = set(MODULE.findall(text))
    return sorted(path for path in named if not any((base / path).is_file() for base in folders))


def test_all_modules_on_the_page_exist() -> None:
    assert len(set(MODULE.findall(PAGE))) > 50
    assert missing_modules(PAGE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_all_modules_in_the_documentation_exist(page: Path) -> None:
    assert missing_modules(page.read_text(encoding="utf-8")) == []


def test_a_missing_module_is_found() -> None:
    assert missing_modules("see `store/replica.py` and `store/gone.py`") == ["store/gone.py"]
