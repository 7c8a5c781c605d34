"""JSON in the dialect of fastjson, the JSON library of RocketMQ's Java code.

Java peers write no nulls, sorted keys and no white space. Two kinds of map keys are not valid JSON:

    integer   {0:"a:1"}
    object    {{"brokerName":"a","queueId":0,"topic":"t"}:3}

:func:`encode_json` writes JSON that all clients parse, with integer keys quoted. :func:`object_map`
writes a map with object keys, which mqadmin and Java clients require. :func:`parse_json` parses
both and strict JSON; a key that is not a string becomes a string with the text of the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar, overload

import msgspec

from cometmq.core.errors import BadRequest
from cometmq.protocol.framer import MAX_FRAME_BYTES

T = TypeVar("T")

#: Alternatives: a string; blanks; two or more array items with their commas; a punctuation mark; a
#: run of other characters. A quotation mark alone is the start of an unclosed string. All
#: quantifiers are possessive, so no byte is scanned more than twice.
_TOKEN: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|[ \t\r\n]++|(?:[^ \t\r\n{}\[\],:"]++,){2,}+'
    rb'|[{}\[\],:"]|[^ \t\r\n{}\[\],:"]++',
    re.DOTALL,
)
_BLANKS: Final = b" \t\r\n"
_OPENING: Final = b"[{"
_CLOSING: Final = b"]}"
_SQUARE: Final = _OPENING[0]
_COLON, _COMMA, _QUOTE = b':,"'
#: Kinds of open brackets: an array, an object, an object that is a key.
_ARRAY, _OBJECT, _KEY = range(3)
_SYSTEM_ERROR: Final = 1
_MAX_DEPTH: Final = 64
_SORTED: Final = msgspec.json.Encoder(order="sorted")
#: Largest dialect body that a server parses; it blocks the event loop for 10 ms at most.
REQUEST_DIALECT_MAX_BYTES: Final = 32 * 1024


def encode_json(value: object) -> bytes:
    """Return compact JSON with sorted keys and without nulls.

    Raises TypeError for a value that JSON cannot represent.
    """
    try:
        encoded = _SORTED.encode(value)
        if b"null" not in encoded:
            return encoded
    except TypeError:
        pass  # msgspec sorts only text keys; below, integer keys become text
    plain = msgspec.to_builtins(value, str_keys=True, builtin_types=(msgspec.Raw,))
    return msgspec.json.encode(_without_nulls(plain), order="sorted")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def object_map(pairs: Iterable[tuple[object, object]]) -> msgspec.Raw:
    """Encode a map whose keys are objects, in fastjson's form, for use as a value in a body."""
    entries = [map_entry(key, item) for key, item in pairs]
    return msgspec.Raw(b"{" + b",".join(entries) + b"}")


def map_entry(key: object, item: object) -> bytes:
    """Encode one entry of an :func:`object_map`."""
    return encode_json(key) + b":" + encode_json(item)


@overload
def parse_json(data: bytes) -> Any: ...
@overload
def parse_json(data: bytes, cls: type[T], *, dialect_max_bytes: int = MAX_FRAME_BYTES) -> T: ...
def parse_json(data: bytes, cls: Any = Any, *, dialect_max_bytes: int = MAX_FRAME_BYTES) -> Any:
    """Parse a body in strict JSON or in fastjson's dialect, as ``cls``.

    Parsing the dialect takes 180 ms per MiB, so servers limit it to ``dialect_max_bytes`` for
    bodies from any peer. Raises BadRequest (code 1), which names the problem and its position.
    """
    try:
        return msgspec.json.decode(data, type=cls, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(_SYSTEM_ERROR, f"JSON body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not data:
            raise BadRequest(_SYSTEM_ERROR, "JSON body is missing: send it") from None
        if len(data) > dialect_max_bytes:
            raise BadRequest(_SYSTEM_ERROR, f"JSON body: {error}") from None
        try:
            return msgspec.json.decode(to_strict(data), type=cls, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            raise BadRequest(_SYSTEM_ERROR, f"JSON body: {error}") from None


def to_strict(data: bytes) -> bytes:
    """Rewrite fastjson's dialect as JSON: every non-string key becomes a string of its own text.

    The time is linear in the size of ``data``, because each byte belongs to one token. An object
    that is a key may not itself have an object as a key: escaping its quotation marks would double
    the text at each such level.

    Raises ValueError when a string is not closed, brackets do not match or nest too deep, or a key
    is of a kind that cannot be a key.
    """
    rewriter = _Rewriter()
    for match in _TOKEN.finditer(data):
        rewriter.take(match.group())
    return rewriter.end()


class _Rewriter:
    """Rewrites a text token by token, with a stack of the open brackets."""

    def __init__(self) -> None:
        self._stack: list[int] = []
        self._at_key = False
        self._output: list[bytes] = []
        #: While an object that is a key is parsed: the output before it. Otherwise None.
        self._before: list[bytes] | None = None

    def take(self, token: bytes) -> None:
        """Append one token. Raises ValueError for a token that is not allowed at its position."""
        first = token[0]
        if first in _BLANKS:
            return
        if first in _OPENING:
            self._open(first)
        elif first in _CLOSING:
            self._close(first)
            return
        elif first == _COLON:
            self._at_key = False
        elif first == _COMMA:
            self._at_key = bool(self._stack) and self._stack[-1] != _ARRAY
        elif first == _QUOTE and len(token) == 1:
            raise ValueError("a string is not closed")
        elif token[-1] == _COMMA and (not self._stack or self._stack[-1] != _ARRAY):
            raise ValueError("a key has no value")
        elif self._at_key and first != _QUOTE:
            token = b'"' + token + b'"'
        self._output.append(token)

    def end(self) -> bytes:
        """Return the whole text as JSON. Raises ValueError when a bracket is still open."""
        if self._stack:
            raise ValueError("a bracket is not closed")
        return b"".join(self._output)

    def _open(self, bracket: int) -> None:
        if len(self._stack) >= _MAX_DEPTH:
            raise ValueError("nested too deep")
        if not self._at_key:
            self._stack.append(_ARRAY if bracket == _SQUARE else _OBJECT)
            self._at_key = bracket != _SQUARE
            return
        if bracket == _SQUARE:
            raise ValueError("an array cannot be a key")
        if self._before is not None:
            raise ValueError("the key of an object that is a key cannot be an object")
        self._before, self._output = self._output, []
        self._stack.append(_KEY)

    def _close(self, bracket: int) -> None:
        if not self._stack:
            raise ValueError("a bracket is closed that was not opened")
        opened = self._stack.pop()
        if (opened == _ARRAY) != (bracket == _CLOSING[0]):
            raise ValueError("brackets do not match")
        self._output.append(b"]" if opened == _ARRAY else b"}")
        self._at_key = False
        if opened == _KEY:
            assert self._before is not None
            # The finished object becomes a string that holds its own text.
            key = b"".join(self._output)
            self._output, self._before = self._before, None
            self._output.append(msgspec.json.encode(key.decode()))
