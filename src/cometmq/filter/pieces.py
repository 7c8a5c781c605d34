"""What has to stand in the properties of a message so that an expression can be true of it.

``region = 'eu'`` is true only of a message with ``region 01 eu`` in its property text, and to see
whether it is there costs a fifth of finding the property: only those are evaluated. What nothing of
the kind can be said of (NOT, numbers, two properties compared) has no pieces. Where none of the
pieces is, the evaluation gives false, unknown or an error, and all of these are no match.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.filter.columns import CODEC
from cometmq.filter.sqltext import All, Any, Compare, Constant, Node, OneOf, Property, Search
from cometmq.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.filter.columns import Batch

#: To look for more of them costs as much as to evaluate the expression.
MAX_PIECES: Final = 4
_SEPARATORS: Final = {NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR}


class Pieces(NamedTuple):
    """One of ``texts`` has to stand in the property text. They may stand elsewhere too: in another
    value, or as the beginning of a longer one. Where each of them is the property ``name`` with a
    value that makes the expression true, :meth:`decide` may spare the evaluation."""

    texts: tuple[str, ...]
    name: str = ""

    def find(self, texts: Sequence[str]) -> list[int]:
        """The numbers, from 0 and upwards, of the property texts with one of the pieces."""
        pieces = self.texts
        if len(pieces) == 1:
            (piece,) = pieces
            return [number for number, text in enumerate(texts) if piece in text]
        found = [
            [number for number, text in enumerate(texts) if one in text or other in text]
            for one, other in zip_longest(pieces[::2], pieces[1::2], fillvalue=pieces[0])
        ]
        return found[0] if len(found) == 1 else sorted(set().union(*found))

    def decide(self, batch: Batch) -> bool:
        """Whether the expression is true of all messages of a batch that :meth:`find` found; False
        when that is not certain.

        It is when there are as many ``name 01`` as messages, so that each has one, and as many
        whole properties with the wanted values, so that each of those is one.
        """
        if not self.name:
            return False
        joined, size = batch.joined, batch.size
        if joined.count((self.name + NAME_VALUE_SEPARATOR).encode()) != size:
            return False
        wholes = (b"\x02%b\x02" % piece.encode(CODEC) for piece in self.texts)
        return sum(map(joined.count, wholes)) == size


def pieces_of(node: Node) -> Pieces | None:
    """What an expression needs; None when it can be true without any certain piece."""
    match node:
        case Compare("=", Property(name), Constant(str(text))):
            return _values(name, (text,))
        case Compare("=", Constant(str(text)), Property(name)):
            return _values(name, (text,))
        case OneOf(name, texts):
            return _values(name, sorted(texts))
        case Search("STARTSWITH", name, text):
            return Pieces((_piece(name, text),))
        case All(operands):
            found = [each for each in map(pieces_of, operands) if each is not None]
            return min(found, key=lambda each: len(each.texts), default=None)
        case Any(operands):
            return _any(list(map(pieces_of, operands)))
        case _:
            return None


def _values(name: str, texts: Sequence[str]) -> Pieces | None:
    if len(texts) > MAX_PIECES or any(not text or set(text) & _SEPARATORS for text in texts):
        return None
    return Pieces(tuple(_piece(name, text) for text in texts), name)


def _any(found: Sequence[Pieces | None]) -> Pieces | None:
    texts = {text: None for each in found if each is not None for text in each.texts}
    return None if None in found or len(texts) > MAX_PIECES else Pieces(tuple(texts))


def _piece(name: str, text: str) -> str:
    return (name + NAME_VALUE_SEPARATOR + text).encode().decode(CODEC)
