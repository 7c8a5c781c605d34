"""Merges into an Iceberg table by key, in the driver's process, through `pyiceberg`.

First, the table's rows with the batch's keys are read. Iceberg's statistics limit the files to read
if the keys are close to each other. Rows that are newer than those of the batch stay. The others
are deleted (pyiceberg rewrites their files without them), and the batch's rows are added, in one
commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table, Transaction

    from cometmq.spark.tables.merge import Merge

_Row = tuple[Any, ...]

#: Maximum number of keys in a filter with several key columns, which has a branch for each key.
_BRANCHES_MAX: Final = 500


def merge_into(table: Table, change: Transaction, rows: pa.Table, merge: Merge) -> None:
    """Merge ``rows``, which have one row per key, into a table, as part of the transaction
    ``change`` on its current version.

    Raises pyiceberg's errors.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not rows.num_rows:
        return
    keys = _tuples(rows, merge.keys)
    orders = _tuples(rows, merge.newest_by)
    there = _orders_there(table, keys, merge)
    counts = [
        key not in there or not _is_newer(there[key], order)
        for key, order in zip(keys, orders, strict=True)
    ]
    replaced = [key for key, chosen in zip(keys, counts, strict=True) if chosen and key in there]
    for some in _parts(replaced, merge.keys):
        change.delete(_filter(merge.keys, some))
    new = rows.filter(pa.array(counts, pa.bool_()))
    if merge.deleted:
        gone = new.column(merge.deleted).fill_null(False)
        new = new.filter(pc.invert(gone)).drop_columns([merge.deleted])
    if new.num_rows:
        change.append(new)


def _orders_there(table: Table, keys: Sequence[_Row], merge: Merge) -> dict[_Row, _Row]:
    """Return the values of ``newest_by`` of the table's rows with these keys, by key."""
    found: dict[_Row, _Row] = {}
    names = (*merge.keys, *(name for name in merge.newest_by if name not in merge.keys))
    for some in _parts(keys, merge.keys):
        scan = table.scan(row_filter=_filter(merge.keys, some), selected_fields=names)
        read = scan.to_arrow()
        there = zip(_tuples(read, merge.keys), _tuples(read, merge.newest_by), strict=True)
        for key, order in there:
            if key not in found or _is_newer(order, found[key]):
                found[key] = order
    return found


def _is_newer(order: _Row, other: _Row) -> bool:
    """Return whether ``order`` is higher than ``other``: the first columns that differ decide. At a
    null, it is not."""
    for own, its in zip(order, other, strict=True):
        if own is None or its is None or own < its:
            return False
        if own > its:
            return True
    return False


def _parts(keys: Sequence[_Row], names: Sequence[str]) -> list[Sequence[_Row]]:
    size = _BRANCHES_MAX if len(names) > 1 else max(1, len(keys))
    return [keys[at : at + size] for at in range(0, len(keys), size)]


def _filter(names: Sequence[str], keys: Sequence[_Row]) -> BooleanExpression:
    """Return the filter for rows with one of the keys."""
    from pyiceberg.expressions import And, EqualTo, In, Or

    # Their annotations describe pydantic's fields, not the constructors.
    is_in, equal, both = cast("Any", In), cast("Any", EqualTo), cast("Any", And)
    if len(names) == 1:
        found: BooleanExpression = is_in(names[0], [key[0] for key in keys])
        return found
    branches: list[BooleanExpression] = [
        both(*(equal(name, value) for name, value in zip(names, key, strict=True))) for key in keys
    ]
    # Build a balanced tree, because pyiceberg walks expressions by recursion.
    while len(branches) > 1:
        pairs = [branches[at : at + 2] for at in range(0, len(branches), 2)]
        branches = [Or(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return branches[0]


def _tuples(rows: pa.Table, names: Sequence[str]) -> list[_Row]:
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
