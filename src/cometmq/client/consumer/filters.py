"""Filters of a subscription: by tag, or by a SQL92 expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.filter import tags
from cometmq.filter.sqltext import parse
from cometmq.filter.tags import TagFilter


@dataclass(frozen=True, slots=True)
class Sql:
    """Filter for messages whose properties match a SQL92 expression, such as ``Sql("price > 5 AND
    region IN ('AD', 'FR')")``.

    Raises BadFilter (a ValueError) for an invalid expression. Brokers evaluate it; Java brokers do
    so only with ``enablePropertyFilter=true``.
    """

    expression: str

    kind: ClassVar[str] = "SQL92"
    tags: ClassVar[frozenset[str]] = frozenset()
    codes: ClassVar[frozenset[int]] = frozenset()
    #: The broker filters; the client accepts every message that it receives.
    matches_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        parse(self.expression)

    def accepts(self, tag: str) -> bool:
        """Return whether a message that the broker sent is accepted."""
        del tag
        return True


Filter = TagFilter | Sql


def parse_filter(wanted: str | Sql) -> Filter:
    """Parse a filter from tags (``insert || update``), or return an Sql as it is.

    Raises ValueError.
    """
    return wanted if isinstance(wanted, Sql) else tags.parse_exactly(wanted)
