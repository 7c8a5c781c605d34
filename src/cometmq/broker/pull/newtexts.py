"""Limits on parsing filter expressions that the broker has not parsed yet.

An expression is parsed once, and takes up to some microseconds a word. So the words of new
expressions are counted, for each connection and for all connections together. An expression over a
limit is parsed later, when its client asks again. Only a few words at a time are parsed on the
event loop, which serves no other request meanwhile; further expressions are parsed in a thread
(filtering.py).
"""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from cometmq.core.allowance import Allowance
from cometmq.filter.sqltext import MAX_WORDS, parsing_words

#: Words of one connection: at once, and per second after that. The longest expression has
#: SENDER_AT_ONCE words.
SENDER_AT_ONCE: Final = MAX_WORDS
SENDER_PER_SECOND: Final = 5_120
#: The same for all connections together, heartbeats included.
ALL_AT_ONCE: Final = 2 * MAX_WORDS
ALL_PER_SECOND: Final = 20_480
#: Words of all connections that the loop parses at once: 2 to 3 ms.
LOOP_AT_ONCE: Final = 256


class NewTexts:
    """Limits of the words of new expressions. All times are monotonic ms."""

    def __init__(self, now_ms: int) -> None:
        self._all = Allowance(ALL_AT_ONCE, ALL_PER_SECOND, now_ms)
        self._loop = Allowance(LOOP_AT_ONCE, ALL_PER_SECOND, now_ms)
        self._of_senders: WeakKeyDictionary[object, Allowance] = WeakKeyDictionary()

    def take(self, expression: str, now_ms: int, sender: object | None = None) -> bool:
        """Count the words of an expression if it may be parsed at ``now_ms``; return whether it
        may. Without a sender, only the limit of all connections applies.
        """
        words = parsing_words(expression)
        own = None
        if sender is not None:
            own = self._of_senders.get(sender)
            if own is None:
                own = Allowance(SENDER_AT_ONCE, SENDER_PER_SECOND, now_ms)
                self._of_senders[sender] = own
            if own.left(now_ms) < words:
                return False
        if not self._all.take(words, now_ms):
            return False
        if own is not None:
            own.take(words, now_ms)
        return True

    def take_on_loop(self, expression: str, now_ms: int) -> bool:
        """Count the words of an expression if the event loop may parse it at ``now_ms``; return
        whether it may."""
        return self._loop.take(parsing_words(expression), now_ms)
