"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def console(*, stderr: bool = False) -> Console:
    """Return a console without automatic highlighting: numbers and words print unchanged."""
    return Console(highlight=False, markup=False, stderr=stderr)


def print_json(values: Iterable[Any]) -> None:
    """Print one JSON object per line."""
    for value in values:
        print(msgspec.json.encode(value).decode(), flush=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns of numbers are aligned right."""
    found = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        right = bool(found) and all(isinstance(row[number], int) for row in found)
        table.add_column(Text(heading), justify="right" if right else "left", overflow="fold")
    for row in found:
        table.add_row(*(Text(_text(cell)) for cell in row))
    console().print(table)


def print_rows(rows: Sequence[DataclassInstance]) -> None:
    """Print a table of instances of one dataclass, a column for each field; nothing if there are
    none.
    """
    if rows:
        names = [field.name for field in fields(rows[0])]
        headings = [name.replace("_", " ") for name in names]
        print_table(headings, ([getattr(row, name) for name in names] for row in rows))


def body_text(body: bytes, limit: int = 200) -> str:
    """Return a body as text, shortened to ``limit`` characters, or its size if it is not text."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"<{len(body)} bytes>"
    if not text.isprintable() and not text.replace("\n", " ").isprintable():
        return f"<{len(body)} bytes>"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
