"""A bound on bytes a second. Pure: time comes as an argument."""

from __future__ import annotations

from typing import Final

_BURST_MS: Final = 100


class Rate:
    """Lets bytes through at ``bytes_per_s``, 0 for any number, in bursts of a tenth of a second."""

    __slots__ = ("_bytes_per_s", "_free_ms")

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    def wait_ms(self, now_ms: int) -> int:
        """How long to wait before more may be sent; 0 for now."""
        over_ms = self._free_ms - now_ms - _BURST_MS
        return max(int(over_ms) + 1, 0) if over_ms > 0 else 0

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """Bytes were sent."""
        if self._bytes_per_s:
            self._free_ms = max(self._free_ms, now_ms) + 1_000 * size_bytes / self._bytes_per_s
