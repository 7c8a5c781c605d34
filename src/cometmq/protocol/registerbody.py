"""Body of REGISTER_BROKER, with which a broker registers its topics with a name server (upstream:
RegisterBrokerBody.java).

The plain form is JSON:

    {"filterServerList":[...],"topicConfigSerializeWrapper":{"dataVersion":{...},
     "topicConfigTable":{name:{fields of TopicConfig}}}}

With the header field ``compressed`` the body is one zlib stream. Its content, integers big-endian:

    size  field
    4, n  length, DataVersion as JSON
    4     number of topics, then for each: length (4) and text
          "name readQueues writeQueues perm filterType"; 5.x brokers append their attributes
    4, n  length, filter server list as a JSON array
    rest  5.x: topic mappings, which are ignored

``bodyCrc32`` of the header is the CRC-32 of the body as sent, without its top bit; 0 disables the
check.

A body may list 100 000 topics, so it is written and parsed in pieces, and other tasks can run
between two pieces.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from struct import Struct
from typing import Final, TypeVar

import msgspec

from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import (
    PIECE_VALUES,
    Body,
    DataVersion,
    TopicConfig,
    table_pieces,
)
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, parse_json

T = TypeVar("T")
Topics = dict[str, TopicConfig]

#: Limit of a decompressed body: some 500 000 topics.
MAX_UNPACKED_BYTES: Final = 64 * 1024 * 1024

_SYSTEM_ERROR: Final = 1
_INT: Final = Struct(">i")
#: Digits and sign of a Java int.
_INT_MAX_CHARACTERS: Final = 11
_UNPACK_STEP_BYTES: Final = 256 * 1024
#: Number of unwanted topics that are skipped in one piece.
_SKIP_STEP: Final = 2_048
#: Size of the JSON that is decoded in one piece, and the size up to which a piece grows until it
#: ends where a topic ends.
_JSON_STEP_BYTES: Final = 64 * 1024
_JSON_STEP_MAX_BYTES: Final = 1024 * 1024
_TOPIC_END: Final = re.compile(rb'\}\s*,\s*(?=")')
_decode_topics: Final = msgspec.json.Decoder(Topics, strict=False).decode


def body_crc32(body: bytes) -> int:
    """Return the checksum of a body for the header field ``bodyCrc32``."""
    return zlib.crc32(body) & 0x7FFFFFFF


# ---------------------------------------------------------------------------------------- writing


def register_body_pieces(
    version: DataVersion,
    topics: Mapping[str, TopicConfig],
    filter_servers: list[str],
    *,
    compressed: bool,
) -> Iterator[bytes]:
    """Yield a body in pieces that take under a millisecond each.

    The compressed form drops system flags and the order flag of topics.
    """
    if not compressed:
        servers = msgspec.json.encode(filter_servers)
        yield b'{"filterServerList":' + servers + b',"topicConfigSerializeWrapper":'
        yield from table_pieces(version, "topicConfigTable", topics)
        yield b"}"
        return
    stream = zlib.compressobj(1)
    yield stream.compress(_sized(msgspec.json.encode(version)) + _INT.pack(len(topics)))
    entries = iter(topics.values())
    while some := list(islice(entries, PIECE_VALUES)):
        yield stream.compress(b"".join([_sized(_topic_text(config)) for config in some]))
    yield stream.compress(_sized(msgspec.json.encode(filter_servers))) + stream.flush()


def _sized(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _topic_text(config: TopicConfig) -> bytes:
    return (
        f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} "
        f"{config.perm} {config.topic_filter_type}"
    ).encode()


# ---------------------------------------------------------------------------------------- reading


class RegisterBodyReader:
    """Parses one body of either form; an empty body means that the broker has no topics.

    Iterating over :meth:`pieces` parses it. Afterwards ``data_version`` and ``filter_servers`` are
    those of the body, and ``has_topics`` tells whether its topics were parsed. Raises BadRequest
    (code 1) when the checksum differs.
    """

    def __init__(self, data: bytes, *, compressed: bool, crc32: int | None) -> None:
        if crc32 and crc32 != body_crc32(data):
            raise BadRequest(_SYSTEM_ERROR, "crc32 not match")
        self._data = data
        self._compressed = compressed
        self.data_version = DataVersion()
        self.filter_servers: list[str] = []
        self.has_topics = False

    def pieces(self, wanted: Callable[[DataVersion], bool]) -> Iterator[Topics]:
        """Yield the topics in pieces that take under a millisecond each; some pieces are empty.

        ``wanted`` receives the body's version; if it returns False, no topics are yielded. Raises
        BadRequest (code 1) when the body is invalid.
        """
        if not self._data:
            self.has_topics = True
            return iter(())
        return self._unpacked(wanted) if self._compressed else self._plain(wanted)

    def _plain(self, wanted: Callable[[DataVersion], bool]) -> Iterator[Topics]:
        body = _parse(self._data, _PlainBody)
        yield {}
        self.filter_servers = body.filter_server_list
        table = body.topic_config_serialize_wrapper
        self.data_version = table.data_version
        self.has_topics = wanted(table.data_version)
        if self.has_topics:
            yield from _json_pieces(bytes(table.topic_config_table))

    def _unpacked(self, wanted: Callable[[DataVersion], bool]) -> Iterator[Topics]:
        plain = bytearray()
        for part in _unpack(self._data):
            plain += part
            yield {}
        text, at = _take(plain, 0)
        self.data_version = _parse(text, DataVersion)
        self.has_topics = wanted(self.data_version)
        count, at = _take_int(plain, at)
        step = PIECE_VALUES if self.has_topics else _SKIP_STEP
        for first in range(0, count, step):
            texts, at = _take_many(plain, at, min(step, count - first))
            yield _topics(texts) if self.has_topics else {}
        text, at = _take(plain, at)
        self.filter_servers = _parse(text, list[str]) if text else []


class _PlainTable(Body, frozen=True):
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class _PlainBody(Body, frozen=True):
    """Plain body whose topics are not parsed yet."""

    topic_config_serialize_wrapper: _PlainTable = msgspec.field(default_factory=_PlainTable)
    filter_server_list: list[str] = msgspec.field(default_factory=list)


def _parse(data: bytes, cls: type[T]) -> T:
    return parse_json(data, cls, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES)


def _json_pieces(text: bytes) -> Iterator[Topics]:
    """Yield the topics of a valid JSON object, split where a topic appears to end.

    A pattern finds the splits, and may match inside a string. Then the piece is not valid JSON, and
    a longer one is tried.
    """
    at, end = 1, len(text) - 1
    if text[:1] != b"{":
        raise BadRequest(_SYSTEM_ERROR, "JSON body: topicConfigTable is not an object")
    step = _JSON_STEP_BYTES
    while at < end:
        cut = _TOPIC_END.search(text, at + step, end)
        stop = end if cut is None else cut.start() + 1
        try:
            piece = _decode_topics(b"{" + text[at:stop] + b"}")
        except msgspec.ValidationError as error:
            raise BadRequest(_SYSTEM_ERROR, f"JSON body: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            step *= 2
            if cut is None or step > _JSON_STEP_MAX_BYTES:
                raise BadRequest(_SYSTEM_ERROR, f"JSON body: {error}") from None
            continue
        yield piece
        step = _JSON_STEP_BYTES
        at = end if cut is None else cut.end()


def _unpack(data: bytes) -> Iterator[bytes]:
    """Yield the decompressed parts of a zlib stream. Raises BadRequest."""
    stream = zlib.decompressobj()
    size_bytes = 0
    while True:
        try:
            part = stream.decompress(data, _UNPACK_STEP_BYTES)
        except zlib.error as error:
            raise BadRequest(_SYSTEM_ERROR, f"register body cannot be unpacked: {error}") from None
        size_bytes += len(part)
        if size_bytes > MAX_UNPACKED_BYTES:
            raise BadRequest(
                _SYSTEM_ERROR, f"register body unpacks to more than {MAX_UNPACKED_BYTES} bytes"
            )
        yield part
        data = stream.unconsumed_tail
        if not data and len(part) < _UNPACK_STEP_BYTES:
            return


def _take_int(plain: bytearray, at: int) -> tuple[int, int]:
    if len(plain) - at < 4:
        raise BadRequest(_SYSTEM_ERROR, f"register body ends at {len(plain)}, wanted 4 at {at}")
    (value,) = _INT.unpack_from(plain, at)
    return value, at + 4


def _take(plain: bytearray, at: int) -> tuple[bytes, int]:
    texts, at = _take_many(plain, at, 1)
    return texts[0], at


def _take_many(plain: bytearray, at: int, count: int) -> tuple[list[bytes], int]:
    found: list[bytes] = []
    for _ in range(count):
        size, at = _take_int(plain, at)
        end = at + size
        if size < 0 or end > len(plain):
            raise BadRequest(
                _SYSTEM_ERROR, f"register body: {size} bytes at {at} leave its {len(plain)}"
            )
        found.append(bytes(plain[at:end]))
        at = end
    return found, at


def _number(text: str) -> int:
    """Parse a Java int. Raises ValueError for anything else."""
    if len(text) > _INT_MAX_CHARACTERS:
        raise ValueError("number out of range")
    number = int(text)
    if not -(2**31) <= number < 2**31:
        raise ValueError("number out of range")
    return number


def _topics(texts: list[bytes]) -> Topics:
    """Parse topics of the compressed form. Raises BadRequest."""
    found: Topics = {}
    for text in texts:
        try:
            name, read, write, perm, kind, *_ = text.decode().split(" ")
            found[name] = TopicConfig(name, _number(read), _number(write), _number(perm), kind)
        except ValueError:
            raise BadRequest(
                _SYSTEM_ERROR,
                f"register body: topic {text[:80]!r} is not 'name read write perm type'",
            ) from None
    return found
