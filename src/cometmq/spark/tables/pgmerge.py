"""The SQL that merges staged rows into a PostgreSQL table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import SettingsError

if TYPE_CHECKING:
    from psycopg import sql

TASK: Final = "_cometmq_task"
"""The column of a staging table with the id of the task attempt that wrote the row."""


@dataclass(frozen=True, slots=True)
class Merge:
    """How rows are merged into the table: by ``keys``, or appended if there are none.

    Among rows of a batch with the same key, the one with the highest ``newest_by`` counts. It
    replaces an existing row only if that row's ``newest_by`` is not higher. Rows whose boolean
    column ``deleted`` is true delete; that column is not in the table.

    Raises SettingsError for an invalid combination.
    """

    keys: tuple[str, ...] = ()
    newest_by: tuple[str, ...] = ()
    deleted: str = ""

    def __post_init__(self) -> None:
        if self.newest_by and not self.keys:
            raise SettingsError("newest_by", "needs keys")
        if self.deleted and not self.newest_by:
            raise SettingsError("deleted", "needs keys, and newest_by to tell what came last")


def statements(
    merge: Merge, target: sql.Composable, staging: sql.Composable, columns: Sequence[str]
) -> list[sql.Composed]:
    """Return the statements that merge the staged rows into the table.

    Each takes one parameter: the list of the task attempts that count.
    """
    from psycopg import sql

    kept = [name for name in columns if name != merge.deleted]
    other = [name for name in kept if name not in merge.keys]
    parts: dict[str, sql.Composable] = {
        "target": target,
        "columns": names(kept),
        "keys": names(merge.keys),
        "newest": _newest(merge, staging, columns),
        "deleted": sql.Identifier(merge.deleted or "-"),
        "same_key": _equal(" AND ", merge.keys, "t", "s"),
        "set": _equal(", ", other, "", "excluded"),
        "not_newer": _not_newer(merge.newest_by, "t", "s"),
        "still": _not_newer(merge.newest_by, "t", "excluded"),
    }
    if not merge.keys:
        append = "INSERT INTO {target} ({columns}) SELECT {columns} FROM {newest} s"
        return [sql.SQL(append).format(**parts)]
    found: list[sql.Composed] = []
    rest = ""
    if merge.deleted:
        delete = "DELETE FROM {target} t USING {newest} s WHERE {same_key} AND {not_newer} "
        found.append(sql.SQL(delete + "AND s.{deleted}").format(**parts))
        rest = "WHERE s.{deleted} IS NOT TRUE "
    upsert = sql.SQL(
        "INSERT INTO {target} AS t ({columns}) SELECT {columns} FROM {newest} s "
        + rest
        + "ON CONFLICT ({keys}) DO "
        + ("UPDATE SET {set} WHERE {still}" if other else "NOTHING")
    )
    return [*found, upsert.format(**parts)]


def names(columns: Sequence[str]) -> sql.Composed:
    """Return the column names quoted and separated by commas."""
    from psycopg import sql

    return sql.SQL(", ").join(sql.Identifier(name) for name in columns)


def _newest(merge: Merge, staging: sql.Composable, columns: Sequence[str]) -> sql.Composed:
    """Return the subquery for the rows of the tasks, with one row per key if an order is given."""
    from psycopg import sql

    rows = sql.SQL("(SELECT {columns} FROM {staging} WHERE {task} = ANY(%s))")
    if merge.newest_by:
        rows = sql.SQL(
            "(SELECT DISTINCT ON ({keys}) {columns} FROM {staging} WHERE {task} = ANY(%s) "
            "ORDER BY {keys}, {order})"
        )
    last_first = sql.SQL("{} DESC NULLS LAST")
    return rows.format(
        columns=names(columns),
        staging=staging,
        task=sql.Identifier(TASK),
        keys=names(merge.keys),
        order=sql.SQL(", ").join(last_first.format(sql.Identifier(x)) for x in merge.newest_by),
    )


def _equal(between: str, columns: Sequence[str], left: str, right: str) -> sql.Composed:
    """Return ``left.name = right.name`` for each column; without a left, the name alone."""
    from psycopg import sql

    words = (
        sql.SQL("{} = {}").format(
            sql.Identifier(*filter(None, (left, name))), sql.Identifier(right, name)
        )
        for name in columns
    )
    return sql.SQL(between).join(words)


def _not_newer(columns: Sequence[str], left: str, right: str) -> sql.Composable:
    """Return the condition that the row of the table is not newer than the incoming one."""
    from psycopg import sql

    if not columns:
        return sql.SQL("TRUE")
    own, other = (
        sql.SQL(", ").join(sql.Identifier(side, name) for name in columns) for side in (left, right)
    )
    return sql.SQL("(ROW({}) > ROW({})) IS NOT TRUE").format(own, other)
