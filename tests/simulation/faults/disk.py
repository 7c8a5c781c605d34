"""A disk in memory that keeps apart the data that processes see and the data on the device.

Without a sync nothing is ordered. Of all changes since the last sync, a power cut may leave:

    data         each sector of 512 bytes independently, in its old or its new state
    size         any length that the file had since its last sync; bytes that it regains are zeros
    names        each creation, rename and removal of a file or folder independently, but whole; a
                 rename includes the earlier ones of the same node, which has one place only
    a sync       makes a file's data and size durable, not its name; the sync of a folder makes the
                 names in it durable, not the folder's own name in its parent
    failed sync  some sectors reach the device; the others count as clean from then on: they read
                 as written until the kernel drops them, and the next sync skips them

The device may also write sectors back at any time (:meth:`Disk.write_back`).
``docs/decisions/0017-power-cut-model.md`` explains this model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from random import Random

SECTOR_BYTES = 512
#: Probabilities of survival; one is drawn for a whole power cut, so that cuts that leave nothing,
#: everything or a mixture are all common.
SURVIVAL = (0.0, 0.1, 0.5, 0.5, 0.9, 1.0)


def split(path: str) -> tuple[str, str]:
    """Return the parent folder of a path, and the name in it.

    Like ``os.path.split``, and three times as fast, which matters in a simulation.
    """
    above, _, name = path.rpartition("/")
    return above or "/", name


class File:
    """One file. ``data`` is the content that processes see; bytes after ``size`` are zeros.

    ``links`` counts its names. ``backed`` are the sectors that have room on the disk. ``forgotten``
    are those that a failed sync did not write to the device, and that count as clean.
    """

    __slots__ = (
        "backed",
        "data",
        "device",
        "dirty",
        "forgotten",
        "links",
        "modified_ms",
        "size",
        "sizes",
    )

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0
        self.device = bytearray()
        self.sizes = [0]
        self.dirty: set[int] = set()
        self.forgotten: set[int] = set()
        self.backed: set[int] = set()
        self.links = 0
        self.modified_ms = 0

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes at ``offset``; the file grows as needed."""
        end = offset + len(data)
        if end > self.size:
            self.resize(end)
        self.data[offset:end] = data
        self._touch(offset, end)

    def _touch(self, start: int, end: int) -> None:
        if start < end:
            sectors = range(start // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1)
            self.dirty.update(sectors)
            self.backed.update(sectors)
            if self.forgotten:
                self.forgotten.difference_update(sectors)

    def resize(self, size: int) -> None:
        """Truncate, or extend with zeros."""
        if size < self.size:
            self.data[size : self.size] = bytes(self.size - size)
            self._touch(size, self.size)
            self.backed = {sector for sector in self.backed if sector * SECTOR_BYTES < size}
        elif size > len(self.data):
            # Fails while the file is mapped: no map may stay on the old buffer.
            self.data += bytes(size - len(self.data))
        if size != self.size:
            self.size = size
            self.sizes.append(size)

    def allocate(self, size: int) -> None:
        """Grow to ``size``, with room for every byte."""
        if size > self.size:
            self.resize(size)
        self.backed.update(range(-(-size // SECTOR_BYTES)))

    def has_room_for(self, start: int, end: int) -> bool:
        """Decide whether bytes can be written there although the disk is full."""
        return all(
            sector in self.backed
            for sector in range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))
        )

    def _to_device(self, sector: int) -> None:
        start = sector * SECTOR_BYTES
        if len(self.device) < len(self.data):
            self.device += bytes(len(self.data) - len(self.device))
        stop = min(start + SECTOR_BYTES, len(self.data))
        self.device[start:stop] = self.data[start:stop]

    def sync(self) -> None:
        """Write data and size to the device."""
        for sector in self.dirty:
            self._to_device(sector)
        self.dirty.clear()
        self.sizes = [self.size]

    def fail_sync(self, chance: Random) -> None:
        """Fail a sync: sectors that did not reach the device count as clean all the same."""
        for sector in sorted(self.dirty):
            if chance.random() < 0.5:
                self._to_device(sector)
            else:
                self.forgotten.add(sector)
        self.dirty.clear()

    def write_back(self, chance: Random) -> None:
        """Write some sectors to the device without a sync; a power cut may still lose the
        others."""
        for sector in sorted(self.dirty):
            if chance.random() < 0.5:
                self._to_device(sector)

    def forget(self, chance: Random) -> None:
        """Drop clean pages: sectors that a failed sync did not write read as the device has
        them."""
        for sector in sorted(self.forgotten):
            if chance.random() < 0.5:
                start = sector * SECTOR_BYTES
                stop = min(start + SECTOR_BYTES, self.size)
                if start < stop:
                    old = bytes(self.device[start:stop])
                    self.data[start:stop] = old + bytes(stop - start - len(old))
                self.forgotten.discard(sector)

    def lose_power(self, chance: Random, survival: float) -> None:
        """Replace the content with the bytes on the device, after a power cut."""
        for sector in sorted(self.dirty):
            if chance.random() < survival:
                self._to_device(sector)
        size = self._surviving_size(chance, survival)
        content = bytes(self.device[:size])
        self.data = bytearray(content + bytes(size - len(content)))
        self.device = bytearray(self.data)
        self.size = size
        self.sizes = [size]
        self.dirty.clear()
        self.forgotten.clear()
        self.backed = {sector for sector in self.backed if sector * SECTOR_BYTES < size}

    def _surviving_size(self, chance: Random, survival: float) -> int:
        if survival in (0.0, 1.0):
            return self.sizes[-1 if survival else 0]
        return chance.choice(self.sizes)

    def flip(self, bit: int) -> None:
        """Flip one bit silently, in the file and on the device."""
        mask = 1 << bit % 8
        self.data[bit // 8] ^= mask
        if bit // 8 < len(self.device):
            self.device[bit // 8] ^= mask


class Folder:
    """One folder: the names that processes see, and those on the device."""

    __slots__ = ("device", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.device: dict[str, Node] = {}


Node: TypeAlias = File | Folder
#: One atomic change of names: the node of each name afterwards.
Change: TypeAlias = list[tuple[Folder, str, Node | None]]


class Disk:
    """A tree of folders and files, with paths that begin with a slash.

    ``boots`` counts the starts of the machine. While ``full`` is true, nothing can be added.
    ``used_ratio`` is the ratio that the disk reports.
    """

    def __init__(self) -> None:
        self.root = Folder()
        self.boots = 0
        self.full = False
        self.used_ratio = 0.5
        self.locks: dict[File, int] = {}
        self._unsynced: list[Change] = []
        self._folders: dict[str, Folder] = {}

    def find(self, path: str) -> Node | None:
        """Return the file or folder at ``path``, or None."""
        above, name = split(path)
        if not name:
            return self.root
        folder = self.folder(above)
        return folder.names.get(name) if folder is not None else None

    def folder(self, path: str) -> Folder | None:
        """Return the folder at ``path``, or None."""
        found = self._folders.get(path)
        if found is None:
            node = self.find(path)
            if isinstance(node, Folder):
                found = self._folders[path] = node
        return found

    def change(self, change: Change) -> None:
        """Change names; the change is durable once one of its folders is synced."""
        self._unsynced.append(change)
        for folder, name, node in change:
            old = folder.names.get(name)
            if isinstance(old, Folder):
                self._folders.clear()
            elif old is not None:
                old.links -= 1
            if isinstance(node, File):
                node.links += 1
            _put(folder.names, name, node)

    def sync_names(self, folder: Folder) -> None:
        """Make the changes in a folder durable."""
        touched = [any(each is folder for each, _, _ in change) for change in self._unsynced]
        self._unsynced = self._apply_names(touched)

    def _apply_names(self, wanted: list[bool]) -> list[Change]:
        """Make the wanted changes durable, with earlier changes of the same nodes; return the
        others."""
        moved: set[int] = set()
        for number in reversed(range(len(wanted))):
            nodes = {id(node) for _, _, node in self._unsynced[number] if node is not None}
            wanted[number] = wanted[number] or not moved.isdisjoint(nodes)
            if wanted[number]:
                moved |= nodes
        kept: list[Change] = []
        for change, is_wanted in zip(self._unsynced, wanted, strict=True):
            if is_wanted:
                _apply(change)
            else:
                kept.append(change)
        return kept

    def sync_all(self) -> None:
        """Make everything durable."""
        for change in self._unsynced:
            _apply(change)
        self._unsynced = []
        for file in self.files():
            file.sync()

    def files(self) -> Iterator[File]:
        """Yield every file that has a name, once."""
        seen: set[int] = set()
        folders = [self.root]
        while folders:
            for node in folders.pop().names.values():
                if isinstance(node, Folder):
                    folders.append(node)
                elif id(node) not in seen:
                    seen.add(id(node))
                    yield node

    def write_back(self, chance: Random) -> None:
        """Write some unsynced data to the device."""
        for file in self.files():
            if file.dirty:
                file.write_back(chance)

    def kill(self, chance: Random) -> None:
        """End every process: their writes stay, except for those that a failed sync gave up."""
        self.locks.clear()
        for file in self.files():
            if file.forgotten:
                file.forget(chance)

    def lose_power(self, chance: Random) -> None:
        """Cut the power, and restart the machine with what the device holds."""
        self.locks.clear()
        self.boots += 1
        survival = chance.choice(SURVIVAL)
        self._apply_names([chance.random() < survival for _ in self._unsynced])
        self._unsynced.clear()
        self._folders.clear()
        folders = [self.root]
        while folders:
            folder = folders.pop()
            folder.names = dict(folder.device)
            folders += [node for node in folder.names.values() if isinstance(node, Folder)]
        self._count_links()
        survival = chance.choice(SURVIVAL)
        for file in self.files():
            file.lose_power(chance, survival)

    def _count_links(self) -> None:
        folders = [self.root]
        counts: dict[int, int] = {}
        while folders:
            for node in folders.pop().names.values():
                if isinstance(node, Folder):
                    folders.append(node)
                else:
                    node.links = counts[id(node)] = counts.get(id(node), 0) + 1


def _apply(change: Change) -> None:
    for folder, name, node in change:
        _put(folder.device, name, node)


def _put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
