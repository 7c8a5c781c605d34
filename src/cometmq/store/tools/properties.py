"""Topics, tag codes and index hashes of many records: what ``dispatch.row_of`` makes of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cometmq.speedups import WALKED_COLUMNS, walk
from cometmq.store.keyhash import topic_prefix
from cometmq.store.tools.textcodes import text_codes

if TYPE_CHECKING:
    from cometmq.message.columns import Columns
    from cometmq.message.walk import Bytes, Ints

#: The columns of a walk that are used here (speedups/plain/walk.py).
_TAG_CODE, _HASHES = 4, 8


@dataclass(frozen=True, slots=True)
class Derived:
    """What dispatch makes of records: their topics and tag codes, and the hashes of their keys.

    ``topics`` are numbers of a :class:`Topics`, ``topic_codes`` the codes of their names (see
    ``textcodes.text_codes``). ``key_rows`` says whose key each of ``key_hashes``
    is, in the order of dispatch.
    """

    topics: Ints
    topic_codes: Ints
    tag_codes: Ints
    key_rows: Ints
    key_hashes: Ints


class Topics:
    """Numbers for topics, as they come up."""

    __slots__ = ("_codes", "_order", "names", "prefixes")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.prefixes = np.empty(0, np.uint32)
        self._codes = np.empty(0, np.int64)
        self._order = np.empty(0, np.int64)

    def numbers(self, codes: Ints, raw: Bytes, at: Ints, lengths: Ints) -> Ints:
        """The number of each topic by its code; its text stands at ``at``, ``lengths`` long."""
        found = self._look_up(codes)
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            fresh, first = np.unique(codes[unknown], return_index=True)
            for row in unknown[first]:
                text = bytes(raw[at[row] : at[row] + lengths[row]])
                self.names.append(str(text, "utf-8", "replace"))
            self.prefixes = np.array([topic_prefix(name) for name in self.names], np.uint32)
            numbers = np.arange(len(self.names) - len(fresh), len(self.names))
            codes_now = np.concatenate((self._codes, fresh))
            numbers_now = np.concatenate((self._order, numbers))
            order = np.argsort(codes_now)
            self._codes, self._order = codes_now[order], numbers_now[order]
            found = self._look_up(codes)
        return found

    def _look_up(self, codes: Ints) -> Ints:
        if not len(self._codes):
            return np.full(len(codes), -1, np.int64)
        if len(self._codes) == 1:
            return np.where(codes == self._codes[0], self._order[0], -1)
        at = np.searchsorted(self._codes, codes)
        at[at == len(self._codes)] = 0
        return np.where(self._codes[at] == codes, self._order[at], -1)


def derive(raw: Bytes, columns: Columns, topics: Topics, delays_ms: tuple[int, ...]) -> Derived:
    """What dispatch makes of records that stand one behind the other in ``raw``; ``delays_ms`` are
    those of the delay levels."""
    topics_at, topic_bytes = columns.topic_starts, columns.topic_ends - columns.topic_starts
    topic_codes = text_codes(raw, topics_at, topic_bytes)
    numbers = topics.numbers(topic_codes, raw, topics_at, topic_bytes)
    at, stop = (int(columns.starts[0]), int(columns.ends[-1])) if len(columns) else (0, 0)
    tables, hashes = [np.empty((0, WALKED_COLUMNS), np.int64)], [np.empty(0, np.uint32)]
    is_open = True
    while is_open:
        walked = walk(raw.data, at, stop, None, delays_ms, check_crc=False)
        tables.append(np.frombuffer(walked.rows, np.int64).reshape(-1, WALKED_COLUMNS))
        hashes.append(np.frombuffer(walked.hashes, np.uint32))
        at, is_open = walked.stop, walked.is_open
    table = np.concatenate(tables)
    assert len(table) == len(columns), "records of columns are whole"
    return Derived(
        numbers, topic_codes, table[:, _TAG_CODE].copy(),
        np.repeat(np.arange(len(table)), table[:, _HASHES]),
        np.concatenate(hashes).astype(np.int64),
    )  # fmt: skip
