"""Every parser of bytes that others wrote: how it is called, its grammar, its bound.

`factor` is how many times 10 ms a parser may take for 64 KB: 1 where it is compiled code, more
where plain Python reads character by character or builds a value for each few bytes.
"""

import base64
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from cometmq.broker import config as broker_config
from cometmq.broker import tables
from cometmq.client.config import parse_name_servers
from cometmq.core.errors import CometError, StoreCorrupt
from cometmq.core.settings import parse_properties
from cometmq.filter import tags
from cometmq.filter.sql92 import BadFilter, SqlFilter
from cometmq.message import batch, ids, names, properties, record
from cometmq.namesrv.routes import Registration, RouteTable
from cometmq.protocol.bodies import DataVersion, Heartbeat, parse_client_body, read_offsets
from cometmq.protocol.connection import Connection
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, parse_json
from cometmq.protocol.frame import BINARY, JSON, decode_head
from cometmq.protocol.headers import RegisterBroker
from cometmq.protocol.registerbody import RegisterBodyReader
from cometmq.replication.transfer import Bounds, MasterLink, SlaveLink
from cometmq.spark.jobs import job
from cometmq.spark.options import BadOption
from cometmq.spark.read import options as read_options
from cometmq.spark.read import positions
from cometmq.speedups.plain import match as plain_match
from cometmq.store.recovery.mounts import parse_mounts
from tests.conftest import cores
from tests.hostile import files, queues
from tests.hostile import grammar as g
from tests.hostile.bothcores import COMPARED
from tests.speedups.test_columns import everything

KB = 1024


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser. `refuses` are the errors that it may raise for what it cannot read."""

    name: str
    run: Callable[[bytes], object]
    grammar: g.Grammar
    bound_bytes: int = 64 * KB
    refuses: tuple[type[Exception], ...] = (CometError,)
    factor: float = 1.0


_RECORD = record.Record(0, 0, 1, 0, 7, 0, 0, 1, bytes(8), 2, bytes(8), 0, 0, b"", "t", b"")
_REAL = SqlFilter("a > 1.5")
_WHOLE = SqlFilter("a < 7 OR a = b")
_TEXTS = SqlFilter("a IN ('eu', 'us') OR b CONTAINS 'aab' OR KEYS = TAGS OR a > b")


def _dialect(data: bytes) -> object:
    return parse_json(data, object, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES)


def _connection(data: bytes) -> object:
    connection: Connection[int] = Connection()
    connection.receive_data(data)
    return connection.next_events(256)


def _json_frame(data: bytes) -> object:
    head = b'{"code":34,"flag":0,"opaque":1,"extFields":{"a":"' + data + b'"}}'
    frame = struct.pack(">II", 4 + len(head), len(head)) + head
    return _connection(frame)


def _properties(data: bytes) -> object:
    found = properties.decode(data)
    properties.find(data, b"KEYS")
    return properties.index_keys(found)


def _tags(data: bytes) -> object:
    return tags.parse(data.decode(errors="replace"))


def _sql_text(data: bytes) -> object:
    return SqlFilter(data.decode(errors="replace"))


def _sql_value(data: bytes, expression: SqlFilter) -> object:
    value = data.replace(b"\x01", b"").replace(b"\x02", b"")
    return _same_in_both_cores(expression, b"a\x01" + value + b"\x02b\x01" + value + b"\x02")


def _sql_properties(data: bytes) -> object:
    return [_same_in_both_cores(each, data) for each in (_REAL, _WHOLE, _TEXTS)]


def _sql_work(data: bytes) -> object:
    return SqlFilter(data.decode(errors="replace")).matches([b"a\x011\x02b\x012\x02"] * 500)


def _same_in_both_cores(expression: SqlFilter, properties: bytes) -> bool:
    found = expression.accepts(properties)
    if plain_match.Program(expression.program.code).accepts(properties) is not found:
        raise ValueError(f"the cores differ: {found} for {properties[:100]!r}")
    return found


def _register(data: bytes, *, compressed: bool) -> object:
    reader = RegisterBodyReader(data, compressed=compressed, crc32=None)
    return sum(len(piece) for piece in reader.pieces(lambda version: True))


def _slave_link(data: bytes) -> object:
    return SlaveLink(0).receive_data(data, Bounds(0, 1 << 40), 0, 1)


def _master_link(data: bytes) -> object:
    return MasterLink(0, 0).receive_data(memoryview(data), 1)


def _record(data: bytes) -> object:
    _same_columns(data)
    return record.decode_one(data)


def _spark_properties(data: bytes) -> object:
    half = min(len(data) // 2, record.MAX_PROPERTIES_BYTES)
    texts = data[:half], data[half : 2 * half]
    return _same_columns(b"".join(record.pack(replace(_RECORD, properties=text)) for text in texts))


def _same_columns(data: bytes) -> object:
    """All columns of the records of a buffer, which both cores make."""
    found = [everything(core.RecordColumns(data)) for core in cores()]
    if found[0] != found[-1]:
        raise ValueError(f"the cores differ for {data[:100]!r}")
    return found


def _settings(data: bytes) -> object:
    return broker_config.load(parse_properties(data.decode(errors="replace")))


def _spark_options(data: bytes) -> object:
    text = data.decode(errors="replace")
    return read_options.parse({"nameServers": text, "topics": text, "startingOffsets": text})


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode(errors="replace"))


def _routes(data: bytes) -> object:
    """Register a broker for each 16 bytes over one connection, and end that."""
    routes = RouteTable()
    for number in range(len(data) // 16):
        name = f"{number}-{data[number * 16 : number * 16 + 8].hex()}"
        broker = RegisterBroker(name, f"10.0.0.1:{number}", f"c{number}", "", 0)
        routes.register(broker, Registration(DataVersion(), {}, []), "channel", 0)
    return routes.channel_closed("channel")


def _packed(size: int) -> bytes:
    return zlib.compress(struct.pack(">I", 2) + b"{}" + struct.pack(">I", 1 << 30) + b"\0" * size)


_BODY: Any = (CometError, ValueError)
_ONE_TEXT = g.Grammar(tokens=(b"a",), wholes=(b"Broker", b"\x00\xff"))

PARSERS = (
    Parser("dialect", _dialect, g.JSON, REQUEST_DIALECT_MAX_BYTES, factor=12),
    Parser("client body", lambda data: parse_client_body(data, Heartbeat), g.JSON, factor=16),
    Parser("offsets body", read_offsets, g.JSON, factor=12),
    Parser("register body", lambda data: _register(data, compressed=False), g.JSON, factor=14),
    Parser(
        "packed register body",
        lambda data: _register(data, compressed=True),
        g.Grammar(tokens=(b"\x00", b"x\x9c"), more={"a large count": _packed}),
        factor=4,
    ),
    Parser("table file", lambda data: tables._parsed(data, "a"), g.JSON, refuses=_BODY, factor=16),
    Parser("header, JSON", lambda data: decode_head(JSON, data), g.JSON, factor=4),
    Parser("header, binary", lambda data: decode_head(BINARY, data), g.BINARY, factor=4),
    Parser("frames", _connection, g.BINARY, factor=10),
    Parser("a frame with fields", _json_frame, g.JSON, factor=4),
    Parser("properties", _properties, g.PROPERTIES, 32 * KB, factor=4),
    Parser("keys", _text(properties.split_keys), g.PROPERTIES, 32 * KB, factor=2),
    Parser("tags", _tags, g.TAGS, 32 * KB, (ValueError,), factor=6),
    # Read, measured, compiled and checked, word by word.
    Parser("sql text", _sql_text, g.SQL, refuses=(BadFilter,), factor=45),
    Parser("sql value", partial(_sql_value, expression=_REAL), g.NUMBER, 32 * KB, (), factor=4),
    Parser(
        "sql whole value", partial(_sql_value, expression=_WHOLE), g.NUMBER, 32 * KB, (), factor=4
    ),
    Parser("sql properties", _sql_properties, g.PROPERTIES, 32 * KB, (), factor=8),
    # Of 500 messages each is looked at, part by part.
    Parser("sql work", _sql_work, g.SQL, refuses=(BadFilter,), factor=300),
    Parser("batch body", batch.split, g.BINARY, refuses=_BODY, factor=8),
    Parser("record", _record, g.BINARY, factor=8),
    # Three entries: each text lies in a file, and what is wrong is made again at each read.
    Parser("queue entries", queues.read_with, queues.ENTRIES, 60, (), factor=4_000),
    Parser("HA report", _slave_link, g.BINARY, factor=2),
    Parser("HA transfer", _master_link, g.BINARY, factor=8),
    Parser("settings", _settings, g.SETTINGS, factor=12),
    Parser("mounts", _text(parse_mounts), g.TEXT_LINES, refuses=(), factor=8),
    Parser("recall handle", _text(ids.decode_recall), _ONE_TEXT, refuses=(ValueError,)),
    Parser(
        "recall words",
        lambda data: ids.decode_recall(base64.urlsafe_b64encode(b"v1 t b " + data).decode()),
        g.Grammar(tokens=(b" ", b"9"), wholes=(b"t b 1 k",), separator=b" "),
        refuses=(ValueError,),
        factor=2,
    ),
    Parser("offset id", _text(ids.decode_offset_id), _ONE_TEXT, refuses=(ValueError,)),
    Parser("name", _text(names.is_legal_name), g.NAMES, refuses=()),
    Parser("name servers", _text(parse_name_servers), g.NAMES, refuses=_BODY, factor=8),
    Parser("routes", _routes, g.Grammar(tokens=(b"\x00",)), factor=30),
    Parser("Spark options", _spark_options, g.NAMES, refuses=(BadOption,), factor=8),
    Parser(
        "Spark offsets",
        _text(lambda text: positions.parse_by_queue(text, int)),
        g.Grammar(g.JSON.tokens, numbers=(b'{"t":{"b":{"%s":1}}}', b'{"t":{"b":{"0":"%s"}}}')),
        refuses=(ValueError,),
        factor=2,
    ),
    Parser("job sizes", _text(job.size_bytes), g.SETTINGS, refuses=_BODY),
    Parser("job spans", _text(job.span_ms), g.SETTINGS, refuses=_BODY),
    Parser(
        "a failure's text",
        lambda data: job.cause_of(RuntimeError(data.decode(errors="replace"))),
        g.TEXT_LINES,
        refuses=(),
        factor=4,
    ),
    Parser("checkpoint", files.checkpoint, g.BINARY, refuses=()),
    Parser("positions", files.positions, g.JSON, refuses=(), factor=2),
    Parser("entry journal", files.journal, files.JOURNAL, refuses=(), factor=4),
    Parser("seal", files.seal, g.BINARY, refuses=(StoreCorrupt,)),
    Parser("index file", files.index, files.INDEX, refuses=(), factor=8),
    Parser("client offsets", files.client_offsets, g.JSON, refuses=(), factor=16),
    Parser("Spark properties", _spark_properties, g.PROPERTIES, refuses=(), factor=8),
    *(Parser(each.name, each, each.grammar, 8 * KB, refuses=(), factor=60) for each in COMPARED),
)
