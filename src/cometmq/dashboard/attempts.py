"""Failed logins within a minute, by address and by account, in bounded memory.

One address may fail a few times, so it cannot guess, nor keep others out. One account may fail more
often, counted over all addresses, which limits how fast many machines together can guess. Addresses
of IPv6 count by their first 64 bits, which one machine usually has for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final

#: Failed logins of an address, and of an account, after which further ones are refused.
ADDRESS_FAILURES_MAX: Final = 10
ACCOUNT_FAILURES_MAX: Final = 50
#: Addresses and accounts that are remembered; the one that failed longest ago is forgotten first.
NAMES_MAX: Final = 4_096
MINUTE_MS: Final = 60_000
_NAME_CHARS_MAX: Final = 128

_Name = tuple[str, str]


class Attempts:
    """Logins that count as failed until they succeed, so that attempts at one time count too."""

    def __init__(self) -> None:
        self._failed_ms: OrderedDict[_Name, list[int]] = OrderedDict()

    def begin(self, address: str, account: str, now_ms: int) -> bool:
        """Count an attempt; return False, without counting it, if there were too many."""
        limits = _limits(address, account)
        for name in limits:
            recent = [at for at in self._failed_ms.get(name, ()) if now_ms - at < MINUTE_MS]
            if len(recent) >= limits[name]:
                return False
        for name in limits:
            recent = [at for at in self._failed_ms.pop(name, ()) if now_ms - at < MINUTE_MS]
            while len(self._failed_ms) >= NAMES_MAX:
                self._failed_ms.popitem(last=False)
            self._failed_ms[name] = [*recent, now_ms]
        return True

    def succeed(self, address: str, account: str, begun_ms: int) -> None:
        """Take back an attempt that began at a time."""
        for name in _limits(address, account):
            failed_ms = self._failed_ms.get(name, [])
            if begun_ms in failed_ms:
                failed_ms.remove(begun_ms)
            if not failed_ms:
                self._failed_ms.pop(name, None)


def _limits(address: str, account: str) -> dict[_Name, int]:
    return {
        ("address", network_of(address)): ADDRESS_FAILURES_MAX,
        ("account", account[:_NAME_CHARS_MAX]): ACCOUNT_FAILURES_MAX,
    }


def network_of(address: str) -> str:
    """Return what an address counts as: itself, or of IPv6 its first 64 bits."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:_NAME_CHARS_MAX]
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or int(found) >> 64)
    return str(found)
