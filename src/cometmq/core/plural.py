"""A number with its noun, in texts for people."""

from __future__ import annotations


def plural(value: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 log file", "2,500 log files".

    ``many`` is the plural if it is not ``one`` with an "s", or if further words depend on the
    number.
    """
    return f"{value:,} {one if value == 1 else many or one + 's'}"
