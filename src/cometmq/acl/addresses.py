"""Patterns of white lists: which remote addresses a pattern matches.

    pattern                  matches
    ""                       nothing
    "*", "*.*.*.*",          everything
    "*:*:*:*:*:*:*:*"
    "10.1.2.3", "fe80::1"    that address
    "10.1.2.3,10.1.2.4"      each address of the list
    "10.1.2.{3,4}"           each of the last parts; the same with the last group of an IPv6 address
    "10.1.2.*", "10.*"       any last part, any last three parts
    "10.1.2.3-9"             a range of the last part; "10.1.3-9.*" of an earlier one
    "fe80:0:0:0:0:0:0:1-ff"  a range in hexadecimal; "*" for a part or for the rest

Upstream: RemoteAddressStrategyFactory.java, AclUtils.java. An address is compared by its value, so
all spellings of an IPv6 address are equal.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cometmq.core.errors import AclDenied

#: Maximum number of addresses that one pattern may list.
MAX_ADDRESSES: Final = 1_000
_RANGE: Final = re.compile(r"([0-9A-Fa-f]{1,4})(?:-([0-9A-Fa-f]{1,4}))?")
_EVERYTHING: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """One pattern of a white list.

    A pattern of ranges has one (lowest, highest) pair for each part of an address, four for IPv4
    and eight for IPv6; ``addresses`` are the parts of single addresses.
    """

    text: str
    everything: bool = False
    addresses: frozenset[tuple[int, ...]] = frozenset()
    ranges: tuple[tuple[int, int], ...] = ()

    def matches(self, parts: tuple[int, ...]) -> bool:
        """Return whether the address with these parts (:func:`address_parts`) matches."""
        if self.everything or parts in self.addresses:
            return True
        return len(parts) == len(self.ranges) > 0 and all(
            low <= part <= high for part, (low, high) in zip(parts, self.ranges, strict=True)
        )


@lru_cache(maxsize=4096)
def address_parts(host: str) -> tuple[int, ...]:
    """Return the parts of an IP address: four bytes of IPv4 or eight groups of IPv6.

    Returns an empty tuple for a text that is no address. An IPv4-mapped IPv6 address counts as
    IPv4.
    """
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return ()
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    packed = address.packed
    if len(packed) == 4:
        return tuple(packed)
    return tuple(int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2))


def parse_pattern(text: str) -> AddressPattern:
    """Parse a pattern. Raise AclDenied, which says what is wrong, for an invalid one."""
    text = text.strip()
    if not text:
        return AddressPattern(text)
    if text in _EVERYTHING:
        return AddressPattern(text, everything=True)
    if text.endswith("}") or "," in text:
        listed = _listed(text)
        if len(listed) > MAX_ADDRESSES:
            raise _bad(text, f"it lists more than {MAX_ADDRESSES} addresses")
        return AddressPattern(text, addresses=frozenset(_single(text, each) for each in listed))
    if "*" in text or "-" in text:
        return AddressPattern(text, ranges=_ranges(text))
    return AddressPattern(text, addresses=frozenset({_single(text, text)}))


def _listed(text: str) -> list[str]:
    if not text.endswith("}"):
        return [each.strip() for each in text.split(",")]
    head, brace, tail = text.partition("{")
    if not brace or not head.endswith((":", ".")) or "{" in tail:
        raise _bad(text, "braces are allowed for the last part only, as in 10.1.2.{3,4}")
    return [head + each.strip() for each in tail[:-1].split(",")]


def _single(text: str, address: str) -> tuple[int, ...]:
    parts = address_parts(address)
    if not parts:
        raise _bad(text, f"{address!r} is not an IP address")
    return parts


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    separator, count, highest, base = (":", 8, 0xFFFF, 16) if ":" in text else (".", 4, 255, 10)
    if "::" in text:
        raise _bad(text, "a range needs all groups of the address, without ::")
    parts = text.split(separator)
    if len(parts) > count or (len(parts) < count and parts[-1].strip() != "*"):
        raise _bad(text, f"it needs {count} parts, or * as its last")
    ranges = [_range(text, part.strip(), highest, base) for part in parts]
    return (*ranges, *[(0, highest)] * (count - len(ranges)))


def _range(text: str, part: str, highest: int, base: int) -> tuple[int, int]:
    if part == "*":
        return 0, highest
    found = _RANGE.fullmatch(part)
    try:
        low = int(found[1], base) if found else -1
        high = int(found[2] or found[1], base) if found else -1
    except ValueError:
        low = high = -1
    if not 0 <= low <= high <= highest:
        limit = f"{highest:x}" if base == 16 else str(highest)
        raise _bad(text, f"{part!r} must be *, a number or a rising range, up to {limit}")
    return low, high


def _bad(text: str, problem: str) -> AclDenied:
    return AclDenied(f"white list entry {text!r}: {problem}")
