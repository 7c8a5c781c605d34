"""Named values in one file of the ``config`` directory, with a version that every change increments
(upstream: ConfigManager.java, DataVersion.java).

    {"dataVersion":{"counter","timestamp"},"<table>":{name:{fields of the value, by name}},
     "<notes>":{name:number}}

Notes are CometMQ's own: numbers by name, written together with the values. The key is present only
if there are notes, and a Java broker ignores it.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from cometmq.broker.tables.prettyjson import EntryTexts, pretty
from cometmq.broker.tables.tablefile import TableFile
from cometmq.protocol.bodies import DataVersion

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

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

    def __init__(
        self,
        config_directory: str,
        table_format: TableFormat[V],
        *,
        clock: Clock,
        tasks: Tasks,
        files: Files | None = None,
    ) -> None:
        self._format = table_format
        self._clock = clock
        self._values: dict[str, V] = {}
        self._texts = EntryTexts()
        self._notes: dict[str, int] = {}
        self._note_texts = EntryTexts()
        self._changes: deque[str] = deque(maxlen=REMEMBERED_CHANGES)
        self.version = DataVersion(0, clock.wall_ms())
        self.get: Callable[[str], V | None] = self._values.get
        self.file = TableFile(
            os.path.join(config_directory, table_format.file_name),
            self._encode,
            clock=clock,
            tasks=tasks,
            files=files,
        )

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
        """Add ``name`` if it is missing. This is no change of the table: every start does it
        again."""
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
        """Become a copy of another broker's table at ``version``; return the names that were
        removed."""
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
        """Return all notes by name; the note that was put last comes last."""
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
        """Raise the version as if every value had changed, so that readers fetch the whole
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
    """Return the version in a table file; a third part, which 5.x files carry, is dropped."""
    if not isinstance(value, Mapping):
        return DataVersion()
    return DataVersion(int(value.get("counter", 0)), int(value.get("timestamp", 0)))
