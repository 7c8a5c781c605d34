"""Encoding of values of one type as bodies of messages, and decoding. No I/O.

:class:`TypedBody` encodes and decodes the bodies of a typed topic. The user property
``content-type`` of a message has the content type of its body. A message without it is decoded as
the topic's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypedDict, TypeVar, cast

import msgspec

from cometmq.client.arguments import (
    check_function,
    check_properties,
    key_text,
    key_texts,
    refuse,
)
from cometmq.core.errors import SettingsError, UndecodableMessage, WrongArgument

if TYPE_CHECKING:
    from datetime import datetime

    from cometmq.client.arguments import Key
    from cometmq.client.delivery import QueueSelector
    from cometmq.message.model import MessageQueue, MessageView

T = TypeVar("T")
R = TypeVar("R")

#: The user property with the content type of a body.
CONTENT_TYPE: Final = "content-type"
JSON: Final = "application/json"
MESSAGEPACK: Final = "application/msgpack"


#: Errors of encoders for values that their format cannot represent, such as too large or deep ones.
_UNENCODABLE: Final = (ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
#: Limits of the reason in an error: a body of 4 MB may have a million errors, with 100 MB of text.
_ERRORS_MAX: Final = 20
_REASON_CHARACTERS: Final = 1_000


class Serializer(Protocol[T]):
    """Converts values to bytes and back; ``content_type`` names the format of the bytes."""

    @property
    def content_type(self) -> str:
        """Media type of the bodies, such as ``application/json``."""
        ...

    def encode(self, value: T, /) -> bytes:
        """Return the body of a value. Raise ValueError or TypeError if it cannot be encoded."""
        ...

    def decode(self, body: bytes, /) -> T:
        """Return the value of a body. Raise an Exception, preferably ValueError, if invalid."""
        ...


class Place(TypedDict, total=False):
    """Keywords of a typed send that choose queue and time limit; they are those of Client.send."""

    queue: MessageQueue | QueueSelector | None
    timeout_ms: int


class Content(TypedDict, total=False):
    """Keywords of a typed send that belong to the message; they are those of Client.send."""

    tag: str
    keys: Iterable[Key] | Key
    properties: Mapping[str, str] | None
    order_key: Key | None


class Delayed(Content, total=False):
    """Keywords of Content, and those of the delay."""

    delay_level: int
    delay_s: float
    deliver_at: datetime | None


class SendKeywords(Delayed, Place, total=False):
    """All keywords of Client.send."""


class PromptKeywords(Content, Place, total=False):
    """All keywords of requests and transactions, which cannot be delayed."""


class Structured(Generic[T]):
    """Serializer of the types that msgspec supports, such as structs, dataclasses and TypedDicts.

    The bodies are JSON or MessagePack. Raises SettingsError for an unsupported type.
    """

    def __init__(self, kind: type[T], content_type: str) -> None:
        self.content_type = content_type
        is_json = content_type == JSON
        try:
            if isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
                raise TypeError("msgspec does not know it")
            decoder: Any = msgspec.json.Decoder(kind) if is_json else msgspec.msgpack.Decoder(kind)
        except TypeError as error:
            raise SettingsError(
                "value type",
                f"{kind!r} is no struct, dataclass, TypedDict or pydantic model: {error}; "
                "pass a serializer of your own",
            ) from None
        self._decode: Callable[[bytes], T] = decoder.decode
        self.encode: Callable[[T], bytes] = (
            msgspec.json.Encoder() if is_json else msgspec.msgpack.Encoder()
        ).encode

    def decode(self, body: bytes, /) -> T:
        """Return the value of a body. Raises msgspec.DecodeError, RecursionError."""
        return self._decode(body)


class PydanticModel(Generic[T]):
    """Serializer of a pydantic model by the model's own rules, as JSON or MessagePack."""

    def __init__(self, kind: Any, content_type: str) -> None:
        self.content_type = content_type
        self._kind = kind
        self._is_json = content_type == JSON

    def encode(self, value: Any, /) -> bytes:
        """Return the body of a model."""
        if self._is_json:
            return cast("str", value.model_dump_json()).encode()
        return msgspec.msgpack.encode(value.model_dump(mode="json"))

    def decode(self, body: bytes, /) -> T:
        """Return the model of a body. Raises pydantic.ValidationError, ValueError."""
        if self._is_json:
            return cast("T", self._kind.model_validate_json(body))
        found = msgspec.msgpack.decode(body)
        try:
            return cast("T", self._kind.model_validate(found))
        except ValueError:
            # A strict model accepts texts as times, ids or numbers only in JSON.
            return cast("T", self._kind.model_validate_json(msgspec.json.encode(found)))


def serializer_of(kind: type[T], wanted: Serializer[T] | str) -> Serializer[T]:
    """Return the serializer for values of a type: ``wanted`` itself, or that named "json" or
    "msgpack".

    Raises SettingsError for another name, and for a type that these do not support.
    """
    if not isinstance(wanted, str):
        _check_serializer(wanted)
        return wanted
    known = {"json": JSON, "msgpack": MESSAGEPACK}
    if wanted not in known:
        raise SettingsError("serializer", f"{wanted!r} is neither json, msgpack nor a Serializer")
    # Recognise a pydantic model by its methods, without importing pydantic.
    is_model = hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json")
    return (PydanticModel if is_model else Structured)(kind, known[wanted])


def _check_serializer(given: object) -> None:
    """Raise SettingsError for an object that lacks a part of a Serializer."""
    for name in ("encode", "decode"):
        if not callable(getattr(given, name, None)):
            raise SettingsError("serializer", f"{given!r} has no function {name}")
    if not isinstance(getattr(given, "content_type", None), str):
        raise SettingsError("serializer", f"{given!r} has no text content_type")


class TypedBody(Generic[T]):
    """Encodes and decodes the bodies of one topic.

    ``keys`` and ``order_key`` are functions of a value, for sends that do not pass these arguments.
    """

    def __init__(
        self,
        kind: type[T],
        serializer: Serializer[T] | str = "json",
        *,
        keys: Callable[[T], Iterable[Key] | Key] | None = None,
        order_key: Callable[[T], Key | None] | None = None,
    ) -> None:
        for name, function in (("keys", keys), ("order_key", order_key)):
            if function is not None:
                check_function(name, function)
        self.kind = kind
        self._wanted = serializer
        self._serializer = serializer_of(kind, serializer)
        self._keys = keys
        self._order_key = order_key
        # Values of generic types and TypedDicts are not instances of them, so they are not checked.
        found: object = kind
        is_class = isinstance(found, type) and not hasattr(found, "__total__")
        self._class: type | None = kind if is_class else None

    def reply(self, kind: type[R]) -> TypedBody[R]:
        """Return a TypedBody for replies: MessagePack if this one is msgpack, otherwise JSON."""
        return TypedBody(kind, "msgpack" if self._wanted == "msgpack" else "json")

    def encode(self, value: T) -> bytes:
        """Return a value's body. Raises WrongArgument for a value of another type."""
        if self._class is not None and not isinstance(value, self._class):
            refuse("value", self._class.__name__, value)
        try:
            return self._serializer.encode(value)
        except (*_UNENCODABLE, TypeError) as error:
            raise WrongArgument("value", f"cannot be encoded: {error}") from error

    def filled(self, value: T, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``given``, the keywords of a send, with content type, keys and order key."""
        own = given.get("properties") or {}
        check_properties(own)
        properties = {
            **own,
            CONTENT_TYPE: self._serializer.content_type,
        }
        keywords = {**given, "properties": properties}
        if self._keys is not None and "keys" not in given:
            keywords["keys"] = key_texts(self._keys(value))
        if self._order_key is not None and "order_key" not in given:
            key = self._order_key(value)
            keywords["order_key"] = None if key is None else key_text("order_key", key)
        return keywords

    def shared_order_key(self, values: Sequence[T], given: Mapping[str, Any]) -> Key | None:
        """Return the order key of a batch: that in ``given``, or the common one of all values.

        Raises WrongArgument if values have different order keys.
        """
        if self._order_key is None or "order_key" in given:
            key: Key | None = given.get("order_key")
            return key
        found = {
            None if key is None else key_text("order_key", key)
            for key in map(self._order_key, values)
        }
        if len(found) > 1:
            raise WrongArgument(
                "values",
                "have different order keys, and a batch goes to one queue: send one batch for each "
                "key, or pass order_key=None if their order does not matter",
            )
        return found.pop() if found else None

    def decode(self, message: MessageView) -> T:
        """Return the value of a message. Raises UndecodableMessage."""
        wanted = self._serializer.content_type
        given = message.properties.get(CONTENT_TYPE)
        if given is not None and _media_type(given) != _media_type(wanted):
            raise _undecodable(message, f"its content type is {given!r}, not {wanted!r}")
        try:
            return self._serializer.decode(message.body)
        except Exception as error:  # parsers of foreign bytes raise more than ValueError
            reason, is_whole = _reason_of(error)
            # Only a short cause: the log shows the text of a cause, too.
            cause = error if is_whole else None
            raise _undecodable(message, f"its body is not {wanted}: {reason}") from cause


def _media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


def _reason_of(error: Exception) -> tuple[str, bool]:
    """Return the text of an error, limited in length, and whether it is complete."""
    count = getattr(error, "error_count", None)  # pydantic's
    if callable(count) and count() > _ERRORS_MAX:
        return f"it has {count()} errors", False
    text = str(error)
    if len(text) <= _REASON_CHARACTERS:
        return text, True
    return f"{text[:_REASON_CHARACTERS]}...", False


def _undecodable(message: MessageView, reason: str) -> UndecodableMessage:
    return UndecodableMessage(message.topic, message.message_id, reason)
