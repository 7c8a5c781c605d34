"""Retention decisions from ages, sizes and disk space, without I/O.

They say how many files to drop and whether to refuse writes (upstream:
DefaultMessageStore.CleanCommitLogService).
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
    """A log file's base offset and the time of its last write, ms."""

    base: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Retention:
    """The number of oldest files to drop, and the reason to refuse writes (empty to allow them).

    ``is_forced`` says that the disk is so full that files are dropped at any age.
    """

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
    """Decide how many files to drop and whether to refuse writes.

    ``ages`` has every droppable log file, oldest first; the one being written is not among them.
    Files older than the reserved time are dropped in the hours of ``deleteWhen``, when the disk is
    fuller than the configured maximum, or with ``at_once``. Beyond the forced ratio the oldest
    files are dropped at any age, unless ``cleanFileForciblyEnable`` is off.
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
        f"({space.free_bytes >> 20} MiB free), writes are refused at "
        f"{config.disk_space_warning_level_ratio} % and above (diskSpaceWarningLevelRatio): free "
        "space there, writes resume by themselves"
    )


def _hours(text: str) -> set[int]:
    return {int(word) for word in text.split(";") if word.strip().isdigit()}
