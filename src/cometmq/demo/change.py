"""One change of one row, as it is sent: the body of a message of the demo's topic.

    {"table": "regions", "op": "update", "key": "AD-02", "change": 4711,
     "at_ms": 1772600767089, "row": {"code": "AD-02", ...}}

``change`` grows with every change of a row, even across its deletion and return. So a copy that
stores the highest number of each row can distinguish a late message from a new one. ``row`` is the
whole row after the change, null for a deletion. The message has the operation as its tag and the
key as its key.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cometmq.demo.tables import TABLES, Row

Operation = Literal["insert", "update", "delete"]


class BadChange(ValueError):
    """A message body is not a change of a known table."""


class Change(msgspec.Struct, frozen=True):
    """One committed change; ``at_ms`` is the wall time of its commit."""

    table: str
    op: Operation
    key: str
    change: int
    at_ms: int
    row: Row | None

    def encode(self) -> bytes:
        """Return the message body."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(Change)


def decode(body: bytes) -> Change:
    """Parse a message body. Raise BadChange if it is malformed or contradicts itself."""
    try:
        change = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadChange(f"not a change: {error}") from None
    table = TABLES.get(change.table)
    if table is None:
        raise BadChange(f"no table {change.table!r}")
    if (change.row is None) != (change.op == "delete"):
        raise BadChange(f"{change.op} of {change.key} with row {change.row!r}")
    if change.row is not None and tuple(change.row) != table.names:
        raise BadChange(f"{change.table} has columns {table.names}, not {tuple(change.row)}")
    if change.row is not None and change.row[table.key] != change.key:
        raise BadChange(f"key {change.key!r} over a row of {change.row[table.key]!r}")
    return change
