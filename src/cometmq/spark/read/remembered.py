"""A file on the driver with the brokers that held the queues of topics when they were last read.

A batch has no checkpoint, and name servers forget brokers that went away. So every plan records the
brokers it saw, for later plans, in a small file per set of name servers that is replaced
atomically. The file is only a hint: if it cannot be read or written, that is logged, and the read
goes on without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.core.clock import SystemClock
from cometmq.spark.read.topics import Assigned, Pattern, matching

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.topics import Choice

log = logging.getLogger(__name__)

KEPT_MS: Final = 72 * 3_600_000
"""A broker that was not seen for this long is forgotten: 72 hours, the default retention of
brokers."""

RENEWED_MS: Final = 3_600_000
"""Minimum age at which the time of a sighting is written again."""

PAIRS_MAX: Final = 100_000
FILE_BYTES_MAX: Final = 32 << 20

Seen = dict[str, dict[str, int]]
"""Time when each broker was last seen (ms since the epoch), by topic and broker name."""

_clock: Final = SystemClock()


def default_folder() -> str | None:
    """Return a folder of the user's own, or None for a user without a home directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "cometmq", "spark") if os.path.isabs(cache) else None


class Memory:
    """The brokers recorded in a folder for one set of name servers. Without a folder it is
    empty."""

    def __init__(self, folder: str | None, access: Access) -> None:
        self._path: Path | None = None
        if folder is not None:
            name = hashlib.sha256(";".join(sorted(access.nameservers)).encode()).hexdigest()[:24]
            self._path = Path(folder) / f"brokers-{name}.json"

    def absent(self, choice: Choice, there: Mapping[str, frozenset[str]]) -> dict[str, str]:
        """Return brokers that held queues of a choice and are not in ``there`` (by topic), each
        with the reason why it is expected."""
        found: dict[str, str] = {}
        for topic, brokers in self._chosen(choice).items():
            for name in brokers.keys() - there.get(topic, frozenset()):
                moment = datetime.fromtimestamp(brokers[name] // 1000, UTC).isoformat()
                found[name] = (
                    f"it had queues of {topic!r} when they were read at {moment} (recorded in "
                    f"{self._path}; option brokers overrides that)"
                )
        return found

    def keep(self, there: Mapping[str, Iterable[str]], gone: Mapping[str, Iterable[str]]) -> None:
        """Record that the brokers of ``there`` hold topics, and that the registered ones of
        ``gone`` do not."""
        now_ms = _clock.wall_ms()
        seen = self._read()
        changed = False
        for topic, names in there.items():
            of_topic = seen.setdefault(topic, {})
            for name in names:
                if now_ms - of_topic.get(name, 0) > RENEWED_MS:
                    of_topic[name], changed = now_ms, True
        for topic, names in gone.items():
            for name in names:
                changed |= seen.get(topic, {}).pop(name, None) is not None
        if changed:
            self._write(seen)

    def chosen(self, choice: Choice) -> dict[str, frozenset[str]]:
        """Return the brokers that held queues of each topic of a choice."""
        return {topic: frozenset(brokers) for topic, brokers in self._chosen(choice).items()}

    def _chosen(self, choice: Choice) -> Seen:
        if isinstance(choice, Assigned):
            return {}  # assigned queues name their brokers
        seen = self._read()
        if isinstance(choice, Pattern):
            names = matching(choice, seen, frozenset())
        else:
            names = [name for name in choice.names if name in seen]
        return {name: seen[name] for name in names}

    def _read(self) -> Seen:
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as opened:
                found = msgspec.json.decode(opened.read(FILE_BYTES_MAX), type=Seen)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeError) as error:
            log.warning("known_brokers_unreadable path=%s error=%r", self._path, str(error))
            return {}
        now_ms = _clock.wall_ms()
        return {
            topic: {name: at for name, at in names.items() if 0 <= now_ms - at < KEPT_MS}
            for topic, names in found.items()
        }

    def _write(self, seen: Seen) -> None:
        if self._path is None:
            return
        brokers_by_topic = {topic: names for topic, names in seen.items() if names}
        if sum(map(len, brokers_by_topic.values())) > PAIRS_MAX:
            log.warning("known_brokers_too_many path=%s", self._path)
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent)
            try:
                with os.fdopen(handle, "wb") as opened:
                    opened.write(msgspec.json.encode(brokers_by_topic))
                os.replace(name, self._path)
            except OSError:
                with suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            log.warning("known_brokers_not_written path=%s error=%r", self._path, str(error))
