"""What changes came to, kept until a page has shown it once.

A change answers with a redirect, so that a browser that reloads the page after it does not repeat
the change. The page behind the redirect takes the outcome by a token that only its address has.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Final, TypeVar

T = TypeVar("T")

#: Outcomes that no page has taken yet; the oldest goes.
KEPT_MAX: Final = 32


class Outcomes:
    """The outcomes of one viewer's changes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, object] = OrderedDict()

    def keep(self, outcome: object) -> str:
        """Keep an outcome; return the token with which a page takes it."""
        token = secrets.token_urlsafe(12)
        self._kept[token] = outcome
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return token

    def take(self, token: str, kind: type[T]) -> T | None:
        """Return the outcome of a token and forget it; None if there is none of this kind."""
        outcome = self._kept.pop(token, None)
        return outcome if isinstance(outcome, kind) else None
