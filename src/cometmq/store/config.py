"""Settings of the store: RocketMQ's keys in snake case, with RocketMQ's defaults.

(upstream: MessageStoreConfig.java)
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from enum import Enum

from cometmq.core.errors import SettingsError

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FlushDiskType(Enum):
    """The flush mode: a send waits for the page cache (ASYNC_FLUSH) or the device (SYNC_FLUSH)."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class DamagePolicy(Enum):
    """Action of a start on damage in a part of the log that was already durable.

    REFUSE does not start, SKIP leaves out the damaged records, TRUNCATE ends the log before them.
    """

    REFUSE = "REFUSE"
    SKIP = "SKIP"
    TRUNCATE = "TRUNCATE"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The settings of a store. Sizes are in bytes, intervals in milliseconds."""

    store_path_root_dir: str = "store"
    store_path_commit_log: str = ""
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 6_000_000
    message_index_enable: bool = True
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    max_message_size: int = 4 << 20
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    sync_flush_timeout: int = 5_000
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1_000
    flush_consume_queue_thorough_interval: int = 60_000
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    max_transfer_bytes_on_message_in_memory: int = 262_144
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 65_536
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    max_msgs_num_batch: int = 64
    file_reserved_time: int = 72
    delete_when: str = "04"
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    clean_file_forcibly_enable: bool = True
    disk_space_warning_level_ratio: int = 90
    damage_policy: DamagePolicy = DamagePolicy.REFUSE
    scrub_bytes_per_second: int = 8 << 20
    scrub_interval_hours: int = 24
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200

    def __post_init__(self) -> None:
        if self.mapped_file_size_commit_log < 4096:
            raise SettingsError("mappedFileSizeCommitLog", "must be at least 4096 bytes")
        if self.mapped_file_size_consume_queue < 20:
            raise SettingsError("mappedFileSizeConsumeQueue", "must be at least 20 bytes")
        if self.max_hash_slot_num < 1 or self.max_index_num < 2:
            raise SettingsError("maxHashSlotNum", "must be at least 1, and maxIndexNum at least 2")
        if self.transient_store_pool_size < 1:
            raise SettingsError("transientStorePoolSize", "must be at least 1")
        if self.commit_interval_commit_log < 1:
            raise SettingsError("commitIntervalCommitLog", "must be at least 1 ms")
        if min(self.scrub_bytes_per_second, self.scrub_interval_hours) < 0:
            raise SettingsError(
                "scrubBytesPerSecond", "it and scrubIntervalHours must not be negative"
            )
        delay_levels_ms(self.message_delay_level)

    @property
    def answers_before_write(self) -> bool:
        """True if sends are acknowledged before they are written (transient pool)."""
        is_async = self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        return self.transient_store_pool_enable and is_async

    @property
    def commit_log_directory(self) -> str:
        """Directory of the log files."""
        return self.store_path_commit_log or os.path.join(self.store_path_root_dir, "commitlog")

    @property
    def queue_file_bytes(self) -> int:
        """Size of a consume queue file: a multiple of the entry size (upstream rounds up too)."""
        return -(-self.mapped_file_size_consume_queue // 20) * 20


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Return the delays of levels 1, 2, ... in milliseconds. Raises SettingsError."""
    found: list[int] = []
    for word in text.split():
        number, unit = word[:-1], word[-1]
        if unit not in _UNITS_MS or not (number.isascii() and number.isdigit()):
            raise SettingsError(
                "messageDelayLevel", f"{word!r} is not a number with one of s, m, h, d"
            )
        found.append(int(number) * _UNITS_MS[unit])
    return tuple(found)
