"""A number for each of many texts, by which they are compared and grouped."""

from __future__ import annotations

import numpy as np

from cometmq.message.walk import Bytes, Ints, numbers, window


def text_codes(raw: Bytes, at: Ints, lengths: Ints) -> Ints:
    """A 64-bit number for each text: equal for equal ones, and for others all but surely not."""
    codes = lengths.astype(np.uint64)
    eight = window(raw, "<u8")
    mix = np.uint64(0x9E37_79B9_7F4A_7C15)
    for length in np.flatnonzero(np.bincount(lengths)):
        rows = np.flatnonzero(lengths == length)
        chosen = slice(None) if len(rows) == len(lengths) else rows
        first = at[chosen]
        value = codes[chosen]
        for step in range(0, int(length) - 7, 8):
            value = (value ^ numbers(eight[first + step]).view(np.uint64)) * mix
            value ^= value >> np.uint64(32)
        rest = int(length) % 8
        if rest:
            # The eight bytes that end with the text; those before it are shifted out.
            last = numbers(eight[first + int(length) - 8]).view(np.uint64)
            value = (value ^ (last >> np.uint64(64 - 8 * rest))) * mix
            value ^= value >> np.uint64(32)
        codes[chosen] = value
    return codes.view(np.int64)


def text_code(text: bytes) -> int:
    """What :func:`text_codes` gives for one text."""
    padded = np.frombuffer(bytes(8) + text + bytes(8), np.uint8)
    return int(text_codes(padded, np.array([8]), np.array([len(text)]))[0])
