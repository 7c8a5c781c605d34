"""Tag codes and index hashes of many records at once: the numpy twin of ``dispatch.row_of``.

Properties are text of any shape, but the records of a store have few shapes. So the first record's
pairs are taken apart, and all others of the same length are compared with it in whole words: the
same names and separators at the same places, anything else in between. What fits is hashed by the
column; the rest gives the next shape, and what fits none of the first few is decoded one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cometmq.message import properties as props
from cometmq.message.flags import TransactionType
from cometmq.message.walk import Bytes, Ints, window
from cometmq.store.dispatch import code_and_keys
from cometmq.store.keyhash import index_hash, topic_prefix
from cometmq.store.layout import SCHEDULE_TOPIC
from cometmq.store.tools.textcodes import text_codes

if TYPE_CHECKING:
    from cometmq.message.columns import Columns

#: Room behind a buffer, so that the last record's properties can be read in whole words.
PADDING_BYTES = 8

_SHAPES_A_LENGTH = 12
_ROWS_A_SHAPE = 24
_ROWS_A_STEP = 2_048
_HASHED_BYTES_MAX = 1_024
_INT_MAX = 0x7FFF_FFFF
_POWERS = np.array(
    [pow(31, exponent, 1 << 32) for exponent in range(_HASHED_BYTES_MAX)], np.float64
)
_POWERS32 = _POWERS.astype(np.uint32)
_ONES = 0x0101_0101_0101_0101
_THREES = np.uint64(3 * _ONES)
_SPACES = np.uint64(0x20 * _ONES)
_EACH_ONE = np.uint64(_ONES)
_HIGH = np.uint64(0x80 * _ONES)
_UNIQUE, _KEYS, _TAGS = (name.encode() for name in (props.UNIQ_KEY, props.KEYS, props.TAGS))

Words = npt.NDArray[np.uint64]


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


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where the pairs of a property text stand.

    The masks cover its bytes, padded to whole words: ``fixed`` names and separators, ``ignored``
    these and what is behind the text, ``hashed`` what is hashed, ``not_tokens`` all but the single
    keys.
    """

    fixed: Words
    ignored: Words
    hashed: Words
    not_tokens: Words
    tag: tuple[int, int]
    keys: list[tuple[int, int]]


class _Keys:
    """Key hashes as they are found: whose they are, and which shape found them."""

    __slots__ = ("hashes", "rows")

    def __init__(self) -> None:
        self.rows: list[Ints] = []
        self.hashes: list[Ints] = []

    def add(self, rows: Ints, hashes: Ints) -> None:
        """Take a key of each of these rows, behind those that they have already."""
        self.rows.append(rows)
        self.hashes.append(hashes)

    def joined(self) -> tuple[Ints, Ints]:
        """All rows and hashes in the order of rows."""
        if not self.rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        rows, hashes = np.concatenate(self.rows), np.concatenate(self.hashes)
        if len(self.rows) > 1:
            # Stable: the keys of one record were added in order.
            order = np.argsort(rows, kind="stable")
            rows, hashes = rows[order], hashes[order]
        return rows, hashes


def derive(raw: Bytes, columns: Columns, topics: Topics, delays_ms: tuple[int, ...]) -> Derived:
    """Tag codes and key hashes of records.

    ``raw`` has PADDING_BYTES behind the last one, and ``delays_ms`` are those of the delay levels.
    """
    topics_at, topic_bytes = columns.topic_starts, columns.topic_ends - columns.topic_starts
    topic_codes = text_codes(raw, topics_at, topic_bytes)
    numbers = topics.numbers(topic_codes, raw, topics_at, topic_bytes)
    codes = np.zeros(len(columns), np.int64)
    keys = _Keys()
    slow = np.zeros(len(columns), np.bool_)
    if SCHEDULE_TOPIC in topics.names:
        slow = numbers == topics.names.index(SCHEDULE_TOPIC)
    texts_at = columns.properties_starts
    lengths = columns.ends - texts_at
    prefixes = topics.prefixes[numbers]
    for length in np.flatnonzero(np.bincount(lengths)) if len(lengths) else ():
        if length:
            rows = np.flatnonzero((lengths == length) & ~slow)
            rest = _derive_equals(raw, texts_at, rows, int(length), prefixes, codes, keys)
            slow[rest] = True
    _derive_slowly(raw, columns, np.flatnonzero(slow), numbers, topics, delays_ms, codes, keys)
    key_rows, key_hashes = keys.joined()
    rolled_back = (columns.sys_flags & TransactionType.ROLLBACK) == TransactionType.ROLLBACK
    if rolled_back.any():
        kept = ~rolled_back[key_rows]
        key_rows, key_hashes = key_rows[kept], key_hashes[kept]
    return Derived(numbers, topic_codes, codes, key_rows, key_hashes)


def _derive_equals(
    raw: Bytes,
    at: Ints,
    rows: Ints,
    length: int,
    prefixes: npt.NDArray[np.uint32],
    codes: Ints,
    keys: _Keys,
) -> Ints:
    """Work on rows whose properties have one length; gives the rows that fitted no shape."""
    padded = -(-length // 8) * 8
    unfit: list[Ints] = []
    for _ in range(_SHAPES_A_LENGTH):
        if len(rows) < _ROWS_A_SHAPE:
            break
        table = window(raw, f"V{padded}")[at[rows]].view(np.uint8).reshape(len(rows), padded)
        shape = _shape_of(bytes(table[0, :length]), padded)
        if shape is None:
            unfit.append(rows[:1])
            rows = rows[1:]
            continue
        fits = _fitting(table.view(np.uint64), shape)
        chosen = rows
        if not fits.all():
            table, chosen = table[fits], rows[fits]
        start, stop = shape.tag
        if stop > start:
            codes[chosen] = _own_hashes(table[:, start:stop]).view(np.int32)
        for start, stop in shape.keys:
            own = _own_hashes(table[:, start:stop])
            keys.add(chosen, _absolute(prefixes[chosen] * _POWERS32[stop - start] + own))
        rows = rows[~fits]
    return np.concatenate((*unfit, rows))


def _derive_slowly(
    raw: Bytes,
    columns: Columns,
    rows: Ints,
    numbers: Ints,
    topics: Topics,
    delays_ms: tuple[int, ...],
    codes: Ints,
    keys: _Keys,
) -> None:
    """The same row by row."""
    found_rows: list[int] = []
    found: list[int] = []
    few = columns.rows(rows)
    places = zip(few.properties_starts.tolist(), few.ends.tolist(), strict=True)
    facts = zip(few.sys_flags.tolist(), few.number("store_ms").tolist(), strict=True)
    for row, (at, end), (sys_flag, store_ms) in zip(rows.tolist(), places, facts, strict=True):
        text = bytes(raw[at:end])
        number = int(numbers[row])
        codes[row], names = code_and_keys(topics.names[number], sys_flag, store_ms, text, delays_ms)
        prefix = int(topics.prefixes[number])
        found += [index_hash(prefix, name) for name in names]
        found_rows += [row] * len(names)
    if found:
        keys.add(np.array(found_rows, np.int64), np.array(found, np.int64))


def _fitting(words: Words, shape: _Shape) -> npt.NDArray[np.bool_]:
    """Which rows have the first one's names and separators, and plain values in between."""
    first = words[0] & shape.fixed
    found = np.empty(len(words), np.bool_)
    # So many rows at a time as stay in the processor's cache through all steps.
    for start in range(0, len(words), _ROWS_A_STEP):
        block = words[start : start + _ROWS_A_STEP]
        other = block & shape.fixed
        other ^= first
        # The sign bit of each byte under 3, which would be a separator.
        values = block | shape.ignored
        small = values - _THREES
        np.invert(values, out=values)
        small &= values
        # That of a space in a key, which would part it.
        values = block ^ _SPACES
        values |= shape.not_tokens
        spaces = values - _EACH_ONE
        np.invert(values, out=values)
        spaces &= values
        small |= spaces
        # And that of a byte beyond ASCII where text is hashed.
        np.bitwise_and(block, shape.hashed, out=values)
        small |= values
        small &= _HIGH
        other |= small
        found[start : start + _ROWS_A_STEP] = np.bitwise_or.reduce(other, axis=1) == 0
    return found


def _own_hashes(table: Bytes) -> npt.NDArray[np.uint32]:
    """Java's hash of each row, which is ASCII."""
    size = table.shape[1]
    # Exact: the sums stay below 2^53.
    sums = table.astype(np.float64) @ _POWERS[size - 1 :: -1][:size]
    return sums.astype(np.int64).astype(np.uint32)


def _absolute(values: npt.NDArray[np.uint32]) -> Ints:
    signed = np.abs(values.view(np.int32).astype(np.int64))
    # The one value whose absolute value is no int32 counts as 0.
    signed[signed > _INT_MAX] = 0
    return signed


def _shape_of(text: bytes, padded: int) -> _Shape | None:
    """The shape of one property text; None when its hashes cannot be computed by the column."""
    fixed = np.zeros(padded, np.uint8)
    values: dict[bytes, tuple[int, int]] = {}
    fixed[: len(text)] = 0xFF
    for name, start, stop in props.iter_pairs(text):
        fixed[start:stop] = 0
        values[name] = (start, stop)
    fixed[[at for at, byte in enumerate(text) if byte < 3]] = 0xFF
    tokens, hashed = np.zeros_like(fixed), np.zeros_like(fixed)
    start, end = values.get(_KEYS, (0, 0))
    keys = [values[_UNIQUE]] if _UNIQUE in values else []
    for token in text[start:end].split(b" "):
        stop = start + len(token)
        if token:
            keys.append((start, stop))
            tokens[start:stop] = 0xFF
        if stop < end:
            fixed[stop] = 0xFF
        start = stop + 1
    tag = values.get(_TAGS, (0, 0))
    for start, stop in (tag, *keys):
        hashed[start:stop] = 0xFF
        if stop - start >= _HASHED_BYTES_MAX or not text[start:stop].isascii():
            return None
    ignored = fixed.copy()
    ignored[len(text) :] = 0xFF
    return _Shape(_words(fixed), _words(ignored), _words(hashed), ~_words(tokens), tag, keys)


def _words(mask: Bytes) -> Words:
    return mask.view(np.uint64)
