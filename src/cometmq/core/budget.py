"""Accounts for bytes in memory. No I/O.

A request is charged to the connection that it came from. Its bytes are given back when the last
reference to the charge is dropped, so code that lets a request wait need not handle it.
"""

from __future__ import annotations

from typing import Protocol


class Account(Protocol):
    """Account to which bytes in memory are charged."""

    def charge(self, size_bytes: int) -> Charge:
        """Count bytes until the charge is given back."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """Give back bytes of a charge. Any thread may call it."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """True if all connections together hold as much as the process may hold."""
        ...


class Charge:
    """Bytes on an account. They are given back once: on request, or when this object is deleted."""

    __slots__ = ("account", "size_bytes")

    def __init__(self, account: Account, size_bytes: int) -> None:
        self.account = account
        self.size_bytes = size_bytes

    def give_back(self, size_bytes: int | None = None) -> None:
        """Give back some of the bytes; all that are left if ``size_bytes`` is None."""
        given = self.size_bytes if size_bytes is None else min(size_bytes, self.size_bytes)
        self.size_bytes -= given
        if given:
            self.account.give_back(given)

    def __del__(self) -> None:
        if self.size_bytes:
            self.account.give_back(self.size_bytes)
            self.size_bytes = 0
