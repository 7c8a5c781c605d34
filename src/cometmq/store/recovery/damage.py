"""Damage in the log: distinguishes a torn end from loss, and handles both.

The log is *proven* durable up to the offset that a sync is known to have covered. Bytes that are
not a record

- at or after that offset are the torn end of a crash: the log ends there. If valid records follow,
  they are set aside first (quarantine.py), so that nothing is lost silently;
- before it are a loss of acknowledged messages. The operator decides (``damagePolicy``):
  REFUSE     the store does not open; the error reports the place of the damage and the remedies;
  SKIP       the damaged bytes are set aside and replaced by fillers: records without a place in
             any queue (their sysFlag is "prepared"), which every broker's scan steps over; or by a
             blank in the last part of a file. Queue entries for lost records become holes;
  TRUNCATE   the log ends before the damage, and everything after it is set aside.

Broken files are treated in the same way: SKIP replaces a missing file by a file with a blank; a
short file is extended with zeros and then read.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt, StoreFull
from cometmq.message.record import (
    BLANK,
    FIXED_BYTES,
    MAGIC_BLANK,
    Record,
    TransactionType,
    pack,
)
from cometmq.store.config import DamagePolicy
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY
from cometmq.store.log.scan import Resumption, resumption
from cometmq.store.log.segments import LogFile
from cometmq.store.parts import Damage

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files
    from cometmq.store.log.scan import Scan
    from cometmq.store.log.segments import FileFault, Segments
    from cometmq.store.recovery.quarantine import Quarantine

logger = logging.getLogger(__name__)

#: Largest filler. A Java broker reads each record into memory as a whole when it recovers.
FILLER_BYTES = 4 << 20
_SECTOR_BYTES = 512
FILLER_TOPIC = "-"


@dataclass(frozen=True, slots=True)
class Proof:
    """The durable part of the log.

    It has all bytes before the physical ``offset``, and all records stored up to ``store_ms``.
    """

    offset: int
    store_ms: int = 0

    def covers(self, offset: int, next_record: Resumption | None) -> bool:
        """Return whether ``offset`` was durable; ``next_record`` is the next valid record."""
        if offset < self.offset:
            return True
        return next_record is not None and 0 < next_record.store_ms <= self.store_ms


class LogRepair:
    """Decides, where a scan stops, whether the log ends there; repairs the log if it does not.

    opening.py clears the bytes after the end. ``punch`` replaces the queue entries for a range of
    the log by holes. ``record_cut`` is called with the offset before a durable part of the log is
    removed; ``cut`` is that offset then. ``looks_behind`` says that the machine may have lost
    power: valid records may then follow zeros.
    """

    __slots__ = (
        "_config",
        "_looks_behind",
        "_quarantine",
        "_segments",
        "cut",
        "damages",
        "proof",
        "punch",
        "record_cut",
    )

    def __init__(
        self,
        segments: Segments,
        config: StoreConfig,
        quarantine: Quarantine,
        proof: Proof,
        *,
        looks_behind: bool,
        punch: Callable[[int, int], None],
        record_cut: Callable[[int], None],
    ) -> None:
        self._segments = segments
        self._config = config
        self._quarantine = quarantine
        self._looks_behind = looks_behind
        self.proof = proof
        self.punch = punch
        self.record_cut = record_cut
        self.damages: list[Damage] = []
        self.cut: int | None = None

    def read(self, scan: Scan) -> Iterator[Record]:
        """Yield all records of a scan, also those after skipped damage.

        Raises StoreCorrupt for damage if the policy is to refuse it, StoreFull if there is no room
        to set it aside.
        """
        while True:
            yield from scan
            if not self._repair(scan):
                return

    def _repair(self, scan: Scan) -> bool:
        """Handle the place where the scan stopped; return whether the scan goes on."""
        offset = scan.position
        if scan.end is not None and offset >= scan.end:
            return False
        if not (scan.torn or self._looks_behind or offset < self.proof.offset):
            return False
        record = resumption(self._segments, offset, of_records=True)
        if not self.proof.covers(offset, record):
            if record is not None:
                self._segments.check_changeable(offset)
                reason = f"torn end of the log ({scan.problem}) with valid records after it"
                self._quarantine.keep_log_from(self._segments, offset, reason)
            elif scan.torn:
                logger.warning("log_end_torn offset=%d problem=%r", offset, scan.problem)
            return False
        following = resumption(self._segments, offset)
        damage = self._describe(offset, following, scan.problem)
        policy = self._config.damage_policy
        if policy is DamagePolicy.REFUSE:
            raise self._refusal(damage)
        skips = policy is DamagePolicy.SKIP and following is not None
        self._check_changeable(offset, following.offset if skips and following else None)
        self.damages.append(damage)
        logger.error(
            "log_damaged path=%s offset=%d next=%d policy=%s problem=%r",
            damage.path, offset, damage.next_offset, policy.name, damage.problem,
        )  # fmt: skip
        if policy is DamagePolicy.SKIP and following is not None:
            self._skip(offset, following, record.store_ms if record else 0)
            scan.position = following.offset
            return True
        self.record_cut(offset)
        self._quarantine.keep_log_from(self._segments, offset, damage.problem)
        self.cut = offset
        return False

    def _check_changeable(self, start: int, stop: int | None) -> None:
        """Raise SettingsError if a read-only directory has bytes that will be changed.

        These are the bytes from ``start`` up to ``stop``; without ``stop``, all later ones.
        """
        if stop is None:
            self._segments.check_changeable(start)
            return
        for file in self._segments.files:
            if file.end > start and file.base < stop:
                self._segments.check_writable(file.path)

    def _describe(self, offset: int, following: Resumption | None, problem: str) -> Damage:
        file = self._segments.find(offset)
        if file is None:
            problem = "the log ends here: its last files are missing"
        path = self._segments.directory if file is None else file.path
        return Damage(
            path, offset, -1 if following is None else following.offset,
            problem or "there are zeros in place of a record",
        )  # fmt: skip

    def _refusal(self, damage: Damage) -> StoreCorrupt:
        problem = f"{damage.problem}; this part of the log had been synced"
        if self.proof.offset > damage.offset:
            problem += f" (up to offset {self.proof.offset})"
        if damage.next_offset >= 0:
            lost = damage.next_offset - damage.offset
            problem += f". The log continues {lost} bytes further, at {damage.next_offset}"
            first = f"gives up only these {lost} bytes"
        else:
            problem += ". No valid record follows"
            first = f"gives up everything from {damage.offset}, because no valid record follows"
        ways = ways_out(self._config, first, f"gives up everything from {damage.offset}")
        return StoreCorrupt(
            damage.path, damage.offset, problem, next_offset=damage.next_offset, ways_out=ways
        )

    def _skip(self, start: int, following: Resumption, store_ms: int) -> None:
        """Replace the bytes between two offsets by fillers.

        Queue entries are changed first. After a crash in between, the next start then finds the
        damage again, rather than entries that point into a filler.
        """
        stop = following.offset
        parts = [
            (file, max(file.base, start), min(file.end, stop))
            for file in self._segments.files
            if file.end > start and file.base < stop
        ]
        for file, first, end in parts:
            self._quarantine.copy(file, first, end, "damage in the log is skipped")
        self.punch(start, stop)
        for file, first, end in parts:
            fill(file, first, end, store_ms)


def lost_tail(record: Record, position: int) -> bool:
    """Return whether a power cut lost the end of a record at ``position`` of its file.

    The CRC covers only the body. A later sector that was never written is all zeros, and properties
    never contain such a sector.
    """
    end = position + record.size_bytes
    start = end - len(record.properties)
    sector = max(-(-start // _SECTOR_BYTES), 1) * _SECTOR_BYTES
    return any(
        not any(record.properties[at - start : at - start + _SECTOR_BYTES])
        for at in range(sector, end, _SECTOR_BYTES)
    )


def fill(file: LogFile, start: int, stop: int, store_ms: int) -> None:
    """Write fillers between two offsets of a log file, durably; a blank if ``stop`` is its end."""
    if stop == file.end:
        file.write(start, BLANK.pack(stop - start, MAGIC_BLANK))
    else:
        for offset, size in filler_sizes(start, stop):
            file.write(offset, filler(offset, size, store_ms))
    file.sync()


def filler_sizes(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield offsets and sizes of the fillers between two offsets; each has room for a record."""
    least = FIXED_BYTES + len(FILLER_TOPIC)
    while start < stop:
        rest = stop - start
        size = rest if rest <= FILLER_BYTES else min(FILLER_BYTES, rest - least)
        yield start, size
        start += size


def filler(offset: int, size_bytes: int, store_ms: int) -> bytes:
    """Return a record of a given size that no broker shows to clients.

    It is prepared, so it is in no queue, and has no keys, so it is not in the index.
    """
    topic = FILLER_TOPIC if size_bytes > FIXED_BYTES else ""
    body = bytes(size_bytes - FIXED_BYTES - len(topic))
    flag, host = int(TransactionType.PREPARED), bytes(8)
    record = Record(
        0, 0, 0, 0, 0, offset, flag, store_ms, host, store_ms, host, 0, 0, body, topic, b""
    )
    return pack(record)


def hole_for(lost: int, file_bytes: int) -> bytes:
    """Return the hole for the queue entry of a record lost at the physical offset ``lost``.

    The offset in the hole is in the previous log file. A Java broker that finds a hole continues
    after the log file of that offset, so that file must not hold records of later entries.
    """
    return QUEUE_ENTRY.pack(max(lost - lost % file_bytes - file_bytes, 0), HOLE_SIZE, 0)


def ways_out(config: StoreConfig, skipping: str, truncating: str) -> tuple[str, ...]:
    """Return the remedies for damage; the texts say what each policy does to the log."""
    command = f"cometmq store repair {config.store_path_root_dir} --damage"
    return (
        "restore the file from a copy and start again",
        f"'{command} skip --yes', or one start with damagePolicy=skip, {skipping}",
        f"'{command} truncate --yes', or one start with damagePolicy=truncate, {truncating}; "
        "either keeps a copy of what it removes",
    )


def repair_file(
    fault: FileFault,
    segments: Segments,
    files: Files,
    config: StoreConfig,
    quarantine: Quarantine,
    punch: Callable[[int, int], None],
) -> None:
    """Repair a log file that is missing or has a wrong size, as the damage policy says.

    Raises StoreCorrupt if the policy is REFUSE, StoreFull if there is no room for the repair,
    SettingsError if a read-only directory would change.
    """
    policy = config.damage_policy
    if policy is DamagePolicy.REFUSE or fault.settings_differ:
        raise _file_refusal(fault, config)
    segments.check_writable(fault.path)
    logger.error(
        "log_file_broken path=%s policy=%s problem=%r", fault.path, policy.name, fault.problem
    )
    if fault.size_bytes >= 0:
        _set_size(fault, files, segments.file_bytes, quarantine)
    elif policy is DamagePolicy.SKIP:
        _check_room(fault, segments)
        punch(fault.base, fault.next_base)
        for base in range(fault.base, fault.next_base, segments.file_bytes):
            file = segments.create_file(base)
            fill(file, base, file.end, 0)
            file.close()
    else:
        later = [
            os.path.join(directory, name)
            for directory in segments.places.all
            for name in files.names(directory)
            if name.isdigit() and int(name) > fault.base
        ]
        for path in later:
            segments.check_writable(path)
        for path in later:
            segments.places.leave(path)
            name = os.path.basename(path)
            quarantine.move(path, f"{name}-whole", f"after the missing {fault.path}")


def _check_room(fault: FileFault, segments: Segments) -> None:
    """Raise StoreFull if blank files in place of missing ones would fill the disk.

    If the directory has a file of another log with a far higher offset, very many files seem to be
    missing.
    """
    missing_bytes, free_bytes = fault.next_base - fault.base, segments.free_bytes()
    if missing_bytes > free_bytes:
        raise StoreFull(
            f"{missing_bytes} bytes of log files are missing in {segments.directory} between "
            f"{fault.base} and {fault.next_base}, and {free_bytes} bytes are free for blank ones: "
            "does the file after the gap belong to this log?"
        )


def _set_size(fault: FileFault, files: Files, size_bytes: int, quarantine: Quarantine) -> None:
    handle = files.open(fault.path)
    try:
        if fault.size_bytes > size_bytes:
            file = LogFile(files, fault.path, fault.base, fault.size_bytes, handle)
            quarantine.copy(file, fault.base + size_bytes, file.end, fault.problem)
        files.resize(handle, size_bytes)
        files.allocate(handle, size_bytes)
        files.datasync(handle)
    finally:
        files.close(handle)


def _file_refusal(fault: FileFault, config: StoreConfig) -> StoreCorrupt:
    if fault.settings_differ:
        return StoreCorrupt(fault.path, fault.base, fault.problem)
    if fault.size_bytes < 0:
        skipping = "omits the messages of the missing file"
    else:
        skipping = "omits what is damaged in this file"
    ways = ways_out(config, skipping, "ends the log before the damage")
    return StoreCorrupt(fault.path, fault.base, fault.problem, ways_out=ways)
