"""Numbers by which texts are compared; the seals on disk depend on them."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_ALL: Final = (1 << 64) - 1
_FACTOR: Final = 0x9E37_79B9_7F4A_7C15
_STEP_BYTES: Final = 8


@lru_cache(maxsize=4096)
def text_code(text: str) -> int:
    """Return a signed 64-bit number: the same for equal texts, nearly always another for others."""
    raw = text.encode()
    value = len(raw)
    for at in range(0, len(raw), _STEP_BYTES):
        value ^= int.from_bytes(raw[at : at + _STEP_BYTES], "little")
        value = value * _FACTOR & _ALL
        value ^= value >> 32
    return value - (value >> 63 << 64)
