"""SQL statements with their values, shared by the outboxes of all databases. Pure.

A placeholder is ``?`` or ``%s``; everything else means the same in SQLite and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.outbox.row import Settled, WantedRows

Value = str | int | bytes | None
#: A statement and the values of its placeholders.
Statement = tuple[str, tuple[Value, ...]]

_WAITS: Final = "published_ms IS NULL AND refused IS NULL"
_INDEXES: Final = f"""
CREATE INDEX IF NOT EXISTS {{name}}_waiting ON {{table}} (id)
    WHERE {_WAITS};
CREATE INDEX IF NOT EXISTS {{name}}_refused ON {{table}} (topic, order_key, id)
    WHERE refused IS NOT NULL;
CREATE INDEX IF NOT EXISTS {{name}}_published ON {{table}} (published_ms)
    WHERE published_ms IS NOT NULL;
"""
_BEHIND_A_REFUSED: Final = (
    "EXISTS (SELECT 1 FROM {table} AS held WHERE held.refused IS NOT NULL"
    " AND held.topic = waiting.topic AND held.order_key = waiting.order_key"
    " AND held.id < waiting.id)"
)


@dataclass(frozen=True, slots=True)
class Statements:
    """Statements for one table."""

    table: str
    mark: str

    def indexes(self) -> str:
        """Return statements that create missing indexes of the table, in the table's schema."""
        return _INDEXES.format(table=self.table, name=self.table.rpartition(".")[2])

    def waiting(self, wanted: WantedRows) -> Statement:
        """Return the query of the oldest rows that may be sent: id, topic, order key, body size."""
        conditions = [_WAITS]
        if wanted.resting:
            conditions.append(f"topic NOT IN ({self._marks(wanted.resting)})")
        if wanted.hold_keys:
            conditions.append(f"NOT {_BEHIND_A_REFUSED.format(table=self.table)}")
        return (
            f"SELECT id, topic, order_key, length(body) FROM {self.table} AS waiting "
            f"WHERE {' AND '.join(conditions)} ORDER BY id LIMIT {self.mark}",
            (*wanted.resting, wanted.rows),
        )

    def rows(self, ids: Sequence[int]) -> Statement:
        """Return the query of the fields of row.Row for these ids, in order."""
        return (
            "SELECT id, topic, order_key, CAST(headers AS TEXT), body, created_ms "
            f"FROM {self.table} WHERE id IN ({self._marks(ids)}) ORDER BY id",
            tuple(ids),
        )

    def settle(self, settled: Settled) -> Iterator[tuple[str, list[tuple[Value, ...]]]]:
        """Yield statements, each with the list of values to execute it with."""
        table, mark = self.table, self.mark
        if settled.published and settled.keep_ms:
            yield (
                f"UPDATE {table} SET published_ms = {mark}, sent_as = {mark} WHERE id = {mark}",
                [(settled.now_ms, sent_as, at) for at, sent_as in settled.published.items()],
            )
            expired_ms = settled.now_ms - settled.keep_ms
            yield f"DELETE FROM {table} WHERE published_ms < {mark}", [(expired_ms,)]
        elif settled.published:
            yield f"DELETE FROM {table} WHERE id = {mark}", [(at,) for at in settled.published]
        if settled.refused:
            yield (
                f"UPDATE {table} SET refused = {mark} WHERE id = {mark}",
                [(reason, at) for at, reason in settled.refused.items()],
            )

    def sent_as(self, row_id: int) -> Statement:
        """Return the query of the attempt that published a row."""
        return (
            f"SELECT sent_as FROM {self.table} WHERE id = {self.mark} AND published_ms IS NOT NULL",
            (row_id,),
        )

    def status(self) -> Statement:
        """Return the query of the fields of row.Status."""
        return (
            f"SELECT count(*), min(created_ms), (SELECT count(*) FROM {self.table} "
            f"WHERE refused IS NOT NULL) FROM {self.table} WHERE {_WAITS}",
            (),
        )

    def refused(self, limit: int) -> Statement:
        """Return the query of the fields of row.Refusal, for the oldest ``limit`` rows."""
        return (
            f"SELECT id, topic, order_key, refused FROM {self.table} "
            f"WHERE refused IS NOT NULL ORDER BY id LIMIT {self.mark}",
            (limit,),
        )

    def retry(self, row_id: int) -> Statement:
        """Return the update that makes a refused row wait again."""
        return f"UPDATE {self.table} SET refused = NULL {self._refused()}", (row_id,)

    def discard(self, row_id: int) -> Statement:
        """Return the deletion of a refused row."""
        return f"DELETE FROM {self.table} {self._refused()}", (row_id,)

    def _refused(self) -> str:
        return f"WHERE id = {self.mark} AND refused IS NOT NULL"

    def _marks(self, values: Sequence[object]) -> str:
        return ", ".join([self.mark] * len(values))
