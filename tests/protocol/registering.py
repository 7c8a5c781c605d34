"""Registration bodies at once, as tests want them."""

from collections.abc import Iterable

from cometmq.protocol.bodies import TopicConfig, TopicConfigTable
from cometmq.protocol.registerbody import RegisterBodyReader, register_body_pieces

Body = tuple[TopicConfigTable, list[str]]


def encode(
    table: TopicConfigTable, filter_servers: Iterable[str] = (), *, compressed: bool
) -> bytes:
    """A whole body."""
    pieces = register_body_pieces(
        table.data_version, table.topic_config_table, list(filter_servers), compressed=compressed
    )
    return b"".join(pieces)


def decode(data: bytes, *, compressed: bool, crc32: int | None = None) -> Body:
    """The topics and the filter servers of a body."""
    reader = RegisterBodyReader(data, compressed=compressed, crc32=crc32)
    topics: dict[str, TopicConfig] = {}
    for piece in reader.pieces(lambda _: True):
        topics |= piece
    assert reader.has_topics
    return TopicConfigTable(reader.data_version, topics), reader.filter_servers
