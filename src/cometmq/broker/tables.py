"""The broker's tables as files of its ``config`` directory (upstream: ConfigManager.java).

    X.json        the table, as fastjson prints it in its pretty form: tabs, no blank after a
                  colon, integer keys in one line and without quotes ({0:12,1:3}), no nulls
    X.json.bak    the state before the last write
    X.json.tmp    a draft; a crash may leave one, and nothing reads it

A write has five steps: write the draft, sync it, rename the old file to .bak, rename the draft,
sync the directory. So X.json or X.json.bak always holds a whole table. If neither can be read, the
broker refuses to start, because an empty table would silently lose all topics or offsets. If there
is no file although the store has messages, the log reports it.

Changes within 100 ms share one write. A caller that waits gets its write at once, or directly after
the write that is under way, together with all changes made meanwhile.

Tables of named values have a version that every change increments (upstream: DataVersion.java):

    {"dataVersion":{"counter","timestamp"},"<table>":{name:{fields of the value, by name}},
     "<notes>":{name:number}}

Notes are CometMQ's own: numbers by name, written together with the values. The key is present only
if there are notes, and a Java broker ignores it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from cometmq.core.clock import join_in_slices
from cometmq.core.errors import BadRequest, StoreCorrupt, StoreError, StoreFull, fresh_copy
from cometmq.protocol.bodies import DataVersion
from cometmq.protocol.fastjson import parse_json
from cometmq.store.files import Files, PosixFiles, make_durable_directory, read_file
from cometmq.store.recovery.quarantine import Quarantine

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)


#: Entries whose text is encoded and cached together.
_BLOCK_ENTRIES: Final = 16
_PLAIN: Final = (str, int, float)


def pretty(value: object, depth: int = 0) -> bytes:
    """Encode a value as fastjson prints it in its pretty form, indented by ``depth`` tabs."""
    if isinstance(value, _PLAIN):  # the most frequent case
        return msgspec.json.encode(value)
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, (dict, Mapping)):
        return _pretty_map(value, depth)
    if isinstance(value, list | tuple):
        if not value:
            return b"[]"
        inner = b"\n" + b"\t" * (depth + 1)
        parts = (b"," + inner).join([pretty(item, depth + 1) for item in value])
        return b"[" + inner + parts + b"\n" + b"\t" * depth + b"]"
    return msgspec.json.encode(value)


def _pretty_map(value: Mapping[Any, object], depth: int) -> bytes:
    if not value:
        return b"{}"
    end = b"\n" + b"\t" * depth + b"}"
    inner = b"\n" + b"\t" * (depth + 1)
    parts = []
    for key, item in value.items():
        if item is None:
            continue
        if isinstance(key, int):  # fastjson prints integer keys in one line, without quotes
            parts.append(b"%d:%b" % (key, pretty(item, depth + 1)))
        else:
            name = msgspec.json.encode(key)
            parts.append(inner + name + b":" + pretty(item, depth + 1))
    return b"{" + b",".join(parts) + end


@dataclass(slots=True, eq=False)
class _Block:
    """A run of consecutive entries, and their cached text: None if it has to be encoded again."""

    entries: dict[str, object] = field(default_factory=dict)
    text: bytes | None = None
    changes: int = 0


class EntryTexts:
    """Text of a table's entries: a map that is indented by one tab and keeps insertion order.

    The text is cached in blocks of a few entries. A change discards the text of one block only, and
    a large table is joined from few pieces.
    """

    __slots__ = ("_block_of", "_blocks")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._block_of: dict[str, _Block] = {}

    def put(self, key: str, value: object) -> None:
        """Set the value of ``key``; call it again after the value was changed in place."""
        block = self._block_of.get(key)
        if block is None:
            if not self._blocks or len(self._blocks[-1].entries) >= _BLOCK_ENTRIES:
                self._blocks.append(_Block())
            block = self._block_of[key] = self._blocks[-1]
        block.entries[key] = value
        block.text = None
        block.changes += 1

    def drop(self, key: str) -> None:
        """Remove ``key``; do nothing if it is not there."""
        block = self._block_of.pop(key, None)
        if block is None:
            return
        del block.entries[key]
        block.text = None
        block.changes += 1
        if not block.entries:
            self._blocks.remove(block)

    def pieces(self) -> Iterator[bytes]:
        """Yield the current map with its brackets, in pieces that take under a millisecond each."""
        blocks = [
            (block, block.changes, block.text or list(block.entries.items()))
            for block in self._blocks
        ]
        return _text_of(blocks)


def _text_of(blocks: list[tuple[_Block, int, bytes | list[tuple[str, object]]]]) -> Iterator[bytes]:
    opening = b"{"
    for block, changes, found in blocks:
        if isinstance(found, bytes):
            text = found
        else:
            text = b",".join([_entry(key, value) for key, value in found])
            # Between two pieces the loop runs other code, which may have changed the block.
            if block.changes == changes:
                block.text = text
        yield opening + text
        opening = b","
    yield b"\n\t}" if blocks else b"{}"


def _entry(key: str, value: object) -> bytes:
    if isinstance(value, msgspec.Struct):
        value = dict(sorted(msgspec.to_builtins(value).items()))
    return b"\n\t\t" + msgspec.json.encode(key) + b":" + pretty(value, 2)


T = TypeVar("T")

#: Changes within this time share one write, unless a caller waits for them.
WINDOW_MS: Final = 100

#: Effect of each missing table on a store with messages.
WITHOUT: Final = {
    "topics.json": "topics are restored from their queues, with permission to read and write",
    "subscriptionGroup.json": "groups get the default settings",
    "consumerOffset.json": (
        "each group starts at the position that its consumers choose for new groups"
    ),
    "delayOffset.json": "delayed messages that are still in the log are delivered again",
}


def warn_of_missing(files: Files, directory: str) -> None:
    """Log which tables are missing on a store with messages, and the effect of that."""
    for name, effect in WITHOUT.items():
        path = os.path.join(directory, name)
        if not (files.exists(path) or files.exists(path + ".bak")):
            log.warning("table_missing path=%s effect=%r", path, effect)


@dataclass(frozen=True, slots=True)
class TableDirectory:
    """The ``config`` directory of a broker, with the clock, tasks and files that its tables use.
    ``tasks`` are the broker's; ``files`` is None for those of the operating system."""

    path: str
    clock: Clock
    tasks: Tasks
    files: Files | None = None


class Table(Protocol):
    """Table that a broker reads when it starts, and writes when it stops."""

    def load(self) -> None:
        """Read the file. Raise StoreCorrupt if it cannot be read."""
        ...

    async def close(self) -> None:
        """Write pending changes. Raise StoreError if that fails."""
        ...


class TableFile:
    """Owns the file of one table. Each write first calls ``encode``, which returns the table's text
    in pieces."""

    def __init__(
        self, directory: TableDirectory, name: str, encode: Callable[[], Iterator[bytes]]
    ) -> None:
        self.path = os.path.join(directory.path, name)
        self._encode = encode
        self._clock = clock = directory.clock
        self._tasks = directory.tasks
        self._files: Files = directory.files if directory.files is not None else PosixFiles()
        self._dirty = False
        #: True once the directory exists.
        self._placed = False
        self._writing = asyncio.Lock()
        #: True while a write within the window is scheduled, or an immediate one.
        self._scheduled = False
        self._hurried = False
        #: Error of the last write, if it failed.
        self._failure: StoreError | None = None
        self._thread: asyncio.Future[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._last_write_ms = clock.monotonic_ms() - WINDOW_MS

    def read(self, take: Callable[[dict[str, Any]], T], *, required_key: str) -> T | None:
        """Return the table that ``take`` builds from the parsed file, or None if there is no file.

        The file must have the key ``required_key``. ``take`` raises ValueError or TypeError for
        impossible values. If the file cannot be read, the .bak file is read instead and the bad
        file is set aside, so that no later write renames it to .bak. Raise StoreCorrupt if files
        exist and none can be read.
        """
        problems: list[str] = []
        for path in (self.path, self.path + ".bak"):
            try:
                data = read_file(self._files, path)
                if data is None:
                    continue
                found = _parsed(data, required_key)
                value = take(found)
            except (BadRequest, ValueError, TypeError, OSError) as error:
                problems.append(f"{os.path.basename(path)}: {error}")
                continue
            if path != self.path:
                log.warning("table_read_from_backup path=%s problems=%s", path, problems)
                self._set_aside(problems)
            return value
        if problems:
            raise StoreCorrupt(
                self.path,
                -1,
                "; ".join(problems),
                ways_out=(
                    "restore the file from a copy",
                    f"move {self.path} and its .bak file away to start with an empty table",
                ),
            )
        return None

    def _set_aside(self, problems: list[str]) -> None:
        if problems:
            directory, name = os.path.split(self.path)
            quarantine = Quarantine(self._files, os.path.dirname(directory), self._clock)
            quarantine.move(self.path, f"config-{name}", "; ".join(problems))

    @property
    def is_missing(self) -> bool:
        """True if neither the file nor its backup exists."""
        return not any(self._files.exists(path) for path in (self.path, self.path + ".bak"))

    @property
    def unsaved(self) -> bool:
        """True if a change is still to be written, or the last write failed."""
        return self._dirty

    @property
    def is_saved(self) -> bool:
        """True if every change made so far is on the device."""
        return not self._dirty and not self._writing.locked()

    def touch(self) -> None:
        """Note that the table changed, and schedule a write within the window."""
        self._dirty = True
        if not self._scheduled:
            self._scheduled = True
            self._tasks.spawn(self._write_in_window(), name=f"write {os.path.basename(self.path)}")

    async def saved(self) -> None:
        """Wait until all changes made so far are on the device.

        Raise StoreError if they could not be written.
        """
        if not self._dirty and not self._writing.locked():
            return
        if self._dirty:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(done)
            if not self._hurried:
                self._hurried = True
                self._tasks.spawn(self._write_soon(), name=f"write {os.path.basename(self.path)}")
            await done
        else:
            async with self._writing:  # the write under way includes the change
                if self._failure is not None:
                    raise fresh_copy(self._failure)

    async def write(self) -> None:
        """Write the table at once. Raise StoreError if that fails."""
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        # Taken before the text is encoded: a change made during the write needs another write.
        waiters, self._waiters = self._waiters, []
        self._dirty = False
        try:
            await self._write_in_thread(await join_in_slices(self._encode(), self._clock))
        except BaseException as error:
            self._dirty = True
            failure = self._failure = _explain(self.path, error)
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(fresh_copy(failure))
            if not isinstance(error, Exception):
                raise  # cancelled: the owner of the writing task ends it
            trace = None if isinstance(error, OSError) else error
            log.error("table not written path=%s error=%s", self.path, failure, exc_info=trace)
            raise failure from error
        self._last_write_ms = self._clock.monotonic_ms()
        self._failure = None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _write_in_thread(self, data: bytes) -> None:
        if self._thread is not None and not self._thread.done():
            # A cancelled task does not stop the thread of its write. Two threads would write to the
            # same draft.
            await asyncio.wait([self._thread])
        loop = asyncio.get_running_loop()
        self._thread = loop.run_in_executor(None, self._replace, data)
        await asyncio.shield(self._thread)

    async def close(self) -> None:
        """Write pending changes, and create the file if there is none, so that a later start can
        detect that it was removed."""
        if self._dirty or self._waiters or self.is_missing:
            await self.write()

    async def _write_in_window(self) -> None:
        while True:
            wait_ms = self._last_write_ms + WINDOW_MS - self._clock.monotonic_ms()
            await self._clock.sleep_ms(max(wait_ms, 0))
            async with self._writing:
                if self._last_write_ms + WINDOW_MS > self._clock.monotonic_ms() and self._dirty:
                    continue  # a waiting caller caused a write meanwhile, and more changed since
                self._scheduled = False
                if self._dirty:
                    await self._try_to_write()
                return

    async def _write_soon(self) -> None:
        async with self._writing:
            self._hurried = False
            if self._waiters:
                await self._try_to_write()

    async def _try_to_write(self) -> None:
        try:
            await self._write()
        except StoreError:
            return  # logged and passed to the waiters; the next change tries again

    def _replace(self, data: bytes) -> None:
        files = self._files
        directory = os.path.dirname(self.path)
        draft = self.path + ".tmp"
        if not self._placed:
            make_durable_directory(files, directory)
            self._placed = True
        handle = files.open(draft, create=True)
        try:
            files.resize(handle, 0)
            files.pwrite(handle, data, 0)
            files.datasync(handle)
        finally:
            files.close(handle)
        if files.exists(self.path):
            files.rename(self.path, self.path + ".bak")
        files.rename(draft, self.path)
        files.sync_directory(directory)


def _parsed(data: bytes, required_key: str) -> dict[str, Any]:
    """Return a table file's content. Raise BadRequest or ValueError if it is malformed."""
    value = parse_json(data)
    if not isinstance(value, dict) or required_key not in value:
        raise ValueError(f"it has no {required_key!r}")
    return value


def _explain(path: str, error: BaseException) -> StoreError:
    if not isinstance(error, OSError):
        return StoreError(f"cannot write {path}: {error!r}")
    text = f"cannot write {path}: {error.strerror or error}"
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return StoreFull(f"{text}; free some disk space, then repeat the change")
    return StoreError(text)


V = TypeVar("V", bound=msgspec.Struct)

#: Number of changes remembered; a reader with an older version gets the whole table.
REMEMBERED_CHANGES: Final = 1_024


@dataclass(frozen=True, slots=True)
class TableFormat(Generic[V]):
    """Format of a table's file: its name, the key of the table in it, the type of the values, the
    noun for log lines, and the key of the notes."""

    file_name: str
    table: str
    value_type: type[V]
    noun: str
    notes: str = ""


class VersionedTable(Generic[V]):
    """Values by name; each change schedules a write of their file.

    ``get`` is the hot lookup: the value of a name, or None. ``version`` changes with every change.
    """

    def __init__(self, directory: TableDirectory, table_format: TableFormat[V]) -> None:
        self._format = table_format
        self._clock = directory.clock
        self._values: dict[str, V] = {}
        self._texts = EntryTexts()
        self._notes: dict[str, int] = {}
        self._note_texts = EntryTexts()
        self._changes: deque[str] = deque(maxlen=REMEMBERED_CHANGES)
        self.version = DataVersion(0, self._clock.wall_ms())
        self.get: Callable[[str], V | None] = self._values.get
        self.file = TableFile(directory, table_format.file_name, self._encode)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def load(self, adapt: Callable[[dict[str, Any]], None] | None = None) -> bool:
        """Read the file; return False if there is none.

        ``adapt`` gets the fields of each value and may rename old spellings in place. Raise
        StoreCorrupt if neither the file nor its backup can be read.
        """
        form = self._format

        def take(found: dict[str, Any]) -> tuple[dict[str, V], DataVersion, dict[str, int]]:
            values: dict[str, V] = {}
            for name, fields in (found[form.table] or {}).items():
                if adapt is not None and isinstance(fields, dict):
                    adapt(fields)
                try:
                    values[name] = msgspec.convert(fields, form.value_type, strict=False)
                except msgspec.ValidationError as error:
                    raise ValueError(f"{form.noun} {name!r}: {error}") from None
            notes = found.get(form.notes)
            numbers = notes.items() if isinstance(notes, dict) else ()
            version = _read_version(found.get("dataVersion"))
            return values, version, {name: int(number) for name, number in numbers}

        taken = self.file.read(take, required_key=form.table)
        if taken is None:
            return False
        values, self.version, notes = taken
        for name, value in values.items():
            self._set(name, value)
        for name, number in notes.items():
            self._set_note(name, number)
        return True

    def add_default(self, name: str, value: V) -> None:
        """Add ``name`` if it is missing. The version stays, because every start adds defaults."""
        if name not in self._values:
            self._set(name, value)

    def put(self, name: str, value: V) -> bool:
        """Create or replace a value; return False if it already is that value."""
        known = self._values.get(name)
        if known == value:
            return False
        noun = self._format.noun
        log.info("%s %s %s=%s", noun, "created" if known is None else "updated", noun, value)
        self._set(name, value)
        self._changed(name)
        return True

    def delete(self, name: str) -> bool:
        """Remove a name; return False if there was none."""
        if self._values.pop(name, None) is None:
            return False
        self._texts.drop(name)
        log.info("%s deleted %s=%s", self._format.noun, self._format.noun, name)
        self._changed(name)
        return True

    def replace(self, values: Mapping[str, V], version: DataVersion) -> set[str]:
        """Replace all values by another broker's at ``version`` of its table; return the names that
        were removed."""
        gone = self._values.keys() - values.keys()
        for name in gone:
            del self._values[name]
            self._texts.drop(name)
        for name, value in values.items():
            if self._values.get(name) != value:
                self._set(name, value)
        self._changes.clear()
        self.version = version
        self.file.touch()
        return gone

    def notes(self) -> dict[str, int]:
        """Return all notes by name, in the order in which they were last put."""
        return dict(self._notes)

    def put_note(self, name: str, number: int) -> None:
        """Store a number beside the values; the version of the values does not change."""
        if name in self._notes:
            self.drop_note(name)
        self._set_note(name, number)
        self.file.touch()

    def drop_note(self, name: str) -> None:
        """Remove a note."""
        del self._notes[name]
        self._note_texts.drop(name)
        self.file.touch()

    def _set_note(self, name: str, number: int) -> None:
        self._notes[name] = number
        self._note_texts.put(name, number)

    def all_changed(self) -> None:
        """Increment the version as if every value had changed, so that readers fetch the whole
        table."""
        self._changed("")
        self._changes.clear()

    def values(self) -> dict[str, V]:
        """Return a copy of all values by name."""
        return dict(self._values)

    def changed_since(self, version: DataVersion) -> dict[str, V] | None:
        """Return the remaining values that changed after ``version``; None if the remembered
        changes do not reach back that far."""
        count = self.version.counter - version.counter
        if not 0 <= count <= len(self._changes):
            return None
        names = list(self._changes)[len(self._changes) - count :]
        return {name: self._values[name] for name in names if name in self._values}

    def _set(self, name: str, value: V) -> None:
        self._values[name] = value
        self._texts.put(name, value)

    def _changed(self, name: str) -> None:
        self.version = DataVersion(self.version.counter + 1, self._clock.wall_ms())
        self._changes.append(name)
        self.file.touch()

    def _encode(self) -> Iterator[bytes]:
        form = self._format
        head = b'{\n\t"dataVersion":' + pretty(self.version, 1) + _member(form.table)
        notes: Iterable[bytes] = ()
        if self._notes:
            notes = chain((_member(form.notes),), self._note_texts.pieces())
        return chain((head,), self._texts.pieces(), notes, (b"\n}",))


def _member(key: str) -> bytes:
    return b",\n\t" + msgspec.json.encode(key) + b":"


def _read_version(value: object) -> DataVersion:
    """Return the version in a table file; the third field of RocketMQ 5's files is dropped."""
    if not isinstance(value, Mapping):
        return DataVersion()
    return DataVersion(int(value.get("counter", 0)), int(value.get("timestamp", 0)))
