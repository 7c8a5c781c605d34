"""Tags: one short word per message, compared by hash in the broker and by text in the client.

A consume queue entry holds the hash of the tag (Java's ``String.hashCode``). Different tags can
have the same hash, so the client also compares the text. An expression is ``*`` (or empty) for
every message, or ``a || b`` (upstream: FilterAPI.java, MessageStoreImpl tagsString2tagsCode).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.core.errors import CometError
from cometmq.speedups import java_hash

ALL = "*"
#: Characters that users or other brokers may mistake for separators of tags.
_PARTING = "|,"
_SEPARATOR = "||"
#: Maximum number of different tags in an expression.
MAX_TAGS = 4_096
#: Maximum number of parts of an expression, repeated and empty ones included. An expression with
#: more is rejected before it is split.
_MAX_PARTS = 2 * MAX_TAGS
_CACHE_LIMIT = 65_536
#: Codes of longer tags are not cached, since a tag can be as long as all properties together.
_CACHED_CHARS = 64
_codes: dict[str, int] = {}


def tag_code(tag: str | None) -> int:
    """Return the code of a tag in a queue entry: its hash, or 0 for no tag."""
    if not tag:
        return 0
    code = _codes.get(tag)
    if code is None:
        if len(tag) > _CACHED_CHARS:
            return java_hash(tag)
        if len(_codes) >= _CACHE_LIMIT:
            _codes.clear()
        code = _codes[tag] = java_hash(tag)
    return code


class BadTags(CometError, ValueError):
    """A tag expression is invalid; the message says why and what to write."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Parsed expression: its tags and their codes; both are empty when every message matches."""

    expression: str
    tags: frozenset[str]
    codes: frozenset[int]

    kind: ClassVar[str] = "TAG"

    @property
    def matches_all(self) -> bool:
        """True if every message matches."""
        return not self.tags

    def accepts_code(self, code: int) -> bool:
        """Return whether a queue entry may match; a different tag can have the same code."""
        return not self.codes or code in self.codes

    def accepts(self, tag: str) -> bool:
        """Return whether a message with this tag matches."""
        return not self.tags or tag in self.tags


def parse(expression: str | None) -> TagFilter:
    """Parse an expression such as ``insert || update``.

    Raises BadTags if the expression consists only of separators, or names too many tags.
    """
    text = (expression or "").strip()
    if not text or text == ALL:
        return TagFilter(ALL, frozenset(), frozenset())
    if (parts := text.count(_SEPARATOR) + 1) > _MAX_PARTS:
        raise _too_many(text, parts)
    tags = frozenset(part for part in map(str.strip, text.split(_SEPARATOR)) if part)
    if not tags:
        raise BadTags(
            f"tag expression {text[:_CACHED_CHARS]!r} names no tag; use * for every message"
        )
    if len(tags) > MAX_TAGS:
        raise _too_many(text, len(tags))
    return TagFilter(text, tags, frozenset(map(tag_code, tags)))


def _too_many(text: str, count: int) -> BadTags:
    return BadTags(
        f"tag expression {text[:_CACHED_CHARS]!r}... names {count} tags, the limit is {MAX_TAGS}: "
        "use * and filter in the consumer"
    )


def problem_of(tag: str) -> str:
    """Return why no tag expression can select messages with ``tag``; empty if one can."""
    if tag.strip() != tag or not tag:
        return "is empty, or begins or ends with a space"
    if _SEPARATOR in tag:
        return f"contains {_SEPARATOR!r}, which separates tags"
    return ""


def parse_exactly(expression: str | None) -> TagFilter:
    """Parse like :func:`parse`, but raise BadTags for a tag that is probably a mistake.

    Such a tag contains a separator of another system, or ``*`` among other tags. CometMQ's own
    client uses this function.
    """
    wanted = parse(expression)
    for tag in sorted(wanted.tags):
        signs = [sign for sign in _PARTING if sign in tag]
        if signs or tag == ALL:
            problem = f"contains {signs[0]!r}" if signs else "means every message"
            raise BadTags(
                f"tag expression {expression!r}: the tag {tag!r} {problem}. Write a || b for "
                "messages tagged a or b, and * alone for every message. To select a tag with such "
                "characters, use SQL92: TAGS = '...'"
            )
    return wanted
