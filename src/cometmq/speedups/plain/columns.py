"""Columns of the records in a buffer, in the format of Arrow arrays, for Spark.

This is the definition; compiled/columns.pyx returns the same bytes. Numbers have native byte order,
offsets are int32, and texts are UTF-8. Invalid UTF-8 is replaced by U+FFFD, as Python does. A
buffer of 2 GiB or more raises ValueError, and a column of that size OverflowError.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from ipaddress import ip_address
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from cometmq.speedups.plain.properties import pairs_of
from cometmq.speedups.plain.records import BORN_V6, STORE_V6, V6_MORE_BYTES, find_whole, stored_crc

#: Faults that :meth:`RecordColumns.faults` reports: the CRC does not match, the topic is not UTF-8,
#: the properties are not UTF-8, or one of them is not a name-value pair.
BAD_CRC, BAD_TOPIC, BAD_TEXT, BAD_PAIR = 1, 2, 4, 8

#: Columns of :meth:`RecordColumns.places`.
PLACE_COLUMNS: Final = 6
#: Any object with the buffer protocol, such as a numpy array.
Buffer: TypeAlias = bytes | bytearray | memoryview | Any
_BYTES_MAX: Final = 0x7FFFFFFF
#: Size of a record up to its body, and positions of fields in it, for IPv4 hosts.
_HEAD_BYTES: Final = 88
_CRC_POSITION: Final = 8
_OFFSET_POSITION: Final = 28
_FLAGS_POSITION: Final = 36
_BORN_HOST_POSITION: Final = 48
_STORE_MS_POSITION: Final = 56
_STORE_HOST_POSITION: Final = 64
_TIMES_POSITION: Final = 72
_HOST_BYTES: Final = 8
_INT: Final = Struct(">i")
_UNSIGNED: Final = Struct(">I")
_LONG: Final = Struct(">q")
#: Properties behind the columns of :meth:`RecordColumns.texts`.
_NAMES: Final = {"keys": "KEYS", "tags": "TAGS", "msg_id": "UNIQ_KEY"}


class Texts(NamedTuple):
    """An Arrow array of texts or bytes.

    ``validity`` has one bit for each row, 0 for null, or is None if no row is null. ``nulls`` is
    the number of null rows. Row ``n`` is the slice of ``values`` from ``offsets[n]`` to
    ``offsets[n + 1]``.
    """

    validity: bytes | None
    nulls: int
    offsets: Buffer
    values: Buffer


class Maps(NamedTuple):
    """An Arrow array of maps. Row ``n`` has the pairs from ``offsets[n]`` to ``offsets[n + 1]``."""

    offsets: Buffer
    names: Texts
    values: Texts


class RecordColumns:
    """The valid records in a buffer, from which columns are made. CRCs are checked on request
    only."""

    def __init__(self, data: bytes, starts: Buffer | None = None, base: int | None = None) -> None:
        """Find the records at ``starts`` (native int64), up to the first invalid one.

        Without ``starts``, the records are contiguous from position 0. ``stop`` is the position of
        the first invalid record, or the end of the last record.

        With ``base``, the physical offset of the first byte of ``data``, each record must contain
        the physical offset at which it lies. Raises ValueError for 2 GiB or more, and for a start
        outside ``data``.
        """
        if len(data) > _BYTES_MAX:
            raise ValueError("2 GiB or more at once")
        self._data = data
        self._places: list[_Place] = []
        self.stop = 0
        view = memoryview(data)
        for start in _chain(self) if starts is None else memoryview(starts).cast("B").cast("q"):
            if not 0 <= start <= len(data):
                raise ValueError("a record outside the data")
            self.stop = start
            whole = find_whole(view, start, len(data))
            if whole is None or (base is not None and self._offset(start) != base + start):
                break
            parts, self.stop = whole
            (flags,) = _INT.unpack_from(data, start + _FLAGS_POSITION)
            self._places.append(
                _Place(
                    start, self.stop - start, *parts, V6_MORE_BYTES * bool(flags & BORN_V6),
                    V6_MORE_BYTES * bool(flags & STORE_V6),
                )
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self._places)

    def keep(self, flags: Buffer) -> RecordColumns:
        """Return the records whose byte in ``flags`` is not 0.

        Raises ValueError if the number of bytes differs from the number of records.
        """
        kept = RecordColumns(b"")
        kept._data, kept.stop = self._data, self.stop
        pairs = zip(self._places, memoryview(flags).cast("B"), strict=True)
        kept._places = [place for place, flag in pairs if flag]
        return kept

    def places(self) -> bytes:
        """Return six native int64 for each record.

        They are the start and the size of the record, the start and the end of its body, and the
        start and the end of its topic. The properties start two bytes after the topic.
        """
        numbers = array("q")
        for place in self._places:
            numbers.extend(place[:PLACE_COLUMNS])
        return numbers.tobytes()

    def numbers(self, position: int, width: int) -> bytes:
        """Return the numbers at one position of each record's head, in native byte order.

        ``position`` is valid for a head with IPv4 hosts; it is adjusted for one with IPv6 hosts.
        ``width`` is 4 or 8 bytes. Raises ValueError for another width or a position outside the
        head.
        """
        if width not in (4, 8) or not 0 <= position <= _HEAD_BYTES - width:
            raise ValueError("no number of a head")
        unpack = (_INT if width == 4 else _LONG).unpack_from
        found = [unpack(self._data, place.of(position))[0] for place in self._places]
        return array("i" if width == 4 else "q", found).tobytes()

    def texts(self, name: str) -> Texts:
        """Return one text for each record.

        ``name`` is ``topic``; ``keys`` or ``tags``, null if missing; ``msg_id``, the unique key or
        else the offset id; or ``born_host`` or ``store_host`` in the format of :func:`address`.
        Raises ValueError for another name.
        """
        return _texts(self._values(name))

    def bodies(self) -> Texts:
        """Return the bodies as stored."""
        return _texts([self._data[place.body : place.body_end] for place in self._places])

    def maps(self) -> Maps:
        """Return the properties as maps. Names and values are not empty, and names are unique."""
        pairs = [pair for each in self._pairs for pair in each.items()]
        return Maps(
            _offsets(map(len, self._pairs)),
            _texts([name.encode() for name, _ in pairs]),
            _texts([value.encode() for _, value in pairs]),
        )

    def faults(self, *, crcs: bool, texts: bool) -> list[tuple[int, int]]:
        """Return the rows with faults, and the faults of each row as the sum of BAD_CRC and so on.

        ``crcs`` and ``texts`` select the checks.
        """
        found = [
            self._has_other_crc(place) * crcs | self._text_faults(place) * texts
            for place in self._places
        ]
        return [(row, fault) for row, fault in enumerate(found) if fault]

    def _properties(self, place: _Place) -> bytes:
        return self._data[place.topic_end + 2 : place.at + place.size]

    @cached_property
    def _pairs(self) -> list[dict[str, str]]:
        """Parsed properties of each record."""
        return [pairs_of(self._properties(place)) for place in self._places]

    def _values(self, name: str) -> list[bytes | None]:
        if name == "topic":
            return [_utf8(self._data[place.topic : place.topic_end]) for place in self._places]
        if name == "born_host":
            return [address(self._born_host(place)).encode() for place in self._places]
        if name == "store_host":
            return [address(self._store_host(place)).encode() for place in self._places]
        if name not in _NAMES:
            raise ValueError(f"no text {name!r}")
        found = [pairs.get(_NAMES[name]) for pairs in self._pairs]
        values = [None if value is None else value.encode() for value in found]
        if name != "msg_id":
            return values
        return [
            value or self._offset_id(place)
            for value, place in zip(values, self._places, strict=True)
        ]

    def _offset(self, at: int) -> int:
        (found,) = _LONG.unpack_from(self._data, at + _OFFSET_POSITION)
        return int(found)

    def _offset_id(self, place: _Place) -> bytes:
        at = place.at + _OFFSET_POSITION
        return (self._store_host(place) + self._data[at : at + 8]).hex().upper().encode()

    def _born_host(self, place: _Place) -> bytes:
        at = place.at + _BORN_HOST_POSITION
        return self._data[at : at + _HOST_BYTES + place.born_extra]

    def _store_host(self, place: _Place) -> bytes:
        at = place.of(_STORE_HOST_POSITION)
        return self._data[at : at + _HOST_BYTES + place.store_extra]

    def _has_other_crc(self, place: _Place) -> int:
        (crc,) = _UNSIGNED.unpack_from(self._data, place.at + _CRC_POSITION)
        body = memoryview(self._data)[place.body : place.body_end]
        return BAD_CRC if crc and stored_crc(body) != crc else 0

    def _text_faults(self, place: _Place) -> int:
        topic, text = self._data[place.topic : place.topic_end], self._properties(place)
        found = 0 if _utf8(topic) == topic else BAD_TOPIC
        found |= 0 if _utf8(text) == text else BAD_TEXT
        for pair in text.split(b"\x02"):
            if pair and (pair[0] == 1 or 1 not in pair):
                found |= BAD_PAIR
        return found


class _Place(NamedTuple):
    """Positions of the parts of a record, and the extra bytes of its IPv6 hosts."""

    at: int
    size: int
    body: int
    body_end: int
    topic: int
    topic_end: int
    born_extra: int
    store_extra: int

    def of(self, position: int) -> int:
        """Return the position of a head field, given its position in a head with IPv4 hosts."""
        at = self.at + position
        if position >= _STORE_MS_POSITION:
            at += self.born_extra
        if position >= _TIMES_POSITION:
            at += self.store_extra
        return at


@lru_cache(maxsize=1024)
def address(packed: bytes) -> str:
    """Return ``host:port`` of a packed address (ip 4 or 16 bytes, port 4), ``[host]:port`` for
    IPv6."""
    host, port = str(ip_address(packed[:-4])), int.from_bytes(packed[-4:], "big")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _chain(columns: RecordColumns) -> Iterable[int]:
    """Yield the start of the next record, which follows the last one, until the end of the data."""
    while columns.stop < len(columns._data):
        yield columns.stop


def _utf8(raw: bytes) -> bytes:
    return raw.decode("utf-8", "replace").encode()


def _texts(values: Sequence[bytes | None]) -> Texts:
    """Return values as an array, None as null."""
    nulls = values.count(None)
    bits = sum(1 << row for row, value in enumerate(values) if value is not None)
    validity = bits.to_bytes((len(values) + 7) // 8, "little") if nulls else None
    offsets = _offsets(len(value or b"") for value in values)
    return Texts(validity, nulls, offsets, b"".join([value or b"" for value in values]))


def _offsets(lengths: Iterable[int]) -> bytes:
    """Return the offsets of rows of these lengths. Raises OverflowError at 2 GiB."""
    offsets = array("i", [0])
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return offsets.tobytes()
