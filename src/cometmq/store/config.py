"""Settings of the store: RocketMQ's keys in snake case, with RocketMQ's defaults.

(upstream: MessageStoreConfig.java)
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from enum import Enum

from cometmq.core.errors import SettingsError
from cometmq.core.settings import OURS, check_ranges, setting

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: Largest Java int. RocketMQ's settings cannot be larger, so no Java broker reads longer files.
_INT_MAX = 0x7FFF_FFFF


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


@dataclass(slots=True)
class StoreConfig:
    """The settings of a store.

    All parts of a store share one object. An administrator may change the fields marked ``live`` at
    run time, so each use must read them again. The others never change.
    """

    store_path_root_dir: str = setting(
        "store",
        "root directory of the store",
        rocketmq="store in the home directory by default",
    )
    store_path_commit_log: str = setting(
        "",
        "directory of the commit log; `commitlog` in the root directory unless it is set. Several "
        "directories, separated by commas, get new files in turn; full ones are left out",
        see="how-to/production.md#a-log-in-several-directories",
    )
    read_only_commit_log_store_paths: str = setting(
        "",
        "directories of the commit log, separated by commas, that get no new files and are not "
        "written to; no effect unless `storePathCommitLog` has a comma",
        rocketmq="a last file that is not full is still written to",
        see="how-to/production.md#a-log-in-several-directories",
    )
    mapped_file_size_commit_log: int = setting(
        1 << 30,
        "size of a commit log file; the broker keeps the next one ready. `cometmq start` makes new "
        "stores with 33554432 (32 MiB) unless this is set, and keeps the size of existing ones",
        unit="bytes",
        least=4096,
        most=_INT_MAX,
    )
    mapped_file_size_consume_queue: int = setting(
        6_000_000,
        "size of a consume queue file, rounded up to whole entries of 20 bytes",
        unit="bytes",
        least=20,
        most=_INT_MAX - 7,
    )
    enable_consume_queue_ext: bool = setting(
        False,
        "write tag codes and store times of queue entries to `consumequeue_ext`, as a Java broker "
        "with this setting does; entries that have them are read with any value",
    )
    mapped_file_size_consume_queue_ext: int = setting(
        48 << 20,
        "size of a file in `consumequeue_ext`; existing files keep the length of the first one",
        unit="bytes",
        least=1024,
        most=_INT_MAX,
    )
    message_index_enable: bool = setting(
        True,
        "whether messages can be found by key",
    )
    max_hash_slot_num: int = setting(
        5_000_000,
        "hash slots of an index file",
        least=1,
        most=_INT_MAX,
    )
    max_index_num: int = setting(
        20_000_000,
        "entries of an index file",
        least=2,
        most=_INT_MAX,
    )
    max_message_size: int = setting(
        4 << 20,
        "largest body of a message",
        unit="bytes",
        least=1,
        live=True,
    )
    flush_disk_type: FlushDiskType = setting(
        FlushDiskType.ASYNC_FLUSH,
        "`ASYNC_FLUSH` answers a send when the message is written to the operating system, "
        "`SYNC_FLUSH` when it is on the device (with many sends in flight, 1 MiB of zeros is "
        "written ahead of the log at a time: twice the bytes for the disk, a third of the time "
        "of a sync)",
    )
    sync_flush_timeout: int = setting(
        5_000,
        "how long a send waits for the device before it is answered with FLUSH_DISK_TIMEOUT",
        unit="ms",
        least=1,
        live=True,
    )
    flush_interval_commit_log: int = setting(
        500,
        "how often the log is synced with `ASYNC_FLUSH`",
        unit="ms",
        least=1,
        live=True,
    )
    flush_commit_log_least_pages: int = setting(
        4,
        "a sync at that interval is skipped while fewer than this many pages of 4 KiB are new",
        unit="pages of 4 KiB",
        least=0,
        live=True,
    )
    flush_commit_log_thorough_interval: int = setting(
        10_000,
        "the log is synced at least this often, however few pages are new",
        unit="ms",
        least=0,
        live=True,
    )
    flush_interval_consume_queue: int = setting(
        1_000,
        "how often queue and index entries are written to their files",
        unit="ms",
        least=1,
        live=True,
    )
    flush_consume_queue_thorough_interval: int = setting(
        60_000,
        "how often queue files, index files and the checkpoint are synced",
        unit="ms",
        least=0,
        live=True,
    )
    message_delay_level: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "the delays of levels 1, 2, ...: numbers with s, m, h or d",
    )
    max_transfer_bytes_on_message_in_memory: int = setting(
        262_144,
        "most bytes in an answer to a pull",
        unit="bytes",
        least=1,
        live=True,
    )
    max_transfer_count_on_message_in_memory: int = setting(
        32,
        "most messages in an answer to a pull; system groups (`CID_RMQ_SYS_`), such as that of "
        "the Spark source, get up to 1 024 if they ask for them",
        least=1,
        live=True,
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        65_536,
        "most bytes if the messages have to be read from the device",
        unit="bytes",
        least=1,
        live=True,
    )
    max_transfer_count_on_message_in_disk: int = setting(
        8,
        "most messages if they have to be read from the device",
        least=1,
        live=True,
    )
    access_message_in_memory_max_ratio: int = setting(
        40,
        "share of the machine's memory that the newest messages are assumed to fill",
        unit="percent",
        least=0,
        most=100,
    )
    max_msgs_num_batch: int = setting(
        64,
        "most messages of an answer to a query",
        least=1,
        live=True,
    )
    file_reserved_time: int = setting(
        72,
        "hours that a log file is kept after its last message",
        unit="hours",
        least=0,
        live=True,
    )
    delete_when: str = setting(
        "04",
        "the hour, or hours separated by `;`, in which expired files are deleted",
        live=True,
    )
    disk_max_used_space_ratio: int = setting(
        75,
        "disk usage above which expired files are deleted at any hour",
        unit="percent",
        least=0,
        live=True,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        "disk usage above which files are deleted before they expire",
        unit="percent",
        least=0,
        live=True,
        rocketmq="the system property rocketmq.broker.diskSpaceCleanForciblyRatio",
    )
    clean_file_forcibly_enable: bool = setting(
        True,
        "whether files may be deleted before they expire",
        live=True,
    )
    disk_space_warning_level_ratio: int = setting(
        90,
        "disk usage above which sends are refused",
        unit="percent",
        least=0,
        live=True,
        rocketmq="the system property rocketmq.broker.diskSpaceWarningLevelRatio",
    )
    damage_policy: DamagePolicy = setting(
        DamagePolicy.REFUSE,
        "what a start does about damage in a part of the log that was safely on the device: "
        "`REFUSE` does not start, `SKIP` leaves the damaged records out, `TRUNCATE` ends the "
        "log before them",
        rocketmq=OURS,
        see="recovery.md",
    )
    scrub_bytes_per_second: int = setting(
        8 << 20,
        "most bytes a second at which full log files are compared with their checksums in the "
        "background; 0 turns the comparison off",
        unit="bytes",
        least=0,
        live=True,
        rocketmq=OURS,
        see="recovery.md#damage-in-a-running-broker",
    )
    scrub_interval_hours: int = setting(
        24,
        "hours from the beginning of one pass over all full log files to the beginning of the "
        "next; with 0 the next pass begins when the last one ends",
        unit="hours",
        least=0,
        live=True,
        rocketmq=OURS,
    )
    transient_store_pool_enable: bool = setting(
        False,
        "whether sends are answered before they are written. Works only on a master with "
        "`ASYNC_FLUSH`; ignored elsewhere, with a notice. A kill of the process then loses "
        "only the sends that were answered in the last `commitIntervalCommitLog` plus "
        "`commitCommitLogThoroughInterval`. Consumers and slaves see a message once it is "
        "written",
        see="decisions/0013-transient-pool.md",
    )
    transient_store_pool_size: int = setting(
        5,
        "most data that may wait to be written, as a number of log files, but at most 8 MiB",
        least=1,
    )
    commit_interval_commit_log: int = setting(
        200,
        "how often the broker checks for data that waits to be written to the log",
        unit="ms",
        least=1,
        live=True,
    )
    commit_commit_log_least_pages: int = setting(
        4,
        "once this many pages of 4 KiB wait, they are written after the answers of the event "
        "loop's turn",
        unit="pages of 4 KiB",
        least=0,
        live=True,
    )
    commit_commit_log_thorough_interval: int = setting(
        200,
        "fewer pages are written once nothing was written for this long",
        unit="ms",
        least=0,
        live=True,
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        delay_levels_ms(self.message_delay_level)
        if not self.writable_log_directories:
            raise SettingsError(
                "storePathCommitLog",
                "new files of the log need a directory: name one that is not in "
                "readOnlyCommitLogStorePaths",
            )

    @property
    def answers_before_write(self) -> bool:
        """True if sends are acknowledged before they are written (transient pool)."""
        is_async = self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        return self.transient_store_pool_enable and is_async

    @property
    def commit_log_directories(self) -> tuple[str, ...]:
        """All directories of the log files, as the settings name them."""
        if "," not in self.store_path_commit_log:
            one = self.store_path_commit_log or os.path.join(self.store_path_root_dir, "commitlog")
            return (one,)
        named = _paths(self.store_path_commit_log)
        return tuple(dict.fromkeys([*named, *self.read_only_log_directories]))

    @property
    def read_only_log_directories(self) -> tuple[str, ...]:
        """Directories whose log files are never written to, and that get no new ones.

        As in RocketMQ, there are none unless ``storePathCommitLog`` has a comma.
        """
        if "," not in self.store_path_commit_log:
            return ()
        return _paths(self.read_only_commit_log_store_paths)

    @property
    def writable_log_directories(self) -> tuple[str, ...]:
        """Directories that get new log files, sorted."""
        read_only = self.read_only_log_directories
        return tuple(sorted(set(self.commit_log_directories).difference(read_only)))

    @property
    def queue_file_bytes(self) -> int:
        """Size of a consume queue file: a multiple of the entry size (upstream rounds up too)."""
        return -(-self.mapped_file_size_consume_queue // 20) * 20


def _paths(text: str) -> tuple[str, ...]:
    """Return the paths of a list that is separated by commas, each once."""
    paths = (path.strip() for path in text.split(","))
    return tuple(dict.fromkeys(os.path.normpath(path) for path in paths if path))


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
