"""A limit on bytes per second, without I/O; time is an argument."""

from __future__ import annotations

from typing import Final

_BURST_MS: Final = 100


class Rate:
    """A limit of ``bytes_per_s``, 0 for none, with bursts of a tenth of a second."""

    __slots__ = ("_bytes_per_s", "_free_ms")

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    def wait_ms(self, now_ms: int) -> int:
        """Return the milliseconds to wait before more may be sent; 0 for none."""
        over_ms = self._free_ms - now_ms - _BURST_MS
        return max(int(over_ms) + 1, 0) if over_ms > 0 else 0

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that were sent."""
        if self._bytes_per_s:
            self._free_ms = max(self._free_ms, now_ms) + 1_000 * size_bytes / self._bytes_per_s
