"""Check of the Host header of HTTP requests, against DNS rebinding.

A web site can make its own name resolve to an address of this machine or network. Its pages could
then read from this process. The browser still sends the site's name in the Host header, so only
known names are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from cometmq.core.hosts import is_ip_address

#: A Host header: a name or an address, and an optional port. No browser sends anything else.
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?")


def host_names(names: Iterable[str]) -> frozenset[str]:
    """Return host names in the form that :func:`is_known_host` compares."""
    return frozenset(name.lower().rstrip(".") for name in names)


def is_known_host(header: str, names: frozenset[str], *, short_names: bool = False) -> bool:
    """Return whether a Host header is an address, localhost, or one of ``names``.

    ``short_names`` also accepts names without a dot, which no web site on the internet has.
    """
    found = _HOST.fullmatch(header)
    if found is None:
        return False
    name = found[1].strip("[]").lower().rstrip(".")
    if name == "localhost" or name in names:
        return True
    if is_ip_address(name):
        return True
    return short_names and found[1][0] != "[" and name != "" and "." not in name
