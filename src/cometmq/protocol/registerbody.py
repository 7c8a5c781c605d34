"""The body of REGISTER_BROKER in both of its forms (upstream: RegisterBrokerBody.java).

Plain, it is the JSON of :class:`RegisterBrokerBody`. With the header field ``compressed`` it is one
zlib stream over, all integers big-endian:

    size  field
    4, n  length, DataVersion as JSON
    4     number of topics, then for each: length (4) and text
          "name readQueues writeQueues perm filterType"; 5.x brokers append their attributes
    4, n  length, filter server list as a JSON array
    rest  5.x: topic mappings, which are ignored

``bodyCrc32`` of the header is the CRC-32 of the body as sent, without its top bit; 0 means that
nobody checks.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final, TypeVar

import msgspec

from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, parse_json

T = TypeVar("T")

#: What a compressed body may grow to: some 500 000 topics.
MAX_UNPACKED_BYTES: Final = 64 * 1024 * 1024

_SYSTEM_ERROR: Final = 1
_INT: Final = Struct(">i")


def body_crc32(body: bytes) -> int:
    """The checksum of a body as RegisterBroker's header carries it."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_register_body(body: RegisterBrokerBody, *, compressed: bool) -> bytes:
    """The body's bytes. The compressed form drops system flags and the order mark of topics."""
    if not compressed:
        return msgspec.json.encode(body, order="sorted")
    table = body.topic_config_serialize_wrapper
    parts = [_sized(msgspec.json.encode(table.data_version))]
    parts.append(_INT.pack(len(table.topic_config_table)))
    parts += [_sized(_topic_text(config)) for config in table.topic_config_table.values()]
    parts.append(_sized(msgspec.json.encode(body.filter_server_list)))
    return zlib.compress(b"".join(parts), 1)


def decode_register_body(data: bytes, *, compressed: bool, crc32: int | None) -> RegisterBrokerBody:
    """Read a body of either form; an empty one says that the broker has no topics.

    Raises BadRequest (code 1) when the checksum differs or the bytes cannot be read.
    """
    if crc32 and crc32 != body_crc32(data):
        raise BadRequest(_SYSTEM_ERROR, "crc32 not match")
    if not data:
        return RegisterBrokerBody()
    if not compressed:
        return _parse(data, RegisterBrokerBody)
    return _decode_unpacked(_unpack(data))


def _parse(data: bytes, cls: type[T]) -> T:
    return parse_json(data, cls, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES)


def _sized(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _topic_text(config: TopicConfig) -> bytes:
    return (
        f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} "
        f"{config.perm} {config.topic_filter_type}"
    ).encode()


def _unpack(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise BadRequest(_SYSTEM_ERROR, f"register body cannot be unpacked: {error}") from None
    if stream.unconsumed_tail:
        raise BadRequest(
            _SYSTEM_ERROR, f"register body unpacks to more than {MAX_UNPACKED_BYTES} bytes"
        )
    return plain


def _decode_unpacked(plain: bytes) -> RegisterBrokerBody:
    text, at = _take(plain, 0)
    version = _parse(text, DataVersion)
    count, at = _take_int(plain, at)
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        text, at = _take(plain, at)
        config = _topic(text)
        topics[config.topic_name] = config
    text, at = _take(plain, at)
    servers = _parse(text, list[str]) if text else []
    return RegisterBrokerBody(TopicConfigTable(version, topics), servers)


def _take_int(plain: bytes, at: int) -> tuple[int, int]:
    if len(plain) - at < 4:
        raise BadRequest(_SYSTEM_ERROR, f"register body ends at {len(plain)}, wanted 4 at {at}")
    (value,) = _INT.unpack_from(plain, at)
    return value, at + 4


def _take(plain: bytes, at: int) -> tuple[bytes, int]:
    size, at = _take_int(plain, at)
    end = at + size
    if size < 0 or end > len(plain):
        raise BadRequest(
            _SYSTEM_ERROR, f"register body: {size} bytes at {at} leave its {len(plain)}"
        )
    return plain[at:end], end


def _topic(text: bytes) -> TopicConfig:
    try:
        name, read, write, perm, kind, *_ = text.decode().split(" ")
        return TopicConfig(name, int(read), int(write), int(perm), kind)
    except ValueError:
        raise BadRequest(
            _SYSTEM_ERROR, f"register body: topic {text[:80]!r} is not 'name read write perm type'"
        ) from None
