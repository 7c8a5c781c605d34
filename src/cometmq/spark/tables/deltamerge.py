"""Merges into a Delta table by key: builds the expressions of the merge, which deltalake runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import CommitProperties

    from cometmq.spark.tables.merge import Merge


def merge_into(
    table: DeltaTable,
    rows: pa.Table,
    merge: Merge,
    columns: Sequence[str],
    properties: CommitProperties,
) -> None:
    """Merge ``rows``, which have one row per key, into the ``columns`` of a table in one commit.

    If the merge changes nothing, there is no commit. Raises deltalake's errors.
    """
    same_key = " AND ".join(f"{_of('t', name)} = {_of('s', name)}" for name in merge.keys)
    values = {_name(name): _of("s", name) for name in columns}
    still = not_newer(merge.newest_by)
    merger = table.merge(
        rows, same_key, source_alias="s", target_alias="t", commit_properties=properties
    )
    stays = None
    if merge.deleted:
        gone = f"coalesce({_of('s', merge.deleted)}, false)"
        merger = merger.when_matched_delete(f"{gone} AND {still}")
        stays = f"NOT {gone}"
    merger = merger.when_matched_update(values, still if stays is None else f"{stays} AND {still}")
    merger.when_not_matched_insert(values, stays).execute()


def not_newer(newest_by: Sequence[str]) -> str:
    """Return the condition that the table's row is not newer than the incoming one.

    Columns are compared in order. A null is no reason to keep the table's row.
    """
    newer = "false"
    for name in reversed(newest_by):
        own, other = _of("t", name), _of("s", name)
        newer = f"({own} > {other} OR ({own} = {other} AND {newer}))"
    return f"NOT coalesce({newer}, false)"


def _of(alias: str, name: str) -> str:
    return f"{alias}.{_name(name)}"


def _name(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
