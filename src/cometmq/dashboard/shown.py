"""Formatting for the page: numbers, sizes, durations, times, bodies. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from cometmq.admin.views import moment

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: Bytes at the beginning of a body that the page shows; the whole body can be downloaded.
TEXT_BYTES_MAX: Final = 64 * 1024
#: Characters of indented JSON: indentation makes a small but deeply nested body huge.
JSON_CHARACTERS_MAX: Final = 1024 * 1024
HEX_BYTES_MAX: Final = 4 * 1024
NONE: Final = "–"


def count(value: float | None) -> str:
    """Return a number with separators between thousands; a dash for None."""
    return NONE if value is None else f"{round(value):,}"


def rate(value: float | None) -> str:
    """Return a rate per second: a number below 10 with one decimal, a large one with a unit."""
    if value is None:
        return NONE
    if value >= 99_950:
        return short(value)
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def short(value: float) -> str:
    """Return a number, from 10,000 on in thousands (k), millions (M) or billions (G)."""
    for limit, divisor, unit in ((999_950, 1e3, "k"), (999_950_000, 1e6, "M")):
        if value < 10_000:
            break
        if value < limit:
            return f"{value / divisor:,.1f}".removesuffix(".0") + unit
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1e9:,.1f}".removesuffix(".0") + "G"


def size(size_bytes: float | None) -> str:
    """Return a number of bytes with a unit."""
    if size_bytes is None:
        return NONE
    power = 0
    while size_bytes >= 1024 and power < len(_UNITS) - 1:
        size_bytes /= 1024
        power += 1
    return f"{size_bytes:.0f} {_UNITS[power]}" if not power else f"{size_bytes:.1f} {_UNITS[power]}"


def duration(duration_ms: float | None) -> str:
    """Return a duration in its two largest units; a dash for None."""
    if duration_ms is None:
        return NONE
    if duration_ms < 1000:
        return f"{duration_ms:.0f} ms"
    seconds = int(duration_ms // 1000)
    parts = (seconds // 86_400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "min")
    found = [f"{value} {unit}" for value, unit in (*parts, (seconds % 60, "s")) if value]
    return " ".join(found[:2]) or "0 s"


def at(ms: float | None) -> str:
    """Return a time (ms since the epoch) in UTC; a dash for None or 0."""
    return (moment(int(ms)) if ms else "").removesuffix("+00:00") or NONE


def percent(ratio: float | None) -> str:
    """Return a ratio in percent; a dash for None or a negative one."""
    return NONE if ratio is None or ratio < 0 else f"{ratio * 100:.0f} %"


def untold(why_by_broker: Mapping[str, str]) -> str:
    """Return one text with the brokers that did not answer, and why; "" if all did."""
    return "; ".join(f"{broker} did not tell: {why}" for broker, why in why_by_broker.items())


def body_text(body: bytes) -> str | None:
    """Return the beginning of a body as text; None if it is not UTF-8."""
    try:
        # The limit may cut a character, so a longer body ignores errors.
        return body[:TEXT_BYTES_MAX].decode(
            "utf-8", "ignore" if len(body) > TEXT_BYTES_MAX else "strict"
        )
    except UnicodeDecodeError:
        return None


def body_json(body: bytes) -> str | None:
    """Return a body as indented JSON; None if it is not JSON, or too large."""
    if len(body) > TEXT_BYTES_MAX or body[:1] not in (b"{", b"["):
        return None
    try:
        return indented(json.loads(body))
    except (ValueError, RecursionError):
        return None


def indented(value: object) -> str | None:
    """Return a value as indented JSON; None if that is too long, or cannot be shown."""
    try:
        parts, size = [], 0
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
            size += len(part)
            if size > JSON_CHARACTERS_MAX:
                return None
            parts.append(part)
        text = "".join(parts)
        text.encode()  # JSON can name halves of surrogate pairs, which no page can show
    except (ValueError, RecursionError):
        return None
    return text


def body_hex(body: bytes) -> str:
    """Return the beginning of a body as a hex dump: offset, 16 bytes, and their characters."""
    lines = []
    for begin in range(0, min(len(body), HEX_BYTES_MAX), 16):
        part = body[begin : begin + 16]
        pairs = " ".join(f"{byte:02x}" for byte in part)
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{begin:08x}  {pairs:<47}  {text}")
    return "\n".join(lines)
