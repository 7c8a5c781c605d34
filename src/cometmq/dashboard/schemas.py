"""Schemas of topics, read from a folder, and the decoding of bodies with them.

The folder has one file per topic. The file name begins with the topic, which has no dot:

    orders.avsc           Avro: a schema in JSON
    orders.shop.Order.pb  Protobuf: a file descriptor set; bodies are messages shop.Order

A body may begin with a header, which is skipped:

    schema registry, Avro       00, schema id (4 bytes)
    schema registry, Protobuf   00, schema id (4 bytes), number of indexes, indexes
    Avro single object          c3 01, fingerprint (8 bytes)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cometmq.core.errors import SettingsError
from cometmq.dashboard import shown
from cometmq.dashboard.avro import AvroSchema, UnfitBody
from cometmq.message import properties as props

SETTING: Final = "--schemas"
_REGISTRY_BYTES: Final = 5
_SINGLE_OBJECT: Final = b"\xc3\x01"
_SINGLE_OBJECT_BYTES: Final = 10
_INDEXES_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Told:
    """A body decoded with its topic's schema: the format, and the text or why there is none."""

    form: str
    text: str | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The schema of a topic.

    ``read`` decodes a body and raises UnfitBody; ``starts_of`` yields the positions at which the
    value of a body may begin, the likeliest first.
    """

    form: str
    read: Callable[[bytes], object]
    starts_of: Callable[[bytes], Iterator[int]]

    def told(self, body: bytes) -> Told:
        """Decode a body, from the first of the possible positions that fits."""
        if len(body) > shown.TEXT_BYTES_MAX:
            return Told(self.form, None, "it is larger than 64 KiB")
        problems = []
        for begin in self.starts_of(body):
            try:
                text = shown.indented(self.read(body[begin:]))
            except UnfitBody as error:
                problems.append(str(error))
                continue
            if text is not None:
                return Told(self.form, text)
            problems.append("its text is too long")
        return Told(self.form, None, problems[0])


@dataclass(frozen=True, slots=True)
class Schemas:
    """The schemas by topic."""

    by_topic: Mapping[str, TopicSchema]

    def told(self, topic: str, properties: Mapping[str, str], body: bytes) -> Told | None:
        """Decode a body with the schema of its topic; return None if there is no such schema.

        A message of a retry or dead-letter topic has its original topic in its properties.
        """
        for name in (topic, *(properties.get(key, "") for key in props.ORIGIN_TOPICS)):
            if name in self.by_topic:
                return self.by_topic[name].told(body)
        return None


def load_schemas(folder: Path) -> Schemas:
    """Read the schemas of a folder. Raises SettingsError for a bad one, or if there is none."""
    found: dict[str, TopicSchema] = {}
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in (".avsc", ".pb"))
        for path in paths:
            topic, _, message = path.stem.partition(".")
            if topic in found:
                raise ValueError(f"the topic {topic!r} has two schemas")
            if path.suffix == ".avsc":
                found[topic] = _avro(path.read_text(encoding="utf-8"))
            else:
                found[topic] = _protobuf(path.read_bytes(), message)
    except OSError as error:
        raise SettingsError(SETTING, f"{folder}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(SETTING, f"{path.name}: {error}") from None
    if not found:
        raise SettingsError(SETTING, f"{folder} has no TOPIC.avsc and no TOPIC.MESSAGE.pb")
    return Schemas(found)


def _avro(text: str) -> TopicSchema:
    def starts_of(body: bytes) -> Iterator[int]:
        # A value without a header may begin with the same bytes. Reading it after a header then
        # fails: the rest would have to match the schema up to the last byte.
        if body.startswith(_SINGLE_OBJECT):
            yield _SINGLE_OBJECT_BYTES
        elif body.startswith(b"\0"):
            yield _REGISTRY_BYTES
        yield 0

    return TopicSchema("avro", AvroSchema(text).read, starts_of)


def _protobuf(descriptors: bytes, message: str) -> TopicSchema:
    if not message:
        raise ValueError("the name has no message: TOPIC.MESSAGE.pb, as orders.shop.Order.pb")
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
        from google.protobuf.message import DecodeError
    except ImportError:
        raise ValueError("Protobuf needs a package: pip install 'cometmq[protobuf]'") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except Exception as error:  # the library raises its own kinds for bad sets and for names
        raise ValueError(f"{message!r} is not in the descriptors: {error}") from None

    def read(payload: bytes) -> object:
        try:
            value = kind.FromString(payload)
            return json_format.MessageToDict(
                value, preserving_proto_field_name=True, descriptor_pool=pool
            )
        except (
            DecodeError, json_format.Error, ValueError, TypeError, RecursionError, OverflowError,
        ) as error:  # fmt: skip
            raise UnfitBody(f"not Protobuf of {message}: {error}") from None

    return TopicSchema("protobuf", read, _after_indexes)


def _after_indexes(body: bytes) -> Iterator[int]:
    """Yield where a Protobuf message may begin: after the registry's header, or at byte 0."""
    if len(body) > _REGISTRY_BYTES and body[0] == 0:
        # Number and indexes are zigzag varints, in practice of one byte each. A number of 0 stands
        # for the one index 0, which is then left out.
        count = body[_REGISTRY_BYTES] >> 1
        if body[_REGISTRY_BYTES] < 0x80 and count <= _INDEXES_MAX:
            yield _REGISTRY_BYTES + 1 + count
    yield 0
