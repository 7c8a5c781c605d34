"""Named values in one file of the ``config`` directory, with a version that every change counts up
(upstream: ConfigManager.java, DataVersion.java).

    {"dataVersion":{"counter","timestamp"},"<table>":{name:{fields of the value, by name}},
     "<notes>":{name:number}}

Notes are ours: numbers by name that are written together with the values. The key is there only
when there are some, and a Java broker passes it by.
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

#: So many changes are remembered; who is further behind gets the whole table.
REMEMBERED_CHANGES: Final = 1_024


@dataclass(frozen=True, slots=True)
class TableFormat(Generic[V]):
    """A table's file, its key in there, what one value is, how people call it, and the key of the
    notes."""

    file_name: str
    table: str
    value_type: type[V]
    noun: str
    notes: str = ""


class VersionedTable(Generic[V]):
    """Values by name, written through to their file.

    ``get`` is the hot look-up: the value of a name, or None. ``version`` changes with every change.
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
        """Read the file; False when there is none.

        ``adapt`` gets the fields of each value, to bring other spellings into ours. Raises
        StoreCorrupt.
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
        """Have ``name`` in the table; that is no change, for every start does it again."""
        if name not in self._values:
            self._set(name, value)

    def put(self, name: str, value: V) -> bool:
        """Create or replace a value; False when it is so already."""
        known = self._values.get(name)
        if known == value:
            return False
        noun = self._format.noun
        log.info("%s %s %s=%s", noun, "created" if known is None else "updated", noun, value)
        self._set(name, value)
        self._changed(name)
        return True

    def delete(self, name: str) -> bool:
        """Forget a name; False when there was none."""
        if self._values.pop(name, None) is None:
            return False
        self._texts.drop(name)
        log.info("%s deleted %s=%s", self._format.noun, self._format.noun, name)
        self._changed(name)
        return True

    def replace(self, values: Mapping[str, V], version: DataVersion) -> set[str]:
        """Become a copy of another broker's table of that version; gives the names that went."""
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
        """All notes by name, as they are now; the one that was put last is the last."""
        return dict(self._notes)

    def put_note(self, name: str, number: int) -> None:
        """Write down a number with the values; that is no change of theirs."""
        if name in self._notes:
            self.drop_note(name)
        self._set_note(name, number)
        self.file.touch()

    def drop_note(self, name: str) -> None:
        """Forget a note."""
        del self._notes[name]
        self._note_texts.drop(name)
        self.file.touch()

    def _set_note(self, name: str, number: int) -> None:
        self._notes[name] = number
        self._note_texts.put(name, number)

    def all_changed(self) -> None:
        """What others are told of every value changed."""
        self._changed("")
        self._changes.clear()

    def values(self) -> dict[str, V]:
        """All values by name, as they are now."""
        return dict(self._values)

    def changed_since(self, version: DataVersion) -> dict[str, V] | None:
        """The values that changed after ``version`` and are still there; None when that is too
        long ago to know."""
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
    """The version in a table file; 5.x files carry a third part that is not kept."""
    if not isinstance(value, Mapping):
        return DataVersion()
    return DataVersion(int(value.get("counter", 0)), int(value.get("timestamp", 0)))
