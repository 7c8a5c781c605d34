"""Erasure of messages from a stopped store: of given keys, or superseded by a later message.

A tombstone replaces each erased record. It has the place and the size of the record
(message/tombstone.py), so all offsets stay valid. If the same erasure runs on several copies of a
log, they stay equal byte for byte. The result is a sound store: log, queues, index and seals match
each other (rewriting.py).

By default the messages are only counted. An erasure in a copy gives the copy its name when it is
complete. An interrupted erasure in place must be run again.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.core.errors import CometError, SettingsError, StoreCorrupt, StoreError, StoreLocked
from cometmq.message.record import BLANK_BYTES
from cometmq.message.tombstone import is_key
from cometmq.protocol.fastjson import parse_json
from cometmq.store.checkpoint import lock_path
from cometmq.store.config import DamagePolicy, delay_levels_ms
from cometmq.store.files import ReadOnlyFiles, SnapshotFiles, read_file
from cometmq.store.layout import EXTENSIONS
from cometmq.store.log.checksums import DIRECTORY as SEALS
from cometmq.store.tools.directory import StoreInUse, read_directory
from cometmq.store.tools.logfile import LogWalk
from cometmq.store.tools.repair import RepairPlan, repair, sizes_of
from cometmq.store.tools.rewriting import Residue, Rewriting, Tombstones
from cometmq.store.tools.selection import (
    ByKeys,
    GroupOffsets,
    Mentions,
    Superseded,
    Tallies,
    TopicTotals,
    Unread,
)
from cometmq.store.tools.snapshot import DRAFTS, TargetNotEmpty, snapshot, walk_files

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.store.config import StoreConfig
    from cometmq.store.tools.directory import FileInfo, StoreDirectory
    from cometmq.store.tools.selection import RecordSelection

_UNFINISHED: Final = ".erasing"
_PIECE_BYTES: Final = 1 << 20
#: Names in the root that the erasure itself handles; all other files are searched for the keys.
_COVERED: Final = ("commitlog", "consumequeue", EXTENSIONS, "index", SEALS, "lock", DRAFTS)
_NO_PLAN: Final = RepairPlan(frozenset(), False, (), ())

#: Called with a number of bytes.
Progress = Callable[[int], None]


class NotAKey(StoreError):
    """A text cannot be the key of a message that is to be erased."""

    def __init__(self, number: int, problem: str) -> None:
        self.number = number
        super().__init__(f"key {number} {problem}")


class Left(NamedTuple):
    """A file that an erasure did not change although it may contain erased data."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True)
class Erasure:
    """The result of an erasure.

    ``root`` is the store that was changed; empty if messages were only counted. ``counts`` has the
    number of messages of each key, in the order of the keys. ``earlier`` counts the tombstones of
    earlier runs. ``residue_bytes`` counts bytes that belong to no record (rewriting.py). The other
    numbers count changed files; after counting only, just ``log_files`` is known. ``left`` are
    files that may still contain erased data.
    """

    root: str
    topics: tuple[TopicTotals, ...]
    counts: tuple[int, ...]
    unread: tuple[Unread, ...]
    earlier: int
    residue_bytes: int
    log_files: int
    queue_files: int = 0
    index_files: int = 0
    seals: int = 0
    left: tuple[Left, ...] = ()

    @property
    def records(self) -> int:
        """Number of selected records."""
        return sum(totals.records for totals in self.topics)

    @property
    def mentions(self) -> int:
        """Number of records that still contain the text of a key."""
        return sum(totals.mentions for totals in self.topics)


@dataclass(frozen=True, slots=True)
class Way:
    """The mode of an erasure: in a copy at ``target``, or ``in_place``; else messages are counted.

    ``began`` is called with the number of bytes to read, ``progress`` with the bytes of each read.
    """

    target: str = ""
    in_place: bool = False
    began: Progress = lambda _: None
    progress: Progress = lambda _: None


def redact(
    config: StoreConfig,
    keys: Sequence[str],
    clock: Clock,
    way: Way,
    *,
    topics: Collection[str] = (),
    mentions: Mentions = Mentions.report,
    files: SnapshotFiles | None = None,
) -> Erasure:
    """Erase the messages of some keys from the store that ``config`` names.

    ``topics`` limits this to messages sent to them. Raises NotAKey, and the errors of
    :func:`erase`.
    """
    for number, key in enumerate(keys, 1):
        if not is_key(key):
            raise NotAKey(number, "is not one key: it is empty, has blanks, or is a filler")
    tallies = Tallies(read_offsets(ReadOnlyFiles(), config.store_path_root_dir))
    # Without repetitions: each key has one number.
    selection = ByKeys([*dict.fromkeys(keys)], tallies, topics=topics, mentions=mentions)
    done = erase(config, selection, clock, way, files)
    return replace(done, counts=tuple(selection.counts))


def compact(
    config: StoreConfig,
    topic: str,
    clock: Clock,
    way: Way,
    files: SnapshotFiles | None = None,
) -> Erasure:
    """Erase the messages of a topic for whose key a later message exists.

    Raises the errors of :func:`erase`.
    """
    tallies = Tallies(read_offsets(ReadOnlyFiles(), config.store_path_root_dir))
    return erase(config, Superseded(topic, tallies), clock, way, files)


def erase(
    config: StoreConfig,
    selection: RecordSelection,
    clock: Clock,
    way: Way,
    files: SnapshotFiles | None = None,
) -> Erasure:
    """Erase the selected records of a stopped store.

    Raises NoStore, StoreInUse, TargetNotEmpty, StoreCorrupt if the log or an index file is damaged,
    SettingsError in place if the log has several directories, BadRecord, OSError. After an error a
    copy is removed; in place, each file is unchanged or finished.
    """
    files = files or SnapshotFiles()
    directory = read_directory(config, ReadOnlyFiles())
    if directory.holder:
        raise StoreInUse(directory.root, directory.holder)
    if way.in_place:
        if len(directory.log_directories) > 1:
            raise SettingsError(
                "storePathCommitLog",
                "a log in several directories is not rewritten in place: erase in a copy, which "
                "has one directory",
            )
        return _changed(config, selection, clock, way, files)
    if way.target:
        return _copied(config, selection, clock, way, files)
    way.began(directory.log_bytes)
    residues = survey(directory, config, selection, way.progress)
    with Tombstones(
        ReadOnlyFiles(), directory, selection, delay_levels_ms(config.message_delay_level)
    ) as tombstones:
        affected = Rewriting(files, directory, config, tombstones).changed_log_files(residues)
    return _report("", selection, residues, len(affected))


def _report(
    root: str, selection: RecordSelection, residues: Sequence[Residue], log_files: int
) -> Erasure:
    tallies = selection.tallies
    size = sum(stop - start for start, stop in residues)
    return Erasure(root, tallies.topics, (), tallies.unread, tallies.earlier, size, log_files)


def _copied(
    config: StoreConfig, selection: RecordSelection, clock: Clock, way: Way, files: SnapshotFiles
) -> Erasure:
    """Erase in a copy, which shares no file with the store; it appears when it is complete."""
    target = way.target.rstrip(os.sep)
    if files.exists(target) and (not files.is_directory(target) or files.names(target)):
        raise TargetNotEmpty(target)
    draft = target + _UNFINISHED
    files.remove_tree(draft)
    try:
        snapshot(config, draft, files, copy=True)
        _copy_attributes(config, draft, files)
        own = replace(config, store_path_root_dir=draft, store_path_commit_log="")
        done = _changed(own, selection, clock, way, files)
    except BaseException:
        files.remove_tree(draft)
        raise
    files.rename(draft, target)
    files.sync_directory(os.path.dirname(os.path.abspath(target)))
    left = [each._replace(path=target + each.path[len(draft) :]) for each in done.left]
    return replace(done, root=target, left=tuple(left))


def _copy_attributes(config: StoreConfig, copy: str, files: SnapshotFiles) -> None:
    """Give the files of a copy the owners and times of those of the store."""
    for name in walk_files(files, copy):
        top, _, rest = name.partition(os.sep)
        source = os.path.join(config.store_path_root_dir, name)
        if top == "commitlog":
            # At most one of the directories has the file.
            places = [os.path.join(path, rest) for path in config.commit_log_directories]
            source = next(filter(files.exists, places), places[0])
        if files.exists(source):
            handle = files.open_existing(os.path.join(copy, name))
            try:
                files.copy_attributes(source, handle)
            finally:
                files.close(handle)


def _changed(
    config: StoreConfig, selection: RecordSelection, clock: Clock, way: Way, files: SnapshotFiles
) -> Erasure:
    """Erase in the directory itself."""
    reading = ReadOnlyFiles()
    directory = read_directory(config, reading)
    if not directory.is_clean:
        # A start completes queues and index, and clears the bytes that a crash left after the log.
        sizes = sizes_of(config, directory, reading)
        repair(replace(sizes, damage_policy=DamagePolicy.REFUSE), _NO_PLAN, clock, files=files)
    try:
        lock = files.lock(lock_path(directory.root))
    except BlockingIOError as error:
        raise StoreLocked(directory.root) from error
    try:
        return _rewritten(config, selection, clock, way, files)
    finally:
        files.close(lock)


def _rewritten(
    config: StoreConfig, selection: RecordSelection, clock: Clock, way: Way, files: SnapshotFiles
) -> Erasure:
    reading = ReadOnlyFiles()
    directory = read_directory(config, reading)
    way.began(directory.log_bytes)
    residues = survey(directory, config, selection, way.progress)
    delays_ms = delay_levels_ms(config.message_delay_level)
    with Tombstones(reading, directory, selection, delays_ms) as tombstones:
        rewriting = Rewriting(files, directory, config, tombstones)
        rewriting.remove_drafts()
        affected = rewriting.changed_log_files(residues)
        way.began(directory.log_bytes + sum(file.size_bytes for file in affected))
        try:
            headers = rewriting.index_headers()
            index_files = rewriting.rewrite_index(headers)
            queue_files = rewriting.rewrite_queues()
            log_files, seals = rewriting.rewrite_log(residues, clock.wall_ms(), way.progress)
        finally:
            rewriting.remove_drafts()
    left = [
        Left(path, "another file name, such as that of a snapshot, still has the content of before")
        for path in rewriting.shared
    ]
    left += _containing(files, directory.root, [key.encode() for key in selection.keys])
    report = _report(directory.root, selection, residues, log_files)
    return replace(
        report, queue_files=queue_files, index_files=index_files, seals=seals, left=tuple(left)
    )


def survey(
    directory: StoreDirectory, config: StoreConfig, selection: RecordSelection, progress: Progress
) -> list[Residue]:
    """Pass all records to ``selection``; return the ranges of bytes that belong to no record.

    ``progress`` is called with the size of each log file. Raises StoreCorrupt if bytes between
    records are not a record, because they may be anything.
    """
    files = ReadOnlyFiles()
    delays_ms = delay_levels_ms(config.message_delay_level)
    residues: list[Residue] = []
    problem: StoreCorrupt | None = None
    for file in directory.log_files:
        walk = LogWalk(files, file.path, file.base, file.size_bytes, delays_ms)
        for chunk in walk:
            if problem is not None:
                raise problem
            selection.take(chunk)
        for gap in walk.gaps:
            problem = StoreCorrupt(
                file.path, gap.start, f"{gap.stop - gap.start} bytes are not a record",
                next_offset=gap.stop, ways_out=("repair the store: cometmq store repair",),
            )  # fmt: skip
            # A gap after the last record of the log is no damage: a crash may leave one.
            if not gap.open:
                raise problem
        found = _residue(files, file, walk.end + (BLANK_BYTES if walk.closed else 0))
        residues += [found] if found else []
        progress(file.size_bytes)
    return residues


def _residue(files: ReadOnlyFiles, file: FileInfo, start: int) -> Residue | None:
    """Return the range of bytes from ``start`` on that are not zeros; None if all are."""
    first = last = -1
    handle = files.open(file.path)
    try:
        at = start - file.base
        while (at := files.next_data(handle, at)) < file.size_bytes:
            piece = files.pread(handle, min(_PIECE_BYTES, file.size_bytes - at), at)
            if not piece:
                break
            if piece.count(0) < len(piece):
                last = at + len(piece.rstrip(b"\0"))
                if first < 0:
                    first = at + len(piece) - len(piece.lstrip(b"\0"))
            at += len(piece)
    finally:
        files.close(handle)
    return None if first < 0 else Residue(file.base + first, file.base + last)


def read_offsets(files: ReadOnlyFiles, root: str) -> GroupOffsets:
    """Return for each queue the groups that read it, with the offset that each reads next.

    The result is empty if consumerOffset.json is missing or cannot be decoded.
    """
    found: GroupOffsets = {}
    raw = read_file(files, os.path.join(root, "config", "consumerOffset.json"))
    try:
        table = parse_json(raw or b"{}").get("offsetTable") or {}
        for name, queues in table.items():
            topic, _, group = name.partition("@")
            for queue_id, offset in queues.items():
                found.setdefault((topic, int(queue_id)), []).append((group, int(offset)))
    except (ValueError, TypeError, AttributeError, CometError):
        return {}
    return found


def _containing(files: SnapshotFiles, root: str, texts: Sequence[bytes]) -> list[Left]:
    """Return the files beside log, queues and index that contain the text of a key."""
    if not texts:
        return []
    return [
        Left(os.path.join(root, name), "the file contains the text of a key")
        for name in walk_files(files, root)
        if name.partition(os.sep)[0] not in _COVERED
        and _contains(files, os.path.join(root, name), texts)
    ]


def _contains(files: SnapshotFiles, path: str, texts: Sequence[bytes]) -> bool:
    overlap = max(map(len, texts), default=1) - 1
    handle = files.open_existing(path)
    try:
        at, kept = 0, b""
        while piece := files.pread(handle, _PIECE_BYTES, at):
            data = kept + piece
            if any(text in data for text in texts):
                return True
            at, kept = at + len(piece), data[len(data) - overlap :]
    finally:
        files.close(handle)
    return False
