"""Schemas of topics that the operator gave, and bodies read by them.

A folder has a file for each topic, which its name says; no topic has a dot in its name:

    orders.avsc           a schema of Avro, in JSON
    orders.shop.Order.pb  descriptors of Protobuf, and the message that the bodies are

A body may begin as serializers of a schema registry write it (a zero byte and the id of a schema;
for Protobuf also the index of the message) or as a single object of Avro (c3 01, fingerprint).
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
    """A body by the schema of its topic: the form's name, and the text or why there is none."""

    form: str
    text: str | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The schema of a topic. ``read`` raises UnfitBody; ``starts_of`` tells where it may begin."""

    form: str
    read: Callable[[bytes], object]
    starts_of: Callable[[bytes], Iterator[int]]

    def told(self, body: bytes) -> Told:
        """Read a body."""
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
        """Read a body by the schema of its topic; None if that has none.

        A message that waits for its retry, or is a dead letter, keeps the topic it was sent to.
        """
        for name in (topic, *(properties.get(key, "") for key in props.ORIGIN_TOPICS)):
            if name in self.by_topic:
                return self.by_topic[name].told(body)
        return None


def load_schemas(folder: Path) -> Schemas:
    """Return the schemas of a folder. Raises SettingsError."""
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
        # A value of zeros may look like a header, but what follows would have to fit to the end.
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
    """Yield where a message of Protobuf may begin: behind the registry's header, or at once."""
    if len(body) > _REGISTRY_BYTES and body[0] == 0:
        # The number of indexes and each of them are small, so one byte each; 0 means [0].
        count = body[_REGISTRY_BYTES] >> 1
        if body[_REGISTRY_BYTES] < 0x80 and count <= _INDEXES_MAX:
            yield _REGISTRY_BYTES + 1 + count
    yield 0
