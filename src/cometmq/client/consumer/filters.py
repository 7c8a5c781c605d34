"""What a subscription wants of a topic: messages with some tags, or such that match SQL92."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.filter import tags
from cometmq.filter.sqltext import parse
from cometmq.filter.tags import TagFilter


@dataclass(frozen=True, slots=True)
class Sql:
    """Messages whose properties match a SQL92 expression, such as
    ``Sql("price > 5 AND region IN ('AD', 'FR')")``.

    Raises BadFilter (a ValueError) for one that cannot be read. Brokers evaluate it; those in Java
    only with ``enablePropertyFilter=true``.
    """

    expression: str

    kind: ClassVar[str] = "SQL92"
    tags: ClassVar[frozenset[str]] = frozenset()
    codes: ClassVar[frozenset[int]] = frozenset()
    #: Nothing is filtered here: the broker's word counts.
    matches_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        parse(self.expression)

    def accepts(self, tag: str) -> bool:
        """Whether a message that the broker sent is wanted."""
        del tag
        return True


Filter = TagFilter | Sql


def parse_filter(wanted: str | Sql) -> Filter:
    """A filter from what a user gave: tags (``insert || update``) or Sql. Raises ValueError."""
    return wanted if isinstance(wanted, Sql) else tags.parse_exactly(wanted)
