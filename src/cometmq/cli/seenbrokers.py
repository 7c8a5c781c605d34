"""Brokers that ``cometmq cluster health`` saw registered, in a file of the user.

A name server forgets a broker that stops, so the cluster itself does not show that one is missing.
The file is ``$XDG_STATE_HOME/cometmq/brokers.json`` (``~/.local/state`` by default). For the name
servers of each cluster, it has the time at which each broker was last seen, in milliseconds since
the epoch:

    {"127.0.0.1:9876": {"broker-a": 1767225600000}}

Each change replaces the whole file. A failure to read or write it is logged; an unreadable file
counts as empty.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_DAY_MS: Final = 24 * 3_600_000
#: A broker that was not seen for this time is forgotten.
KEPT_MS: Final = 30 * _DAY_MS
CLUSTERS_MAX: Final = 100

Seen = Mapping[str, int]


def path() -> Path | None:
    """Return the path of the file; None for a user without a home directory."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base, "cometmq", "brokers.json") if os.path.isabs(base) else None


def load(name_servers: Iterable[str], now_ms: int) -> Seen:
    """Return the time at which each broker of a cluster was last seen."""
    found = _read().get(_key(name_servers), {})
    return {name: at for name, at in found.items() if now_ms - at < KEPT_MS}


def save(name_servers: Iterable[str], seen: Seen) -> None:
    """Replace the brokers and times of a cluster."""
    clusters = _read()
    key = _key(name_servers)
    clusters.pop(key, None)
    if seen:
        clusters[key] = dict(seen)
    latest = sorted(clusters, key=lambda each: max(clusters[each].values(), default=0))
    kept = {key: clusters[key] for key in latest[-CLUSTERS_MAX:]}
    target = path()
    if target is None:
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            new.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        log.warning("seen_brokers_not_saved path=%s error=%s", target, error)


def _key(name_servers: Iterable[str]) -> str:
    return ";".join(sorted(name_servers))


def _read() -> dict[str, dict[str, int]]:
    source = path()
    if source is None:
        return {}
    try:
        found = json.loads(source.read_bytes())
        return {
            str(key): {str(name): int(at) for name, at in brokers.items()}
            for key, brokers in found.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("seen_brokers_not_read path=%s error=%s", source, error)
        return {}
