"""docs/architecture.md names modules that exist and draws the layers that import-linter holds."""

import re
import tomllib

import pytest

from tests.architecture.rules import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULE = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)*/[a-z0-9_]+\.py\b")


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


def test_all_modules_on_the_page_exist() -> None:
    named = set(MODULE.findall(PAGE))
    assert len(named) > 50
    folders = (PACKAGE, PACKAGE / "speedups", ROOT)
    missing = [path for path in named if not any((folder / path).is_file() for folder in folders)]
    assert sorted(missing) == []
