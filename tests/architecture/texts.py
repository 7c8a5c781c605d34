"""Rules about what committed text may name: nothing that exists on one machine only."""

import re
from collections.abc import Iterable
from pathlib import Path

from tests.architecture.rules import ROOT

#: Where committed files are; everything else in a checkout is output or environment.
COMMITTED = (
    *(".ci", ".github", "benchmarks", "docs", "examples", "packaging", "requirements"),
    *("scripts", "src", "tests"),
    *(".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "NOTICE", "README.md"),
    *("SECURITY.md", "mkdocs.yml", "pyproject.toml"),
)
OUTPUT_FOLDERS = frozenset({"__pycache__", "target", "build", "node_modules"})
TEXT_SUFFIXES = frozenset(
    {
        *("", ".cfg", ".conf", ".css", ".html", ".in", ".ini", ".java", ".js", ".json", ".lock"),
        *(".md", ".properties", ".py", ".sh", ".sql", ".toml", ".txt", ".xml", ".yaml", ".yml"),
    }
)

# Written in pieces, so that this file does not name what it forbids.
PLACES = re.compile(
    "|".join(
        (
            r"\.\./sha" "red",
            r"(?<![\w.-])/wo" r"rk/",
            r"(?<![\w.-])/ro" r"ot/",
            r"(?<![\w.-])/ho" r"me/\w",
            r"(?<![\w.-])/t" r"mp/",
            r"py" r"pi\.org",
            r"pythonho" r"sted\.org",
            r"repo1?\.ma" r"ven\.",
            r"registry\.np" r"mjs",
            r"\b(?:des" r"ign|proto" r"col|aesthe" r"tics|sp" r"ark)\.md\b",
        )
    )
)


def committed_texts(root: Path = ROOT) -> list[Path]:
    """The text files of a checkout that are committed, found without asking git."""
    found: list[Path] = []
    for name in COMMITTED:
        top = root / name
        candidates = [top] if top.is_file() else sorted(top.rglob("*"))
        found += [path for path in candidates if path.is_file() and is_own_text(path, root)]
    return found


def is_own_text(path: Path, root: Path) -> bool:
    """Whether a file is text that people write, not output."""
    folders = path.relative_to(root).parts[:-1]
    return path.suffix in TEXT_SUFFIXES and not OUTPUT_FOLDERS.intersection(folders)


def private_places(files: Iterable[Path]) -> list[str]:
    """Lines that name a place which another machine does not have."""
    complaints = []
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if match := PLACES.search(line):
                complaints.append(f"{path}:{number}: {match.group()}")
    return complaints
