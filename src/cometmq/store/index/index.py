"""The key index: its files in order of time, and batched writes of gathered entries.

Keys are gathered as records are dispatched and become entries together: a single key costs 6 us,
one of 256 about 0.4 us.
"""

from __future__ import annotations

import logging
import os.path
from array import array
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from cometmq.speedups import index_hashes
from cometmq.store.index.indexfile import IndexFile
from cometmq.store.layout import index_hash, topic_prefix
from cometmq.store.log.commitlog import NO_ROOM

if TYPE_CHECKING:
    from cometmq.speedups import WriteBatch
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files
    from cometmq.store.queue.consumequeue import Dispatched

logger = logging.getLogger(__name__)

BATCH_KEYS = 256

#: Fields of a row; rows of records without keys are not gathered.
_QUEUE, _PLACE, _TIME_MS, _KEYS = map(itemgetter, (0, 2, 5, 6))
_TOPIC_HASH = attrgetter("topic_hash")


class Index:
    """All index files, and the entries that are not written yet.

    The latest unwritten entries are rows, earlier ones are columns of type "q".
    """

    __slots__ = (
        "_config",
        "_directory",
        "_enabled",
        "_files",
        "_hashes",
        "_places",
        "_rows",
        "_times_ms",
        "files",
        "pending",
    )

    def __init__(self, files: Files, config: StoreConfig) -> None:
        self._files = files
        self._config = config
        self._enabled = config.message_index_enable
        self._directory = os.path.join(config.store_path_root_dir, "index")
        self.files: list[IndexFile] = []
        #: Approximate number of gathered keys that are not written yet.
        self.pending = 0
        self._rows: list[Dispatched] = []
        self._hashes = array("q")
        self._places = array("q")
        self._times_ms = array("q")

    def gather(self, rows: Sequence[Dispatched]) -> None:
        """Gather the keys of dispatched rows."""
        if self._enabled:
            known = len(self._rows)
            self._rows += filter(_KEYS, rows)
            self.pending += len(self._rows) - known

    def gather_batch(self, batch: WriteBatch) -> None:
        """Gather the keys of a write batch."""
        if not self._enabled:
            return
        if self._rows:
            self._to_columns()
        hashes, places, times_ms = batch.index_columns()
        self._hashes.frombytes(hashes)
        self._places.frombytes(places)
        self._times_ms.frombytes(times_ms)
        self.pending = len(self._hashes)

    def _to_columns(self) -> None:
        rows, self._rows = self._rows, []
        columns = [
            list(map(_TOPIC_HASH, map(_QUEUE, rows))),
            list(map(_PLACE, rows)),
            list(map(_TIME_MS, rows)),
        ]
        names = list(map(_KEYS, rows))
        counts = list(map(len, names))
        if counts.count(1) < len(counts):
            columns = [list(chain.from_iterable(map(repeat, each, counts))) for each in columns]
        self._hashes.extend(index_hashes(columns[0], [*chain.from_iterable(names)]))
        self._places.extend(columns[1])
        self._times_ms.extend(columns[2])

    def load(self, below: int, *, clean: bool) -> None:
        """Open the files and keep the entries of records before the physical offset ``below``.

        ``clean`` says that the slots in the newest file are valid. Invalid files must have been
        removed before (indexcheck.py). Slots that a full disk has no room for stay in memory.
        """
        for name in self._files.names(self._directory):
            path = os.path.join(self._directory, name)
            if len(name) != 17 or not name.isdigit():
                continue
            file = self._opened(path)
            if file.count > 1 and file.begin_phys >= below:
                file.close()
                self._files.unlink(path)
                logger.info("index_file_dropped path=%s reason=beyond_recovery_start", path)
                continue
            self.files.append(file)
        for file in self.files[:-1]:
            # If the header says that a file is not full, its last header was lost, and so were the
            # slots, which are written after that header.
            if file.end_phys >= below or file.room:
                file.recover(below)
                _finish(file)
        if self.files:
            newest = self.files[-1]
            if clean and newest.end_phys < below:
                newest.load_slots()
            else:
                newest.recover(below)

    def _opened(self, path: str) -> IndexFile:
        config = self._config
        return IndexFile(self._files, path, config.max_hash_slot_num, config.max_index_num)

    def flush_pending(self, now_ms: int) -> None:
        """Write gathered keys as entries; ``now_ms`` names a new file. Raises OSError.

        After an error the unwritten keys stay gathered.
        """
        if self._rows:
            self._to_columns()
        columns = self._hashes, self._places, self._times_ms
        self.pending = count = len(self._hashes)
        done = 0
        try:
            while done < count:
                file = self._writable(now_ms)
                stop = min(done + file.room, count)
                file.put(*(column[done:stop] for column in columns))
                done = stop
        finally:
            for column in columns:
                del column[:done]
            self.pending = count - done

    def _writable(self, now_ms: int) -> IndexFile:
        if self.files and self.files[-1].room > 0:
            return self.files[-1]
        last = os.path.basename(self.files[-1].path) if self.files else ""
        name = _file_name(now_ms)
        if name <= last:
            # The wall clock was set back, but names must increase.
            name = _file_name(_name_ms(last) + 1)
        self._files.make_directory(self._directory)
        path = os.path.join(self._directory, name)
        file = self._opened(path)
        file.start_empty()
        self.files.append(file)
        logger.info("index_file_added path=%s", path)
        return file

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets of records with this key (or one of the same hash), newest first.

        Unwritten entries are included: a full disk may keep them in memory for long.
        """
        key_hash = index_hash(topic_prefix(topic), key)
        found = self._query_gathered(key_hash, max_count, begin_ms, end_ms)
        for file in reversed(self.files):
            if file.overlaps(begin_ms, end_ms):
                found += file.query(key_hash, max_count - len(found), begin_ms, end_ms)
            # Older files have only earlier entries.
            if file.begin_ms < begin_ms or len(found) >= max_count:
                break
        return found

    def _query_gathered(
        self, key_hash: int, max_count: int, begin_ms: int, end_ms: int
    ) -> list[int]:
        if self._rows:
            self._to_columns()
        found: deque[int] = deque(maxlen=max(max_count, 0))
        place = -1
        for _ in range(self._hashes.count(key_hash)):
            place = self._hashes.index(key_hash, place + 1)
            if begin_ms <= self._times_ms[place] <= end_ms:
                found.appendleft(self._places[place])
        return [*found]

    def full_files(self) -> list[IndexFile]:
        """Return the full files whose slots are only in memory."""
        older = self.files[:-1]
        newest = [file for file in self.files[-1:] if not file.room]
        return [file for file in older + newest if file.has_slots]

    def take_unsynced(self) -> list[IndexFile]:
        """Return the files to sync; they count as synced unless given back."""
        found = [file for file in self.files if file.unsynced]
        for file in found:
            file.unsynced = False
        return found

    def give_back(self, files: list[IndexFile]) -> None:
        """Mark files as unsynced after a failed sync."""
        for file in files:
            file.unsynced = True

    def sync_files(self, files: list[IndexFile]) -> None:
        """Sync files and their names; a thread may call this. Raises OSError."""
        for file in files:
            file.sync()
        if files:
            self._files.sync_directory(self._directory)
            self._files.sync_directory(os.path.dirname(self._directory))

    @property
    def end_phys(self) -> int:
        """Physical offset of the last indexed record."""
        return self.files[-1].end_phys if self.files else 0

    @property
    def end_ms(self) -> int:
        """Store time of the last indexed record, ms."""
        return self.files[-1].end_ms if self.files else 0

    def drop_before(self, log_start: int) -> list[str]:
        """Close the files whose records the log no longer has, except the newest.

        Returns their paths; the caller removes them, which may take long.
        """
        paths: list[str] = []
        while len(self.files) > 1 and self.files[0].end_phys < log_start:
            file = self.files.pop(0)
            file.close()
            paths.append(file.path)
            logger.info("index_file_dropped path=%s reason=expired", file.path)
        return paths

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()
        self.files.clear()


def _finish(file: IndexFile) -> None:
    """Write the slots of a full file, if there is room for them."""
    try:
        file.write_slots()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.warning("index_slots_not_written path=%s error=%r", file.path, str(error))
    else:
        file.release_slots()


def _file_name(now_ms: int) -> str:
    # Java brokers name index files in local time.
    moment = datetime.fromtimestamp(now_ms // 1000)
    return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


def _name_ms(name: str) -> int:
    return int(datetime.strptime(name[:14], "%Y%m%d%H%M%S").timestamp()) * 1000 + int(name[14:])
