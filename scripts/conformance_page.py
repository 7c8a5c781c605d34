"""Writes the tables of docs/conformance.md from the marks of the tests in tests/compat.

Run `python -m scripts.conformance_page` after a change of these tests. A test fails if the page
differs, or if a line has no proof.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.compat.lines import EXCEPTIONS, LINES

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "conformance.md"
BEGIN: Final = "<!-- lines and tests: written by scripts/conformance_page.py -->"
END: Final = "<!-- end of lines and tests -->"

BROKERS: Final = {"cometmq": "CometMQ", "java": "Java 4.9.7", "java5": "Java 5.5.0"}
OURS: Final = "CometMQ's client"
#: The columns: the client and the broker.
COLUMNS: Final = (
    *(("4.9.7", "cometmq"), ("4.9.7", "java"), ("5.5.0", "cometmq"), ("5.5.0", "java")),
    *((OURS, "cometmq"), (OURS, "java"), (OURS, "java5")),
)
#: The columns that each line must prove in every run.
REQUIRED: Final = frozenset(COLUMNS) - {("5.5.0", "java")}


@dataclass(frozen=True, slots=True)
class Proof:
    """One run of one test: the line that it proves, the client and the broker."""

    line: str
    client: str
    broker: str
    test: str
    deep: bool


class Collector:
    """A pytest plugin that reads the marks of the collected tests."""

    def __init__(self) -> None:
        self.proofs: list[Proof] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Record what each test proves."""
        for item in items:
            assert isinstance(item, pytest.Function)
            with_whom = item.callspec.params if hasattr(item, "callspec") else {}
            clients = [OURS] if "client" in item.fixturenames else []
            clients += [str(with_whom["driver"])] if "driver" in with_whom else []
            name = f"{item.path.stem}::{item.originalname}"
            deep = item.get_closest_marker("deep") is not None
            for marker in item.iter_markers("proves"):
                self.proofs += [
                    Proof(line, client, str(with_whom["target"]), name, deep)
                    for line in marker.args
                    for client in clients
                ]


def collect() -> list[Proof]:
    """Return the proofs of all tests. Collecting imports every test, so it runs in a separate
    process."""
    command = [sys.executable, "-m", "scripts.conformance_page", "--collect"]
    done = subprocess.run(
        command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    return [Proof(*row) for row in json.loads(done.stdout.splitlines()[-1])]


def print_collected() -> int:
    """Print the input of `collect`. Return pytest's exit code."""
    found = Collector()
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "compat")]
    code = pytest.main(words, plugins=[found])
    rows = [[each.line, each.client, each.broker, each.test, each.deep] for each in found.proofs]
    print("\n" + json.dumps(rows))
    return int(code)


def lacking(proofs: list[Proof]) -> list[str]:
    """Return the lines that some required client and broker does not prove in every run, except for
    EXCEPTIONS."""
    proved = {(each.line, each.client, each.broker) for each in proofs if not each.deep}
    return [
        f"{line}: {client} on {BROKERS[broker]}"
        for room in LINES.values()
        for line in room
        for client, broker in sorted(REQUIRED)
        if (line, client, broker) not in proved
        and not {(line, client), (line, broker)} & EXCEPTIONS.keys()
    ]


def tables(proofs: list[Proof]) -> str:
    """Return the tables of the page, one per room."""
    by_line: dict[str, list[Proof]] = defaultdict(list)
    for each in proofs:
        by_line[each.line].append(each)
    clients = [OURS if client == OURS else f"Java {client}" for client, _ in COLUMNS]
    heads = [f"{who} on {BROKERS[where]}" for who, (_, where) in zip(clients, COLUMNS, strict=True)]
    parts = []
    for room, lines in LINES.items():
        rows = [f"### {room}", "", f"| line | {' | '.join(heads)} | tests |"]
        rows.append("|---" * (len(COLUMNS) + 2) + "|")
        for line in lines:
            cells = [cell(by_line[line], *column) for column in COLUMNS]
            names = sorted({f"`{each.test}`" for each in by_line[line]})
            rows.append(f"| {' | '.join([line, *cells, '<br>'.join(names)])} |")
        parts.append("\n".join(rows))
    noted = [f"- {line}, {named(who)}: {why}." for (line, who), why in EXCEPTIONS.items()]
    return "\n\n".join([*parts, "What cannot be:", "\n".join(noted)])


def named(who: str) -> str:
    """Return the page's name of a client or a broker."""
    return f"{BROKERS[who]} broker" if who in BROKERS else f"Java {who} client"


def cell(proofs: list[Proof], client: str, broker: str) -> str:
    """Return the text of a cell: proved in every run, only in deep runs, or not."""
    here = [each.deep for each in proofs if (each.client, each.broker) == (client, broker)]
    return "–" if not here else "deep" if all(here) else "yes"


def replace_tables(page: str, text: str) -> str:
    """Return the page with `text` between its two marks."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page, count=1)


if __name__ == "__main__":
    if "--collect" in sys.argv:
        sys.exit(print_collected())
    written = replace_tables(PAGE.read_text(encoding="utf-8"), tables(collect()))
    PAGE.write_text(written, encoding="utf-8")
