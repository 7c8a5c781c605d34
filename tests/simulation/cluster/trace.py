"""Trace of a simulation, in order: two runs are equal if the hashes of their traces are."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from tests.simulation.cluster.loop import SimLoop

_PRIMES: Final = (2_654_435_761, 2_246_822_519)


class Trace:
    """Readable lines; the hash also covers every byte that the network carried, and its time."""

    __slots__ = ("_bytes_sum", "_loop", "lines")

    def __init__(self, loop: SimLoop) -> None:
        self.lines: list[str] = []
        self._loop = loop
        self._bytes_sum = 0

    def note(self, text: str) -> None:
        """Add a line with the current time."""
        self.lines.append(f"{self._loop.now_us / 1_000_000 - 1_000:10.6f} {text}")

    def carried(self, end: int, piece: bytes) -> None:
        """Add bytes that arrived at an end of a connection to the hash."""
        place = self._loop.now_us * _PRIMES[0] + end * _PRIMES[1]
        self._bytes_sum = crc32(piece, (self._bytes_sum + place) & 0xFFFFFFFF)

    @property
    def digest(self) -> str:
        """Hash of everything up to now."""
        text = "\n".join(self.lines) + f"\n{self._bytes_sum}"
        return blake2b(text.encode(), digest_size=8).hexdigest()
