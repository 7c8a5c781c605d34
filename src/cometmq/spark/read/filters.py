"""Message filters of a read: tags or an SQL92 expression in the options.

The broker is asked to filter. Its result is filtered again here, because a broker compares only the
hashes of tags, and a broker without SQL92 returns everything. The result of a read is therefore the
same whether or not the broker filters. Reads of a store directory accept the same options.

The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from cometmq.filter import tags
from cometmq.filter.sql92 import SqlFilter
from cometmq.filter.tags import TagFilter
from cometmq.message import properties
from cometmq.spark.options import BadOption, Given, get, one_of, parsed, some_text

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.spark.decode import Block

OPTIONS: Final = ("filter", "filterType", "sqlFilter")
TAG: Final = "TAG"
SQL92: Final = "SQL92"
EVERYTHING: Final = tags.parse(None)

#: A truth value for each row of a block.
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The filter of a read.

    If ``sql``, a valid SQL92 expression, is set, ``tags`` is not used. ``matches_none`` is true if
    no message can match.
    """

    tags: TagFilter = EVERYTHING
    sql: str | None = None
    matches_none: bool = False

    @property
    def matches_all(self) -> bool:
        """True if every message matches."""
        return self.sql is None and self.tags.matches_all and not self.matches_none

    @property
    def expression_type(self) -> str:
        """Type of the expression, as sent to a broker."""
        return TAG if self.sql is None else SQL92

    @property
    def expression(self) -> str:
        """The expression, as sent to a broker."""
        return self.tags.expression if self.sql is None else self.sql

    def narrowed(self, wanted: Iterable[str]) -> RowFilter:
        """Return the filter limited to those of its tags that are also in ``wanted``.

        A filter without tags is limited to all of ``wanted``.
        """
        both = set(wanted) if self.tags.matches_all else self.tags.tags & set(wanted)
        if self.matches_none or not both:
            return replace(self, tags=EVERYTHING, matches_none=True)
        codes = frozenset(map(tags.tag_code, both))
        return replace(self, tags=TagFilter(" || ".join(sorted(both)), frozenset(both), codes))

    def choose(self, block: Block, *, beside: Collection[int] = ()) -> None:
        """Keep only the rows of a block that match.

        Records that begin at the positions ``beside`` are kept too: they are unreadable, so the
        filter cannot be evaluated.
        """
        if self.matches_all:
            return
        if self.matches_none:
            found = np.zeros(len(block), np.bool_)
        elif self.sql is not None:
            found = np.array(_compiled(self.sql).matches(block.property_texts()), np.bool_)
        else:
            found = _tagged(block.column("tags"), self.tags)
        if beside:
            found |= np.isin(block.starts, [*beside])
        block.choose(found)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of rows that :meth:`among` needs."""
        if self.matches_all or self.matches_none:
            return ()
        return ("tags",) if self.sql is None else ("properties",)

    def among(self, rows: pa.RecordBatch) -> Flags:
        """Return for each of the decoded ``rows`` whether it matches."""
        if self.matches_all or self.matches_none:
            return np.full(len(rows), not self.matches_none)
        if self.sql is None:
            return _tagged(rows.column("tags"), self.tags)
        texts = [properties.encode(dict(each or ())) for each in rows["properties"].to_pylist()]
        return np.array(_compiled(self.sql).matches(texts), np.bool_)


def parse(given: Given) -> RowFilter:
    """Parse the filter options. Raises BadOption."""
    kind = get(given, "filterType", one_of("tags", SQL92), "tags")
    if "sqlFilter" in given:
        for name in ("filter", "filterType"):
            if name in given:
                raise BadOption(name, "cannot be given together with sqlFilter")
        return RowFilter(sql=parsed("sqlFilter", given["sqlFilter"], _expression))
    if kind == SQL92:
        if "filter" not in given:
            raise BadOption("filterType", "needs option filter, which is not given")
        return RowFilter(sql=parsed("filter", given["filter"], _expression))
    return RowFilter(get(given, "filter", tags.parse_exactly, EVERYTHING))


def _expression(text: str) -> str:
    _compiled(some_text(text))
    return text


@lru_cache(maxsize=64)
def _compiled(expression: str) -> SqlFilter:
    return SqlFilter(expression)


def _tagged(found_tags: pa.Array, wanted: TagFilter) -> Flags:
    encoded = found_tags.dictionary_encode()
    known = [wanted.accepts(tag) for tag in encoded.dictionary.to_pylist()]
    verdicts = np.array([*known, False])
    index = encoded.indices.fill_null(len(known)).to_numpy()
    found: Flags = verdicts[index]
    return found
