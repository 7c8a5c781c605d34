"""A disk in memory, with what processes see and what the device holds kept apart.

Nothing is ordered without a sync. What a power cut may leave of everything since:

    data         each sector of 512 bytes for itself: as the device has it, or as it was written
    size         any length that the file had since its last sync; bytes that it regains are zeros
    names        each making, renaming and removal of a file or folder for itself, but whole; with
                 a renaming come the earlier ones of the same thing, or it would have two places
    a sync       makes a file's data and size durable, not its name; the sync of a folder makes the
                 names in it durable, not the folder's own name in the folder above it
    failed sync  some sectors reach the device, the others count as clean from then on: they read
                 as written until the kernel forgets them, and the next sync passes them over

The device may also write a sector back at any moment by itself (:meth:`Disk.write_back`).
``docs/decisions/0017-power-cut-model.md`` says why it is so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from random import Random

SECTOR_BYTES = 512
#: How likely a thing survives; one of these holds for a whole power cut, so that cuts which leave
#: nothing, everything or a mixture are all common.
SURVIVAL = (0.0, 0.1, 0.5, 0.5, 0.9, 1.0)


def split(path: str) -> tuple[str, str]:
    """The folder that a path is in, and its name there; as ``os.path.split``, and thrice as fast,
    for a simulation does little else."""
    above, _, name = path.rpartition("/")
    return above or "/", name


class File:
    """One file. ``data`` is what processes see; bytes behind ``size`` are zeros.

    ``links`` counts its names. ``backed`` are the sectors that have room on the disk, ``forgotten``
    those that a failed sync kept from the device and that count as clean.
    """

    __slots__ = (
        "backed",
        "changed_ms",
        "data",
        "device",
        "dirty",
        "forgotten",
        "links",
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
        self.changed_ms = 0

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Put bytes at ``offset``; the file grows as far as needed."""
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
        """Cut, or grow with zeros."""
        if size < self.size:
            self.data[size : self.size] = bytes(self.size - size)
            self._touch(size, self.size)
            self.backed = {sector for sector in self.backed if sector * SECTOR_BYTES < size}
        elif size > len(self.data):
            # Fails while the file is mapped: a map must not be left behind.
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
        """Whether bytes can be written there although the disk is full."""
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
        """Data and size are on the device."""
        for sector in self.dirty:
            self._to_device(sector)
        self.dirty.clear()
        self.sizes = [self.size]

    def fail_sync(self, chance: Random) -> None:
        """A sync that failed: sectors that missed the device count as clean all the same."""
        for sector in sorted(self.dirty):
            if chance.random() < 0.5:
                self._to_device(sector)
            else:
                self.forgotten.add(sector)
        self.dirty.clear()

    def write_back(self, chance: Random) -> None:
        """The device takes some sectors without being asked, and may still lose what follows."""
        for sector in sorted(self.dirty):
            if chance.random() < 0.5:
                self._to_device(sector)

    def forget(self, chance: Random) -> None:
        """The kernel drops clean pages; what a failed sync kept from the device reads old again."""
        for sector in sorted(self.forgotten):
            if chance.random() < 0.5:
                start = sector * SECTOR_BYTES
                stop = min(start + SECTOR_BYTES, self.size)
                if start < stop:
                    old = bytes(self.device[start:stop])
                    self.data[start:stop] = old + bytes(stop - start - len(old))
                self.forgotten.discard(sector)

    def lose_power(self, chance: Random, survival: float) -> None:
        """From now on the file is what the device made of it."""
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
        """Turn one bit over, in the file as on the device, and tell nobody."""
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
#: One change of names, which happens as a whole: what each name stands for afterwards.
Change: TypeAlias = list[tuple[Folder, str, Node | None]]


class Disk:
    """A tree of folders and files, paths beginning with a slash.

    ``boots`` counts the starts of the machine. ``full`` says that nothing more finds room;
    ``used_ratio`` is what is reported of it.
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
        """What stands at ``path``."""
        above, name = split(path)
        if not name:
            return self.root
        folder = self.folder(above)
        return folder.names.get(name) if folder is not None else None

    def folder(self, path: str) -> Folder | None:
        """The folder at ``path``."""
        found = self._folders.get(path)
        if found is None:
            node = self.find(path)
            if isinstance(node, Folder):
                found = self._folders[path] = node
        return found

    def change(self, change: Change) -> None:
        """Change names; durable once one of their folders is synced."""
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
        """What changed in a folder is on the device."""
        touched = [any(each is folder for each, _, _ in change) for change in self._unsynced]
        self._unsynced = self._apply_names(touched)

    def _apply_names(self, wanted: list[bool]) -> list[Change]:
        """Make some of the changes durable, with those that they build on; gives the others."""
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
        """Everything is on the device."""
        for change in self._unsynced:
            _apply(change)
        self._unsynced = []
        for file in self.files():
            file.sync()

    def files(self) -> Iterator[File]:
        """Every file that has a name, once."""
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
        """The device takes some of what was not synced."""
        for file in self.files():
            if file.dirty:
                file.write_back(chance)

    def kill(self, chance: Random) -> None:
        """Every process ends; what they wrote stays, except for what a failed sync gave up."""
        self.locks.clear()
        for file in self.files():
            if file.forgotten:
                file.forget(chance)

    def lose_power(self, chance: Random) -> None:
        """The machine goes down and comes up again with what the device holds."""
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
