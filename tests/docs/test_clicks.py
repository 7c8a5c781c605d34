"""From the README, the answers to a user's first questions are two clicks away."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.architecture.rules import ROOT
from tests.docs.pages import REPOSITORY, links

#: What is looked for, and the page or the heading of a page where it stands.
WANTED = {
    "TLS": "docs/how-to/tls.md",
    "an alert on lag": "docs/monitoring.md",
    "backup": "docs/how-to/production.md#back-up-and-restore",
    "failover": "docs/slaves.md#promote-a-slave",
    "exactly once in Spark": "docs/spark/tables.md",
    "a slow consumer": "docs/how-to/daily-work.md#look-after-a-slow-group",
}


def targets(page: Path) -> set[str]:
    """Where the links of a page lead inside of the repository, with their headings."""
    found = set()
    for link in links(page.read_text(encoding="utf-8")):
        target, mark, anchor = link.partition("#")
        inside = REPOSITORY.match(target)
        if inside:
            target = target[inside.end() :]
        elif re.match(r"[a-z]+:", target):
            continue
        else:
            path = (page.parent / unquote(target)).resolve() if target else page
            target = path.relative_to(ROOT).as_posix()
        found.add(f"{target}{mark}{anchor}")
    return found


def in_two_clicks() -> set[str]:
    """Everything that is two links away from the README."""
    first = targets(ROOT / "README.md")
    pages = {name.partition("#")[0] for name in first if name.partition("#")[0].endswith(".md")}
    return first.union(*(targets(ROOT / name) for name in pages))


@pytest.mark.parametrize("what", WANTED)
def test_two_clicks(what: str) -> None:
    assert WANTED[what] in in_two_clicks()
