"""The reference of the Python API is current and complete."""

import ast

import pytest

import cometmq
from scripts.api_page import FOLDER, PAGES, class_entry, page_text


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    assert page == page_text(PAGES[name]), "run python -m scripts.api_page"


def test_every_public_name_is_in_the_reference() -> None:
    shown = {described.split()[-1] for page in PAGES.values() for described in page.names}
    assert set(cometmq.__all__) - shown == set()


def test_an_entry_has_what_a_caller_needs() -> None:
    source = '''
class Thing:
    """Do things, as :meth:`go` does."""

    #: How many.
    count: int = 3
    stop = wrapped(Other.stop)

    def __init__(self, name: str, *, size: int = 1) -> None: ...

    async def go(self, where: str, /, *ways: int, fast: bool = False) -> list[str]:
        """Go to ``where``."""

    def _hidden(self) -> None: ...
'''
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.ClassDef)
    assert list(class_entry(node, "Thing", source.splitlines())) == [
        "## Thing",
        "```text\nThing(name: str, *, size: int = 1)\n```",
        "Do things, as `go` does.",
        "- `count: int = 3`: How many.",
        "With the arguments of the asyncio class, and waiting for the result: `stop`.",
        "### go",
        "```text\nawait go(where: str, /, *ways: int, fast: bool = False) -> list[str]\n```",
        "Go to `where`.",
    ]
