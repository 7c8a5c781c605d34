"""Names, help texts and parsers of a job's options on the command line.

A job's ``Options`` is a frozen dataclass. The annotation of a field holds its help: ``since_ms:
Annotated[int | None, Word("...", name="since", read=moment_ms)] = None``. Fields without a Word are
options too, under their own names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]i?)?b?", re.IGNORECASE)
_SPAN: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_SPANS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Word:
    """One option: its help; whether it is ``positional``; its name if it differs from the field's;
    the parser of its text (raises ValueError)."""

    help: str
    positional: bool = False
    name: str = ""
    read: Callable[[str], Any] | None = None


def size_bytes(text: str) -> int:
    """Parse a size like 128MB, 64Mi or a number of bytes. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size such as 128MB, 64MiB or 1000000")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]


def span_ms(text: str) -> int:
    """Parse a span of time like 500ms, 30s, 15m, 2h or 7d into milliseconds. Raises ValueError."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no time such as 500ms, 30s, 15m, 2h or 7d")
    return int(found[1]) * _SPANS_MS[found[2]]
