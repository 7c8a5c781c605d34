"""Delta's statistics of a data file: the row count, and per column the minimum, maximum and nulls.

All are in the Parquet file's footer, so a file takes one small read. Nested columns are left out,
and so are values without an exact bound: floats (NaN has no place in the order) and long texts.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_TEXT_MAX: Final = 64
_MS: Final = datetime.timedelta(milliseconds=1)


def statistics_of(path: str) -> str:
    """Return Delta's statistics JSON for a file on this machine. Raises OSError,
    pyarrow.ArrowInvalid."""
    import pyarrow.parquet as pq

    return _of_footer(pq.read_metadata(path))


def _of_footer(footer: pq.FileMetaData) -> str:
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    whole = set(footer.schema.to_arrow_schema().names)
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        if name not in whole:
            continue
        groups = range(footer.num_row_groups)
        parts = [footer.row_group(group).column(index).statistics for group in groups]
        if all(part is not None and part.has_null_count for part in parts):
            nulls[name] = sum(part.null_count for part in parts)
        filled = [part for part in parts if part is None or part.num_values]
        if filled and all(part is not None and part.has_min_max for part in filled):
            low = _bound(min(part.min for part in filled), up=False)
            high = _bound(max(part.max for part in filled), up=True)
            if low is not None and high is not None:
                least[name], greatest[name] = low, high
    found = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest}
    return msgspec.json.encode({**found, "nullCount": nulls}).decode()


def _bound(value: Any, *, up: bool) -> Any:
    """Return a value in the form of Delta's JSON, or None if it cannot be a bound."""
    if isinstance(value, datetime.datetime):
        # Delta's timestamps have milliseconds, so the upper bound is rounded up.
        below = value.replace(microsecond=value.microsecond // 1000 * 1000)
        shown = below + _MS if up and below != value else below
        text = shown.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return f"{text}Z" if value.tzinfo else text
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _TEXT_MAX else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None
