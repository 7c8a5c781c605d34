"""Writes the table of request codes in docs/wire.md from the registry.

Run `python -m scripts.wire_page` after a change of the registry; a test fails if the page differs.
"""

import re
from pathlib import Path

from cometmq.protocol.registry import REGISTRY, CodeSpec, Side

PAGE = Path(__file__).resolve().parent.parent / "docs" / "wire.md"
BEGIN = "<!-- request codes: written by scripts/wire_page.py -->"
END = "<!-- end of request codes -->"

SIDES = {Side.BROKER: "broker", Side.NAMESRV: "name server", Side.CLIENT: "client"}


def code_row(spec: CodeSpec) -> str:
    """Return one row of the table."""
    served = ", ".join(name for side, name in SIDES.items() if side in spec.side)
    notes = [note for flag, note in ((spec.mutates, "changes"), (spec.urgent, "urgent")) if flag]
    cells = (
        str(int(spec.code)),
        f"`{spec.code.name}`",
        served,
        f"`{spec.header.__name__}`",
        f"`{spec.response.__name__}`",
        spec.lane.name.lower(),
        ", ".join(notes),
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def code_table() -> str:
    """Return the whole table, by code."""
    head = "| code | name | served by | request header | response header | lane | notes |"
    rows = [code_row(REGISTRY[code]) for code in sorted(REGISTRY)]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


def replace_table(page: str, table: str) -> str:
    """Return the page with `table` between its two marks."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", page, count=1)


if __name__ == "__main__":
    PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8"), code_table()), encoding="utf-8")
