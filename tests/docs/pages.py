"""Pages of the documentation and the links between them, read without the site's tool."""

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

import yaml

from tests.architecture.rules import ROOT

DOCS = ROOT / "docs"
#: Pages that are not part of the site.
OTHER_PAGES = tuple(
    path
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
    if (path := ROOT / name).is_file()
)
#: Addresses under which the README's links work on PyPI as well.
REPOSITORY = re.compile(r"https://github\.com/cometmq/cometmq/(?:blob|tree|raw)/main/")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\))?)\)")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)

Navigation = str | list["Navigation"] | dict[str, "Navigation"]


def prose(text: str) -> str:
    """Return a page without its blocks and spans of code, in which nothing is a link."""
    return re.sub(r"`[^`\n]*`", "`code`", FENCE.sub("", text))


def links(text: str) -> list[str]:
    """Return the targets of a page's links, in order."""
    return LINK.findall(prose(text))


def anchors(text: str) -> set[str]:
    """Return the names of a page's headings, as Python-Markdown makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\s-]", "", words.encode("ascii", "ignore").decode()).strip().lower()
        name = plain = re.sub(r"[-\s]+", "-", name)
        count = 0
        while name in found:
            count += 1
            name = f"{plain}_{count}"
        found.add(name)
    return found


def broken_links(pages: Iterable[Path], root: Path = ROOT) -> list[str]:
    """Return the links to files or headings that do not exist, each with its page.

    Links to other sites are not followed. Pages of the site link only to pages of the site.
    """
    complaints = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for link in links(text):
            target, _, anchor = link.partition("#")
            inside = REPOSITORY.match(target)
            if not inside and re.match(r"[a-z]+:", target):
                continue
            base = root if inside else page.parent
            path = base / unquote(target[inside.end() :] if inside else target) if target else page
            docs = root / "docs"
            if (
                not path.exists()
                or (not inside and docs in page.parents and docs not in path.resolve().parents)
                or (anchor and anchor not in anchors(path.read_text(encoding="utf-8")))
            ):
                complaints.append(f"{page.relative_to(root)}: {link}")
    return complaints


def navigation() -> dict[str, list[str]]:
    """Return the pages below each tab of the site, in order."""

    def flat(node: Navigation) -> list[str]:
        if isinstance(node, str):
            return [node]
        children = node if isinstance(node, list) else node.values()
        return [path for child in children for path in flat(child)]

    # Names of Python functions stand in the file for the tool that reads it.
    text = re.sub(r"!!python/name:\S+", "''", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    tabs: list[dict[str, Navigation]] = yaml.safe_load(text)["nav"]
    return {name: flat(node) for tab in tabs for name, node in tab.items()}
