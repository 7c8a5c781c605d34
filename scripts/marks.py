"""Marks in pages of the documentation between which scripts write tables."""

from collections.abc import Mapping


def write_tables(page: str, script: str, tables: Mapping[str, str]) -> str:
    """Return the page with each table between the marks of its name.

    ``script`` is the path that the first mark shows. Raises ValueError for a name without marks.
    """
    for name, table in tables.items():
        begin = f"<!-- {name}: written by {script} -->"
        end = f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"the page has no place for {name}")
        page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return page
