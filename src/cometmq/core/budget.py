"""Bytes that somebody answers for until they are given back. Pure.

A request is charged to the connection that it came from, and gives its bytes back when nobody holds
it any more: whoever makes a request wait need not know of it.
"""

from __future__ import annotations

from typing import Protocol


class Account(Protocol):
    """Who answers for bytes that are held."""

    def charge(self, size_bytes: int) -> Charge:
        """Count bytes until the charge is given back."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """Bytes of a charge are held no more. Any thread may call it."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """Whether all connections together hold all that the process may hold."""
        ...


class Charge:
    """Bytes on an account. They are given back once: when asked to, or when this object dies."""

    __slots__ = ("account", "size_bytes")

    def __init__(self, account: Account, size_bytes: int) -> None:
        self.account = account
        self.size_bytes = size_bytes

    def give_back(self, size_bytes: int | None = None) -> None:
        """Give back some of the bytes, or all that are left."""
        given = self.size_bytes if size_bytes is None else min(size_bytes, self.size_bytes)
        self.size_bytes -= given
        if given:
            self.account.give_back(given)

    def __del__(self) -> None:
        if self.size_bytes:
            self.account.give_back(self.size_bytes)
            self.size_bytes = 0
