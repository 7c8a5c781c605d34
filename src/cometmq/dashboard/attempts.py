"""Failed logins within a minute, by address and by account, in bounded memory.

    per address   a low limit: one machine can neither guess secrets nor lock an account for others
    per account   a higher limit over all addresses: slows many machines that guess together

IPv6 addresses count by their first 64 bits, because one machine usually has such a network for
itself.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final

#: Failed logins within a minute after which logins of an address, or of an account, are refused.
ADDRESS_FAILURES_MAX: Final = 10
ACCOUNT_FAILURES_MAX: Final = 50
#: Addresses and accounts that are remembered; the one with the oldest attempt is dropped first.
NAMES_MAX: Final = 4_096
MINUTE_MS: Final = 60_000
_NAME_CHARS_MAX: Final = 128

_Name = tuple[str, str]


class Attempts:
    """Login attempts of the last minute.

    An attempt counts as failed from its start until it succeeds, so that concurrent attempts cannot
    exceed the limits.
    """

    def __init__(self) -> None:
        self._failed_ms: OrderedDict[_Name, list[int]] = OrderedDict()

    def begin(self, address: str, account: str, now_ms: int) -> bool:
        """Count an attempt and return True; return False, without counting it, at a limit."""
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
        """Remove an attempt, which has succeeded; ``begun_ms`` is what :meth:`begin` received."""
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
    """Return the key by which an address counts: the first 64 bits of IPv6, otherwise itself.

    A text that is not an address is its own key, cut to 128 characters.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address[:_NAME_CHARS_MAX]
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or int(found) >> 64)
    return str(found)
