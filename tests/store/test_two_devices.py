"""A store with its log on two devices: whatever ends, acknowledged messages are there, once."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import SettingsError, StoreCorrupt, StoreFull, StoreOffline
from cometmq.store.config import DamagePolicy, FlushDiskType
from cometmq.store.files import Buffer, DiskSpace, PosixFiles, ReadOnlyFiles
from cometmq.store.layout import LOG_DIRECTORIES, file_name
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.divergence import truncate_diverged_log
from cometmq.store.recovery.opening import Rebuild, open_store
from cometmq.store.tools.directory import read_directory
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles, Moment, ProcessEnded
from tests.store.stores import (
    SMALL,
    OtherBoot,
    assert_consistent,
    config,
    fill,
    log_of,
    opened,
    put,
)

ROOT = Path("/queues/store")
BOTH = "/a/log,/b/log"
FILE_BYTES = SMALL.mapped_file_size_commit_log
TWO: dict[str, Any] = {"store_path_commit_log": BOTH, "flush_disk_type": FlushDiskType.SYNC_FLUSH}


class Devices(MemoryFiles):
    """Three devices: that of the queues, and two of the log, as full as they are told to be."""

    def __init__(self, disk: Disk, chance: Random, full: tuple[str, ...] = ()) -> None:
        super().__init__(disk, VirtualClock(), chance)
        self.full = full

    def disk_space(self, path: str) -> DiskSpace:
        used = 86 if path.startswith(self.full or "-") else 10
        return DiskSpace(100, used, 100 - used)

    def rename(self, source: str, target: str) -> None:
        if source.split("/")[1] != target.split("/")[1]:
            raise OSError(errno.EXDEV, "Invalid cross-device link", source)
        super().rename(source, target)


class Life:
    """One run of a store, from a start to its end."""

    def __init__(self, files: MemoryFiles, **changes: Any) -> None:
        self.store: MessageStore = opened(ROOT, VirtualClock(), files, **TWO | changes)
        self.store.on_durable.append(self._released)
        self.acknowledged: list[bytes] = []

    def _released(self, tokens: list[object]) -> None:
        for token in tokens:
            assert isinstance(token, list)
            self.acknowledged += token

    def send(self, bodies: list[bytes], padding: int = 1_500) -> None:
        """Send messages in one turn, and sync them."""
        for number, body in enumerate(bodies):
            put(self.store, "t", number % 3, body + b":" + bytes(padding), keys=(body.decode(),))
        self.store.commit()
        self.store.sync_waiters.park(self.store.written_offset, 1 << 60, bodies)
        self.store.flusher.sync_now()


def found(store: MessageStore) -> list[bytes]:
    """The beginnings of all bodies, in a store that is consistent."""
    return [record.body.partition(b":")[0] for record in assert_consistent(store)]


def names(disk: Disk, path: str) -> list[int]:
    folder = disk.folder(path)
    return sorted(int(name) // FILE_BYTES for name in folder.names) if folder else []


def check(disk: Disk, acknowledged: list[bytes]) -> None:
    """Start once more: all of it is there once, and no offset twice."""
    life = Life(Devices(disk, Random(0)))
    held = found(life.store)
    assert len(set(held)) == len(held)
    assert set(acknowledged) <= set(held)
    first, second = names(disk, "/a/log"), names(disk, "/b/log")
    numbers = sorted(first + second)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    life.store.close()


# --- every step of a creation --------------------------------------------------------------------


def begun() -> tuple[Disk, list[bytes]]:
    """A log of one file, stopped cleanly."""
    disk = Disk()
    life = Life(Devices(disk, Random(0)))
    life.send([b"a%d" % number for number in range(8)])
    life.store.close()
    assert (names(disk, "/a/log"), names(disk, "/b/log")) == ([0], [])
    return disk, life.acknowledged


def cross(life: Life, prefix: bytes) -> None:
    """Two turns, of which the first needs another file."""
    life.send([prefix + b"%d" % number for number in range(4)])
    life.send([prefix + b"%d" % number for number in range(4, 6)])


def steps_of_a_creation() -> range:
    disk, _ = begun()
    files = Devices(disk, Random(0))
    life = Life(files)
    start = files.steps
    cross(life, b"b")
    life.store.close()
    return range(start, files.steps)


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("loses_power", [False, True])
def test_an_end_at_each_step_of_a_creation(moment: Moment, loses_power: bool) -> None:
    steps = steps_of_a_creation()
    assert len(steps) > 10
    places: set[tuple[int, ...]] = set()
    for step, seed in product(steps, range(4 if loses_power else 1)):
        chance = Random(seed * 1_000 + step)
        disk, acknowledged = begun()
        files = Devices(disk, chance)
        life = Life(files)
        with ends_at(files, step, moment):
            cross(life, b"b")
            life.store.close()
        acknowledged += life.acknowledged
        (disk.lose_power if loses_power else disk.kill)(chance)
        # Its usual device is full now: the file may come elsewhere, and a removed one come back.
        full = chance.choice([(), ("/b",)])
        again = Devices(disk, chance, full)
        life = Life(again)
        with ends_at(again, again.steps + chance.randrange(20), chance.choice(list(Moment))):
            cross(life, b"c")
        acknowledged += life.acknowledged
        disk.lose_power(chance)
        check(disk, acknowledged)
        places.add(tuple(names(disk, "/b/log")))
    assert {(), (1,)} <= places


@contextmanager
def ends_at(files: MemoryFiles, step: int, moment: Moment) -> Iterator[None]:
    """End the process at a step, if the block comes so far."""
    files.end_at(step, moment)
    try:
        yield
    except ProcessEnded:
        assert files.ended


# --- random lives --------------------------------------------------------------------------------

FULL: list[tuple[str, ...]] = [(), (), ("/a",), ("/b",), ("/a", "/b")]


@pytest.mark.parametrize("seed", range(40))
def test_random_lives(seed: int) -> None:
    live(seed)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(40, 2_000))
def test_many_random_lives(seed: int) -> None:
    live(seed)


def live(seed: int) -> None:
    """Some runs of one store, each ended by a kill, a power cut or a stop."""
    chance = Random(seed)
    disk = Disk()
    acknowledged: list[bytes] = []
    for number in range(chance.randrange(3, 8)):
        files = Devices(disk, chance, chance.choice(FULL))
        if chance.random() < 0.8:
            files.end_at(chance.randrange(chance.choice([30, 200, 600])), chance.choice([*Moment]))
        if chance.random() < 0.3:
            where = chance.choice(["/a/", "/b/"])
            files.faults.append(Fault("allocate", errno.ENOSPC, chance.randrange(1, 4), where))
        sent: list[list[bytes]] = []
        try:
            life = Life(files)
            sent.append(life.acknowledged)
            run(life, chance, files, b"%d" % number)
            if chance.random() < 0.3:
                life.store.close()
        except (ProcessEnded, StoreFull):
            pass
        acknowledged += [body for bodies in sent for body in bodies]
        files.end()
        if chance.random() < 0.6:
            disk.lose_power(chance)
        else:
            disk.kill(chance)
    check(disk, acknowledged)


def run(life: Life, chance: Random, files: Devices, prefix: bytes) -> None:
    """Random sends and rounds of upkeep; devices fill up and get room."""
    numbers = count()
    for _ in range(chance.randrange(1, 25)):
        bodies = [b"%s.%d" % (prefix, next(numbers)) for _ in range(chance.randrange(1, 12))]
        try:
            life.send(bodies, chance.randrange(2_500))
        except StoreFull:
            continue
        if chance.random() < 0.1:
            files.full = chance.choice(FULL)
        if chance.random() < 0.2:
            asyncio.run(life.store.maintenance.flush_log())
        if chance.random() < 0.1:
            clock = life.store.clock
            assert isinstance(clock, VirtualClock)
            clock.advance(chance.choice([1_000, 70_000]))
            asyncio.run(life.store.maintenance.flush_entries())


# --- directories and settings --------------------------------------------------------------------


def spread(tmp_path: Path, count: int = 500) -> tuple[Path, dict[str, Any]]:
    """A store with some 6 log files in two directories, stopped."""
    changes: dict[str, Any] = {"store_path_commit_log": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    store = opened(tmp_path / "s", **changes)
    fill(store, count)
    assert len(store.log.segments.files) >= 4
    store.close()
    assert len(list((tmp_path / "a").iterdir())) - len(list((tmp_path / "b").iterdir())) in (0, 1)
    return tmp_path / "s", changes


def numbers(store: MessageStore) -> list[int]:
    return [int(record.body[:6]) for record in assert_consistent(store)]


@pytest.mark.parametrize("policy", list(DamagePolicy))
def test_a_device_that_is_not_mounted(tmp_path: Path, policy: DamagePolicy) -> None:
    root, changes = spread(tmp_path)
    for name in "ab":
        (tmp_path / name).rename(tmp_path / "away")
        with pytest.raises(StoreCorrupt, match="is its device mounted"):
            opened(root, damage_policy=policy, **changes)
        assert not (tmp_path / name).exists()
        with pytest.raises(StoreCorrupt, match="is its device mounted"):
            truncate_diverged_log(config(root, **changes), VirtualClock(), PosixFiles(), 1, "test")
        (tmp_path / "away").rename(tmp_path / name)
    store = opened(root, damage_policy=policy, **changes)
    assert numbers(store) == list(range(500))
    store.close()


def test_the_newest_files_of_another_broker_are_away(tmp_path: Path) -> None:
    """It leaves no note of its directories."""
    root, changes = spread(tmp_path)
    for path in root.glob("cometmq-*.json"):
        path.unlink()
    away = tmp_path / "away"
    away.mkdir()
    for name in "ab":
        for path in sorted((tmp_path / name).iterdir()):
            if path.name.strip("0"):
                path.rename(away / path.name)
    for policy in (DamagePolicy.REFUSE, DamagePolicy.SKIP):
        with pytest.raises(StoreCorrupt, match="another broker wrote this store"):
            opened(root, damage_policy=policy, **changes)
    for path in away.iterdir():
        path.rename(tmp_path / "b" / path.name)
    store = opened(root, **changes)
    assert numbers(store) == list(range(500))
    store.close()


async def test_files_that_are_away_take_no_others_with_them(tmp_path: Path) -> None:
    root, changes = spread(tmp_path)
    store = opened(root, **changes)
    (tmp_path / "b").rename(tmp_path / "away")
    (tmp_path / "b").mkdir()
    kept = sorted(path.name for path in (tmp_path / "a").iterdir())
    await store.maintenance.expiry.make_room(at_once=True)
    assert store.log.segments.start == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == kept
    store.log.segments.places.remove(str(tmp_path / "b" / file_name(FILE_BYTES)))
    assert str(tmp_path / "b") in (root / LOG_DIRECTORIES).read_text()
    (tmp_path / "b").rmdir()
    (tmp_path / "away").rename(tmp_path / "b")
    store.close()
    again = opened(root, **changes)
    assert numbers(again) == list(range(500))
    again.close()


def test_the_oldest_files_on_a_device_that_is_not_mounted(tmp_path: Path) -> None:
    root, changes = spread(tmp_path)
    old = tmp_path / "old"
    old.mkdir()
    for number in range(2):
        path = tmp_path / "ab"[number] / file_name(number * FILE_BYTES)
        path.rename(old / path.name)
    changes["read_only_commit_log_store_paths"] = str(old)
    store = opened(root, **changes)
    assert numbers(store) == list(range(500))
    store.close()
    old.rename(tmp_path / "away")
    old.mkdir()
    with pytest.raises(StoreCorrupt, match=r"old: .*is its device mounted"):
        opened(root, **changes)
    old.rmdir()
    (tmp_path / "away").rename(old)
    store = opened(root, **changes)
    # Its files go for good, by retention: then it is no longer needed.
    for _ in range(2):
        store.log.segments.places.remove(store.log.segments.drop_first().path)
    store.close()
    old.rmdir()
    store = opened(root, store_path_commit_log=changes["store_path_commit_log"])
    assert store.log.segments.start == 2 * FILE_BYTES
    store.close()


def test_files_that_were_moved_into_one_directory(tmp_path: Path) -> None:
    root, _ = spread(tmp_path)
    for path in (tmp_path / "b").iterdir():
        path.rename(tmp_path / "a" / path.name)
    alone: dict[str, Any] = {"store_path_commit_log": str(tmp_path / "a")}
    with pytest.raises(StoreCorrupt, match=r"moved or removed on purpose, delete .*json"):
        opened(root, **alone)
    (root / LOG_DIRECTORIES).unlink()
    store = opened(root, **alone)
    assert numbers(store) == list(range(500))
    store.close()


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_nothing_is_written_to_read_only_directories(tmp_path: Path) -> None:
    root, changes = spread(tmp_path)
    last = max(path.name for name in "ab" for path in (tmp_path / name).iterdir())
    name = "a" if (tmp_path / "b" / last).exists() else "b"
    before = contents(tmp_path / name)
    changes["read_only_commit_log_store_paths"] = str(tmp_path / name)
    for number in range(3):
        store = opened(root, files=OtherBoot(), **changes)
        fill(store, 200, first=500 + number * 200)
        if number == 1:
            store.flusher.sync_now()
            store.log.failure = store.log.fail("as a kill")
        store.close()
        assert contents(tmp_path / name) == before
    store = opened(root, **changes)
    assert numbers(store) == list(range(1_100))
    store.close()


def test_a_log_that_ends_in_a_read_only_directory(tmp_path: Path) -> None:
    root, changes = spread(tmp_path)
    last = max(path.name for name in "ab" for path in (tmp_path / name).iterdir())
    name, other = "ab" if (tmp_path / "a" / last).exists() else "ba"
    before = contents(tmp_path / name)
    aside: dict[str, Any] = {"read_only_commit_log_store_paths": str(tmp_path / name)}
    for policy in DamagePolicy:
        with pytest.raises(SettingsError, match=f"{last} has to be written to.*start once without"):
            opened(root, damage_policy=policy, **changes, **aside)
    assert contents(tmp_path / name) == before
    # Either way out.
    store = opened(root, **changes)
    assert numbers(store) == list(range(500))
    store.close()
    (tmp_path / name / last).rename(tmp_path / other / last)
    store = opened(root, **changes, **aside)
    assert numbers(store) == list(range(500))
    store.close()


def test_damage_in_a_read_only_directory(tmp_path: Path) -> None:
    root, changes = spread(tmp_path)
    path = tmp_path / "b" / file_name(FILE_BYTES)
    data = bytearray(path.read_bytes())
    data[5_000:5_100] = bytes(100)
    path.write_bytes(data)
    before = contents(tmp_path / "b")
    changes["read_only_commit_log_store_paths"] = str(tmp_path / "b")
    if len(before) == len(list((tmp_path / "a").iterdir())):
        last = max(before)
        (tmp_path / "b" / last).rename(tmp_path / "a" / last)
        before.pop(last)
    for policy in (DamagePolicy.SKIP, DamagePolicy.TRUNCATE):
        settings = config(root, damage_policy=policy, **changes)
        with pytest.raises(SettingsError, match="has to be written to"):
            open_store(settings, VirtualClock(), rebuild=Rebuild(log_from=0))
    assert contents(tmp_path / "b") == before


def test_an_unused_file_in_a_read_only_directory_is_left(tmp_path: Path) -> None:
    root, changes = spread(tmp_path)
    ends = sorted(path.name for name in "ab" for path in (tmp_path / name).iterdir())
    following = file_name(int(ends[-1]) + FILE_BYTES)
    name = "b" if (tmp_path / "a" / ends[-1]).exists() else "a"
    (tmp_path / name / following).write_bytes(bytes(FILE_BYTES))
    changes["read_only_commit_log_store_paths"] = str(tmp_path / name)
    store = opened(root, **changes)
    assert not (tmp_path / name / following).exists()
    fill(store, 200, first=500)
    assert numbers(store) == list(range(700))
    store.close()


def test_a_cut_goes_through_both_directories(tmp_path: Path) -> None:
    root, changes = spread(tmp_path)
    store = opened(root, **changes)
    record = assert_consistent(store)[100]
    store.close()
    settings = config(root, **changes)
    done = truncate_diverged_log(
        settings, VirtualClock(), PosixFiles(), record.physical_offset, "test"
    )
    assert done.offset == record.physical_offset
    store = opened(root, **changes)
    assert numbers(store) == list(range(100))
    fill(store, 400, first=100)
    assert numbers(store) == list(range(500))
    store.close()


@pytest.mark.parametrize("policy", [DamagePolicy.SKIP, DamagePolicy.TRUNCATE])
def test_a_lost_file(tmp_path: Path, policy: DamagePolicy) -> None:
    root, changes = spread(tmp_path)
    (tmp_path / "b" / file_name(FILE_BYTES)).unlink()
    with pytest.raises(StoreCorrupt, match="this log file is missing") as caught:
        opened(root, **changes)
    assert caught.value.path == str(tmp_path / "b" / file_name(FILE_BYTES))
    store = opened(root, damage_policy=policy, **changes)
    held = numbers_left(store)
    assert held[0] == 0
    assert (held[-1] == 499) is (policy is DamagePolicy.SKIP)
    assert held == sorted(set(held))
    store.close()


def numbers_left(store: MessageStore) -> list[int]:
    return [int(record.body[:6]) for record in log_of(store) if record.topic == "t"]


async def test_retention_takes_files_from_both(tmp_path: Path) -> None:
    _, changes = spread(tmp_path)
    store = opened(tmp_path / "s", **changes, file_reserved_time=0, delete_when="")
    clock = store.clock
    assert isinstance(clock, VirtualClock)
    before = len(store.log.segments.files)
    for file in store.log.segments.files:
        os.utime(file.path, (1, 1))
    await store.maintenance.expiry.make_room(at_once=True)
    left = len(store.log.segments.files)
    assert left < before - 1
    assert sum(len(list((tmp_path / name).iterdir())) for name in "ab") == left
    store.close()
    store = opened(tmp_path / "s", **changes)
    assert len(store.log.segments.files) == left
    store.close()


def test_an_error_names_the_device_that_failed(tmp_path: Path) -> None:
    class Failing(PosixFiles):
        broken = ""

        def datasync(self, handle: int) -> None:
            if "/b/" in os.readlink(f"/proc/self/fd/{handle}") and self.broken == "sync":
                raise OSError(errno.EIO, "Input/output error")
            super().datasync(handle)

        def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
            if "/b/" in os.readlink(f"/proc/self/fd/{handle}") and self.broken == "write":
                raise OSError(errno.EIO, "Input/output error")
            super().pwrite(handle, data, offset)

        def allocate(self, handle: int, size_bytes: int) -> None:
            if "/b/" in os.readlink(f"/proc/self/fd/{handle}") and self.broken == "allocate":
                raise OSError(errno.EIO, "Input/output error")
            super().allocate(handle, size_bytes)

    second = re.escape(str(tmp_path / "b" / file_name(FILE_BYTES)))
    for broken, told in (("sync", "cannot sync"), ("write", "writing to"), ("allocate", "to")):
        for path in tmp_path.iterdir():
            shutil.rmtree(path)
        files = Failing()
        paths = f"{tmp_path / 'a'},{tmp_path / 'b'}"
        store = opened(tmp_path / "s", files=files, store_path_commit_log=paths)
        fill(store, 50 if broken == "allocate" else 100)
        files.broken = broken
        if broken == "sync":
            store.flusher.sync_now()
        else:
            with pytest.raises(StoreOffline, match=f"{told} {second}"):
                fill(store, 60)
        assert re.search(f"{told} {second}.*: Input/output error; the log", str(store.log.failure))
        files.broken = ""
        store.close()


def test_one_directory_by_two_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for paths, aside in ((f"{tmp_path / 'a'},{tmp_path / 'b'}", ""), (f"{tmp_path / 'a'},", "b")):
        changes: dict[str, Any] = {
            "store_path_commit_log": paths,
            "read_only_commit_log_store_paths": str(tmp_path / aside) if aside else "",
        }
        with pytest.raises(SettingsError, match="are the same directory: name each"):
            opened(tmp_path / "s", **changes)
        with pytest.raises(SettingsError, match="are the same directory: name each"):
            read_directory(config(tmp_path / "s", **changes), ReadOnlyFiles())
    assert not list((tmp_path / "a").iterdir())


def written_by_another_broker(root: Path) -> None:
    """As if another broker had written last: the checkpoint is not ours."""
    path = root / "checkpoint"
    raw = path.read_bytes()
    path.write_bytes((int.from_bytes(raw[:8], "big") + 5).to_bytes(8, "big") + raw[8:])


@pytest.mark.parametrize("policy", list(DamagePolicy))
@pytest.mark.parametrize("newest", [False, True])
def test_a_directory_that_another_broker_added_is_away(
    tmp_path: Path, policy: DamagePolicy, newest: bool
) -> None:
    """The store has our note, which does not have that directory."""
    root, changes = spread(tmp_path)
    written_by_another_broker(root)
    (tmp_path / "away").mkdir()
    files = sorted((path for name in "ab" for path in (tmp_path / name).iterdir()), key=by_name)
    for path in files[-2:] if newest else files[2:4]:
        path.rename(tmp_path / "away" / path.name)
    named = f"{changes['store_path_commit_log']},{tmp_path / 'c'}"
    before = contents(tmp_path / "a"), contents(tmp_path / "b"), queue_bytes(root)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"/c: another broker wrote.*is its device mounted"):
            opened(root, damage_policy=policy, store_path_commit_log=named)
    assert before == (contents(tmp_path / "a"), contents(tmp_path / "b"), queue_bytes(root))
    (tmp_path / "c").rmdir()
    (tmp_path / "away").rename(tmp_path / "c")
    store = opened(root, damage_policy=policy, store_path_commit_log=named)
    assert numbers(store) == list(range(500))
    store.close()


def by_name(path: Path) -> str:
    return path.name


def queue_bytes(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (root / "consumequeue").rglob("000*")}


@pytest.mark.parametrize("killed", [False, True])
def test_a_directory_that_another_broker_added_is_not_named(tmp_path: Path, killed: bool) -> None:
    root, changes = spread(tmp_path)
    written_by_another_broker(root)
    (tmp_path / "c").mkdir()
    files = sorted((path for name in "ab" for path in (tmp_path / name).iterdir()), key=by_name)
    for path in files[-2:]:
        path.rename(tmp_path / "c" / path.name)
    if killed:
        (root / "abort").touch()
    end = int(files[-2].name)
    before = queue_bytes(root)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="are all directories of the log named") as caught:
            opened(root, **changes)
        assert caught.value.offset == end
    assert queue_bytes(root) == before
    named = f"{changes['store_path_commit_log']},{tmp_path / 'c'}"
    store = opened(root, store_path_commit_log=named)
    assert numbers(store) == list(range(500))
    store.close()


def test_the_files_are_given_up_if_the_policy_says_so(tmp_path: Path) -> None:
    root, changes = spread(tmp_path)
    written_by_another_broker(root)
    files = sorted((path for name in "ab" for path in (tmp_path / name).iterdir()), key=by_name)
    for path in files[-2:]:
        path.unlink()
    store = opened(root, damage_policy=DamagePolicy.TRUNCATE, **changes)
    held = numbers(store)
    assert held == list(range(len(held)))
    assert 200 < len(held) < 500
    store.close()


def test_no_room_for_the_note(caplog: pytest.LogCaptureFixture) -> None:
    """It is on the device of the queues, which is full; those of the log have room."""
    files = Devices(Disk(), Random(0))
    files.faults.append(Fault("pwrite", errno.ENOSPC, 2, LOG_DIRECTORIES))
    with pytest.raises(StoreFull, match=f"no room in {ROOT}.*{LOG_DIRECTORIES}"):
        Life(files)
    life = Life(files)
    # The first directory is noted, the second one is not: what cannot be noted goes there.
    files.faults.append(Fault("pwrite", errno.ENOSPC, 1, LOG_DIRECTORIES))
    life.send([b"%d" % number for number in range(12)])
    assert (names(files.disk, "/a/log"), names(files.disk, "/b/log")) == ([0, 1], [])
    assert f"no_room_for_log_file base={FILE_BYTES} path={ROOT / LOG_DIRECTORIES}" in caplog.text
    life.store.close()
    # Neither is noted, as after the last file of a retired one.
    disk = Disk()
    files = Devices(disk, Random(0))
    life = Life(files)
    life.store.log.segments.places.leave(f"/a/log/{file_name(0)}")
    files.faults.append(Fault("pwrite", errno.ENOSPC, 2, LOG_DIRECTORIES))
    with pytest.raises(StoreFull, match=rf"no room for {ROOT / LOG_DIRECTORIES} .*first log file"):
        life.send([b"%d" % number for number in range(12)])
    asyncio.run(life.store.maintenance.expiry.check())
    life.send([b"%d" % number for number in range(12)])


def test_the_note_is_written_once_there_is_room(tmp_path: Path) -> None:
    """It still names the directory of a file that went before it could be written."""
    root, changes = spread(tmp_path)
    old = tmp_path / "old"
    old.mkdir()
    first = tmp_path / "a" / file_name(0)
    first.rename(old / first.name)
    changes["read_only_commit_log_store_paths"] = str(old)

    class Full(PosixFiles):
        is_full = False

        def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
            if self.is_full and LOG_DIRECTORIES in os.readlink(f"/proc/self/fd/{handle}"):
                raise OSError(errno.ENOSPC, "No space left on device")
            super().pwrite(handle, data, offset)

    files = Full()
    store = opened(root, files=files, **changes)
    path = store.log.segments.drop_first().path
    files.is_full = True
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            store.log.segments.places.remove(path)
        assert not list(old.iterdir())
    files.is_full = False
    store.log.segments.places.remove(path)
    store.close()
    store = opened(root, **changes)
    assert store.log.segments.start == FILE_BYTES
    store.close()


def test_a_device_mounted_over_the_files_of_a_directory(tmp_path: Path) -> None:
    root, changes = spread(tmp_path)
    (tmp_path / "b").rename(tmp_path / "below")
    (tmp_path / "b").mkdir()
    with pytest.raises(StoreCorrupt, match="is its device mounted, or another one over its files"):
        opened(root, **changes)
