"""All pages are in the navigation, and all links lead somewhere."""

from collections import Counter
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, OTHER_PAGES, anchors, broken_links, links, navigation

PAGES = sorted(DOCS.rglob("*.md"))


def test_there_are_four_tabs() -> None:
    assert list(navigation()) == ["Use", "Operate", "Spark", "Contribute"]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = Counter(path for tab in navigation().values() for path in tab)
    there = {page.relative_to(DOCS).as_posix() for page in PAGES}
    assert there - set(listed) == set(), "add a line to nav in mkdocs.yml"
    assert set(listed) - there == set(), "mkdocs.yml names pages that do not exist"
    assert [path for path, count in listed.items() if count > 1] == []


def test_decisions_are_for_contributors() -> None:
    for tab, pages in navigation().items():
        assert tab == "Contribute" or not any(path.startswith("decisions/") for path in pages)


def test_no_link_is_broken() -> None:
    assert len([link for page in PAGES for link in links(page.read_text(encoding="utf-8"))]) > 400
    assert broken_links([*PAGES, *OTHER_PAGES]) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](b.md)", 0),
        ("[a](b.md#a-title-and-code)", 0),
        ("[a](#own) and [`code`](b.md)\n\n## Own", 0),
        ("`[a](gone.md)`\n\n```\n[a](gone.md)\n```\n", 0),
        ("[a](https://example.org/gone)", 0),
        ("[a](https://github.com/cometmq/cometmq/blob/main/docs/b.md#a-title-and-code)", 0),
        ("[a](https://github.com/cometmq/cometmq/blob/main/docs/gone.md)", 1),
        ("[a](gone.md)", 1),
        ("![a](gone.svg)", 1),
        ("[a](b.md#gone)", 1),
        ("[a](#gone)", 1),
        ("[a](../outside.txt)", 1),
    ],
)
def test_a_broken_link_is_found(tmp_path: Path, text: str, found: int) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "outside.txt").touch()
    (docs / "b.md").write_text("# A title, and `code`\n", encoding="utf-8")
    page = docs / "a.md"
    page.write_text(text, encoding="utf-8")
    assert len(broken_links([page], tmp_path)) == found


def test_headings_of_the_same_name_are_numbered() -> None:
    assert anchors("## Limits\n\n## Limits\n") == {"limits", "limits_1"}
