"""Writes the tables of commands in docs/cli.md and of their output in docs/cli-output.md.

Run `python -m scripts.cli_page` after a change of a command; a test fails if a page differs.
"""

import re
from pathlib import Path
from typing import Any

from cometmq.cli.commands.context import whole_schema
from cometmq.cli.nouns import ENTRIES, load

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN = "<!-- written by scripts/cli_page.py -->"
END = "<!-- end -->"


def commands_table() -> str:
    """Return a row for each command: its words, arguments and summary."""
    lines = ["| command | does |", "|---|---|"]
    for word, entry in ENTRIES.items():
        if not entry.module or word == "spark":
            continue
        for command in load(word).commands.values():
            if command.hidden:
                continue
            usage = command.parser(f"cometmq {word}").usage or ""
            words = usage.removeprefix("cometmq ").replace(" [OPTION...]", "")
            words = words.replace("|", "\\|")
            lines.append(f"| `{words}` | {command.summary} |")
    return "\n".join(lines)


def kind_of(schema: dict[str, Any]) -> str:
    """Return the type of a field as a word."""
    if "anyOf" in schema:
        kinds = [kind_of(each) for each in schema["anyOf"]]
        return " or ".join(kinds)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("format") == "date-time":
        return "time"
    if schema.get("type") == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    return str(schema.get("type", "any value")).replace("string", "text")


def output_tables() -> str:
    """Return the items of each command, and the fields of each kind of item."""
    schema = whole_schema()
    lines = ["| command | items |", "|---|---|"]
    for each in schema["oneOf"]:
        own = each["properties"]
        items = kind_of(own["items"]["items"])
        lines.append(f"| `{own['command']['const']}` | {items} |")
    for name, each in schema["$defs"].items():
        about = " ".join(str(each.get("description", "")).split())
        lines += ["", f"### {name}", "", about, "", "| field | type |", "|---|---|"]
        for field, kind in each.get("properties", {}).items():
            lines.append(f"| `{field}` | {kind_of(kind)} |")
    return "\n".join(lines)


def replaced(page: str, table: str) -> str:
    """Return the page with `table` between its two marks."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", page, count=1)


def pages() -> dict[Path, str]:
    """Return what the pages should have."""
    tables = {"cli.md": commands_table(), "cli-output.md": output_tables()}
    return {
        DOCS / name: replaced((DOCS / name).read_text(encoding="utf-8"), table)
        for name, table in tables.items()
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
