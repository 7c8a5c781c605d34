"""Writes the table of docs/mqadmin.md from tests/compat/commands.py.

Run `python -m scripts.mqadmin_page` after a change of the table; a test fails if the page differs.
"""

from pathlib import Path

from scripts.marks import write_tables
from tests.compat.commands import COMMANDS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "mqadmin.md"


def command_table() -> str:
    """Return the table of all commands."""
    lines = ["| command | of | with CometMQ | how |", "|---|---|---|---|"]
    for command in COMMANDS:
        versions = ", ".join(command.versions)
        how = command.how.replace("|", "\\|")
        lines.append(f"| `{command.name}` | {versions} | {command.verdict.value} | {how} |")
    return "\n".join(lines)


def replace_table(text: str) -> str:
    """Return the page's text with the table as it is now."""
    return write_tables(text, "scripts/mqadmin_page.py", {"commands": command_table()})


if __name__ == "__main__":
    PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
