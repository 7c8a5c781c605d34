"""What to drop and when to refuse writes: pure decisions from ages, sizes and room.

(upstream: DefaultMessageStore.CleanCommitLogService)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import DiskSpace

_HOUR_MS = 3_600_000
_MAX_DROPS = 10


@dataclass(frozen=True, slots=True)
class LogAge:
    """A log file by its end and the store time of its last known record, ms."""

    base: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How many of the oldest files to drop, at any age when a full disk forces it, and why writes
    are refused (empty: they are not)."""

    drop_count: int
    refusal: str
    is_forced: bool = False


def plan(
    ages: Sequence[LogAge],
    space: DiskSpace,
    now_ms: int,
    hour: int,
    config: StoreConfig,
    *,
    at_once: bool = False,
) -> Retention:
    """Decide. ``ages`` has every log file but the one being written, oldest first.

    Files older than the reserved time go in the hour of ``deleteWhen``, when the disk is fuller
    than it should be, or ``at_once``; beyond the forced ratio the oldest go at any age, unless
    ``cleanFileForciblyEnable`` is off.
    """
    used = space.used_ratio * 100
    limit_ms = now_ms - config.file_reserved_time * _HOUR_MS
    expired = sum(1 for age in ages if age.last_ms < limit_ms)
    full = used >= config.disk_space_clean_forcibly_ratio
    forced = full and config.clean_file_forcibly_enable
    due = at_once or hour in _hours(config.delete_when) or used >= config.disk_max_used_space_ratio
    drop_count = min(len(ages), _MAX_DROPS) if forced else expired if due else 0
    return Retention(min(drop_count, _MAX_DROPS), _refusal(space, config), forced)


def _refusal(space: DiskSpace, config: StoreConfig) -> str:
    used = space.used_ratio * 100
    if used < config.disk_space_warning_level_ratio:
        return ""
    return (
        f"the disk under {config.commit_log_directory} is {used:.1f} % full "
        f"({space.free_bytes >> 20} MiB free), writes are refused from "
        f"{config.disk_space_warning_level_ratio} % on (diskSpaceWarningLevelRatio): free space "
        "there, writes resume by themselves"
    )


def _hours(text: str) -> set[int]:
    return {int(word) for word in text.split(";") if word.strip().isdigit()}
