"""After an erasure nothing of the messages is in the directory; everything else is as before."""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt, StoreLocked
from cometmq.message import properties as props
from cometmq.message.record import COMPRESSED, Record
from cometmq.message.tombstone import is_tombstone
from cometmq.store.config import StoreConfig
from cometmq.store.files import Buffer, SnapshotFiles
from cometmq.store.layout import EXTENSION_UNIT, EXTENSIONS
from cometmq.store.tools import erasure
from cometmq.store.tools.directory import StoreInUse
from cometmq.store.tools.erasure import Erasure, Left, NotAKey, Way
from cometmq.store.tools.inspection import DumpSelection, dump
from cometmq.store.tools.selection import Mentions, Unread
from cometmq.store.tools.snapshot import DRAFTS, TargetNotEmpty, snapshot
from tests.golden import library
from tests.store.sealed import FILE_BYTES, seal_all
from tests.store.stores import assert_consistent, config, copied, fill, log_of, opened, put
from tests.store.tools.verifying import damage, flip_byte, verified, written

IN_PLACE = Way(in_place=True)


def redacted(root: Path, keys: Sequence[str], way: Way = IN_PLACE, **wanted: Any) -> Erasure:
    return erasure.redact(config(root), keys, VirtualClock(), way, **wanted)


def compacted(root: Path, topic: str, way: Way = IN_PLACE) -> Erasure:
    return erasure.compact(config(root), topic, VirtualClock(), way)


def records_in(root: Path, **changes: Any) -> list[Record]:
    """All records, of a copy: a start writes. Queues and index fit them."""
    store = opened(copied(root, f"{root.name}-read"), **changes)
    found = assert_consistent(store)
    store.close()
    shutil.rmtree(root.parent / f"{root.name}-read")
    return found


def texts_in(root: Path) -> dict[str, bytes]:
    """The content of every file."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def keys_of(record: Record) -> tuple[str, ...]:
    return props.index_keys(props.decode(record.properties))


def random_store(root: Path, chance: random.Random) -> list[str]:
    """A store with random messages of several topics; gives the keys in it."""
    pool = [f"key-{chance.getrandbits(80):020x}" for _ in range(chance.randint(1, 30))]
    store = opened(root)
    for number in range(chance.randint(1, 300)):
        body = chance.randbytes(chance.choice((0, 1, 12, 40, 300, 900)))
        flag = chance.choice((0, 0, COMPRESSED))
        unique = f"id-{number}-{chance.getrandbits(64):016x}"
        named = chance.sample(pool, min(len(pool), chance.choice((0, 1, 1, 2, 5))))
        more = {"of": chance.choice(pool)} if chance.random() < 0.2 and named else {}
        put(
            store, chance.choice(("orders", "%RETRY%group", "users")), chance.randrange(3),
            zlib.compress(body) if flag else body, tag=chance.choice(("", "paid", "open")),
            keys=(unique, *named), sys_flag=flag, more=more,
        )  # fmt: skip
        if chance.random() < 0.3:
            store.commit()
    store.commit()
    store.flusher.sync_now()
    if chance.random() < 0.5:
        seal_all(store)
    store.close()
    return pool


@pytest.mark.parametrize("seed", range(30))
def test_random_stores(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root = tmp_path / "s"
    pool = random_store(root, chance)
    before = records_in(root)
    chosen = chance.sample(pool, chance.randint(1, min(len(pool), 4)))
    if seed % 3 == 0:
        chosen.append(keys_of(chance.choice(before))[0])
    wanted = {record for record in before if set(keys_of(record)).intersection(chosen)}
    sealed = verified(root).sealed_files
    done = redacted(root, chosen, mentions=Mentions.erase)
    found = verified(root, full=True)
    assert found.findings == []
    assert verified(root).findings == []
    assert verified(root).sealed_files == sealed
    after = records_in(root)
    assert done.records >= len(wanted)
    assert done.mentions == 0
    assert len(after) == len(before)
    held = b"".join(texts_in(root).values())
    gone = [key.encode() for key in chosen]
    kept = {new.body for old, new in zip(before, after, strict=True) if new == old}
    for old, new in zip(before, after, strict=True):
        if old in wanted or any(text in old.properties for text in gone):
            assert place_of(new) == place_of(old)
            assert not any(new.body)
            assert not new.sys_flag & COMPRESSED
            # A short body may be that of a message that stays, too.
            if len(old.body) > 8:
                assert old.body not in held or (len(old.body) < 12 and old.body in kept)
        else:
            assert new == old
    assert not any(text in held for text in gone)
    assert not (root / DRAFTS).exists()
    again = redacted(root, chosen)
    assert (again.records, again.mentions, again.log_files) == (0, 0, 0)


def place_of(record: Record) -> tuple[object, ...]:
    return (
        record.topic, record.queue_id, record.queue_offset, record.physical_offset,
        record.size_bytes, record.store_ms, record.born_ms,
    )  # fmt: skip


def test_counting_changes_nothing(sealed: Path) -> None:
    before = texts_in(sealed)
    done = redacted(sealed, ["k3", "k1200", "nothing"], Way())
    assert (done.root, done.records, done.counts, done.log_files) == ("", 2, (1, 1, 0), 2)
    assert [(each.topic, each.records) for each in done.topics] == [("t", 2)]
    assert texts_in(sealed) == before


def test_a_copy_is_what_the_store_would_become(sealed: Path, tmp_path: Path) -> None:
    before = texts_in(sealed)
    target = tmp_path / "copies" / "redacted"
    os.utime(sealed / "commitlog" / f"{0:020d}", (1_000_000, 1_000_000))
    (sealed / "commitlog" / f"{0:020d}").chmod(0o640)
    told: list[int] = []
    done = redacted(sealed, ["all"], Way(str(target), began=told.append))
    assert done.root == str(target)
    assert done.left == ()
    assert texts_in(sealed) == before
    assert not target.with_suffix(".erasing").exists()
    first = (target / "commitlog" / f"{0:020d}").stat()
    assert (first.st_mtime, first.st_mode & 0o777, first.st_nlink) == (1_000_000, 0o640, 1)
    assert verified(target).findings == []
    assert told[-1] > told[0] == verified(sealed).log_bytes
    redacted(sealed, ["all"])
    assert lasting(sealed) == lasting(target)
    assert (sealed / "commitlog" / f"{0:020d}").stat().st_mtime == 1_000_000
    with pytest.raises(TargetNotEmpty):
        redacted(sealed, ["all"], Way(str(target)))


class Killed(BaseException):
    """The process ends."""


class DyingFiles(SnapshotFiles):
    """Ends the process at a change of the disk: nothing is changed from then on."""

    def __init__(self, changes: int) -> None:
        self.left = changes

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if self.left == 0:
            super().pwrite(handle, memoryview(data)[: len(data) // 2], offset)
        self._change()
        super().pwrite(handle, data, offset)

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._change()
        super().unlink(path)

    def resize(self, handle: int, size_bytes: int) -> None:
        self._change()
        super().resize(handle, size_bytes)

    def make_directory(self, path: str) -> None:
        self._change()
        super().make_directory(path)

    def remove_tree(self, path: str) -> None:
        self._change()
        super().remove_tree(path)


@pytest.mark.parametrize("way", ["in place", "copy"])
def test_killed_at_any_point_and_run_again(tmp_path: Path, way: str) -> None:
    random_store(tmp_path / "s", random.Random(45))
    assert verified(tmp_path / "s").sealed_files == 2
    before = {record.physical_offset: record for record in records_in(tmp_path / "s")}
    key = next(keys_of(record)[1] for record in before.values() if keys_of(record)[1:])
    done = shutil.copytree(tmp_path / "s", tmp_path / "done")
    assert redacted(done, [key]).records
    expected = lasting(done)
    changes = 0
    while True:
        root = shutil.copytree(tmp_path / "s", tmp_path / "killed")
        target = tmp_path / "target"
        how = IN_PLACE if way == "in place" else Way(str(target))
        changes += 1
        try:
            redacted(root, [key], how, files=DyingFiles(changes))
        except Killed:
            if way == "in place":
                # A broker that starts now serves everything else as before.
                for record in stored_in(root):
                    old = before[record.physical_offset]
                    assert record == old or key in keys_of(old)
            else:
                assert texts_in(root) == texts_in(tmp_path / "s")
                assert not target.exists()
            redacted(root, [key], how)
            ended = False
        else:
            ended = True
        assert lasting(root if way == "in place" else target) == expected
        shutil.rmtree(root)
        shutil.rmtree(target, ignore_errors=True)
        if ended:
            break
    assert changes > 10


def lasting(root: Path) -> dict[str, bytes]:
    """The content of the files of a sound store, without those that a broker makes again."""
    assert verified(root).findings == []
    left = ("lock", "cometmq-seals")
    return {name: data for name, data in texts_in(root).items() if not name.startswith(left)}


def stored_in(root: Path) -> list[Record]:
    """All records, of a copy that was started."""
    store = opened(copied(root, "started"))
    found = log_of(store)
    store.close()
    return found


def test_other_names_of_a_log_file_are_told(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    snapshot(StoreConfig(str(root)), str(tmp_path / "snap"))
    before = texts_in(tmp_path / "snap")
    (root / "cometmq-set-aside").mkdir()
    (root / "cometmq-set-aside" / "old").write_bytes(b"x" * 2_000_000 + b"k3")
    done = redacted(root, ["k3"])
    path = str(root / "commitlog" / f"{0:020d}")
    assert done.left[0].path == path
    assert "snapshot" in done.left[0].problem
    aside = str(root / "cometmq-set-aside" / "old")
    assert done.left[1:] == (Left(aside, "the file contains the text of a key"),)
    assert texts_in(tmp_path / "snap") == before
    redacted(tmp_path / "snap", ["k3"])
    assert verified(tmp_path / "snap").findings == []


def test_a_crashed_store_and_a_snapshot_of_a_running_one(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 200)
    store.flusher.sync_now()
    fill(store, 100, first=200)
    crashed = copied(tmp_path / "s", "crashed")
    with pytest.raises(StoreInUse):
        redacted(tmp_path / "s", ["k3"])
    # Bytes of a record whose write the crash interrupted.
    end = store.log.written % 16_384
    last = crashed / "commitlog" / f"{store.log.written - end:020d}"
    with last.open("r+b") as file:
        file.seek(end)
        file.write(b"\0\0\0\x50 torn k3")
    store.close()
    done = redacted(crashed, ["k3", "k299"])
    assert done.counts == (1, 1)
    assert verified(crashed).findings == []
    assert b"torn k3" not in b"".join(texts_in(crashed).values())
    assert len(records_in(crashed)) == 300


def test_what_is_behind_the_last_record_of_a_file_is_cleared(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 200)
    ends = [record.physical_offset + record.size_bytes for record in log_of(store)]
    store.close()
    end = max(each for each in ends if each < 16_384)
    assert end + 20 < 16_384
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(end + 10)
        file.write(b"rest")
    done = redacted(tmp_path / "s", ["nothing"])
    assert (done.records, done.residue_bytes, done.log_files) == (0, 4, 1)
    assert b"rest" not in path.read_bytes()
    assert verified(tmp_path / "s").findings == []


def test_damage_is_not_stepped_over(unsealed: Path) -> None:
    before = texts_in(unsealed)
    flip_byte(unsealed / "commitlog" / f"{0:020d}", 4)
    for way in (Way(), IN_PLACE, Way(str(unsealed.parent / "copy"))):
        with pytest.raises(StoreCorrupt, match="not a record"):
            redacted(unsealed, ["k3"], way)
    flip_byte(unsealed / "commitlog" / f"{0:020d}", 4)
    assert {**texts_in(unsealed), "lock": b""} == {**before, "lock": b""}
    assert not (unsealed.parent / "copy.erasing").exists()
    index = sorted((unsealed / "index").iterdir())[0]
    # The previous entry that the third one names.
    flip_byte(index, 40 + 4 * 500 + 20 * 3 + 19)
    with pytest.raises(StoreCorrupt, match="its slots do not name their entries"):
        redacted(unsealed, ["k3"])
    index.write_bytes(b"short")
    with pytest.raises(StoreCorrupt, match="store repair"):
        redacted(unsealed, ["k3"])
    assert b"k3" in (unsealed / "commitlog" / f"{0:020d}").read_bytes()


def test_a_locked_store(unsealed: Path) -> None:
    class Taken(SnapshotFiles):
        def lock(self, path: str) -> int:
            raise BlockingIOError

    with pytest.raises(StoreLocked):
        redacted(unsealed, ["k3"], files=Taken())


@pytest.mark.parametrize("key", ["", "two keys", "~", " "])
def test_texts_that_are_no_key(unsealed: Path, key: str) -> None:
    with pytest.raises(NotAKey, match="key 2 is not one key"):
        redacted(unsealed, ["k3", key])


def mentioning(root: Path) -> None:
    store = opened(root)
    put(store, "orders", body=b"a" * 40, keys=("id-1", "ada"))
    put(store, "RMQ_SYS_TRACE_TOPIC", body=b"Pub\x01orders\x01ada\x01" * 3)
    put(store, "traces", body=zlib.compress(bytes(range(200)) + b"ada"), sys_flag=COMPRESSED)
    put(store, "traces", body=b"not zlib", sys_flag=COMPRESSED)
    put(store, "%DLQ%g", body=b"d" * 40, keys=("id-2", "ada"), more={props.RETRY_TOPIC: "orders"})
    put(store, "users", body=b"u" * 40, keys=("id-3", "ada"))
    store.commit()
    store.close()


def test_messages_that_only_mention_a_key(tmp_path: Path) -> None:
    mentioning(tmp_path / "s")
    found = redacted(tmp_path / "s", ["ada"], Way())
    assert {each.topic: (each.records, each.mentions) for each in found.topics} == {
        "orders": (1, 0), "RMQ_SYS_TRACE_TOPIC": (0, 1), "traces": (0, 1), "%DLQ%g": (1, 0),
        "users": (1, 0),
    }  # fmt: skip
    assert redacted(tmp_path / "s", ["ada"], Way(), mentions=Mentions.ignore).mentions == 0
    done = redacted(tmp_path / "s", ["ada"], mentions=Mentions.erase)
    assert (done.records, done.mentions) == (5, 0)
    assert verified(tmp_path / "s").findings == []
    assert redacted(tmp_path / "s", ["ada"], Way()).earlier == 5


def test_only_messages_sent_to_a_topic(tmp_path: Path) -> None:
    mentioning(tmp_path / "s")
    done = redacted(tmp_path / "s", ["ada"], topics=["orders"])
    assert {each.topic: each.records for each in done.topics if each.records} == {
        "orders": 1, "%DLQ%g": 1,
    }  # fmt: skip
    assert next(each for each in done.topics if each.topic == "users").mentions == 1


def test_a_key_in_what_a_tombstone_keeps_is_told(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    put(store, "of-ada", keys=("id-1", "ada"))
    store.commit()
    store.close()
    done = redacted(tmp_path / "s", ["ada"])
    assert (done.records, done.mentions) == (1, 1)


def test_groups_that_have_not_read_the_messages(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 30)
    store.close()
    (root / "config").mkdir()
    offsets = root / "config" / "consumerOffset.json"
    table = {"t@late": {"0": 4, "1": 10}, "t@done": {"0": 9}}
    offsets.write_text(json.dumps({"offsetTable": table}))
    # Offsets 3, 4 and 5 of queue 0.
    assert redacted(root, ["k9", "k12", "k15"], Way()).unread == (Unread("t", "late", 2),)
    for broken in ("{", '{"offsetTable": []}', '{"offsetTable": {"t@g": 3}}'):
        offsets.write_text(broken)
        assert redacted(root, ["k9"], Way()).unread == ()


def test_units_of_queue_entries(tmp_path: Path) -> None:
    on: dict[str, Any] = {
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext": 1024,
    }
    store = opened(tmp_path / "s", **on)
    fill(store, 300)
    store.close()
    first, last = sorted((tmp_path / "s" / EXTENSIONS / "t" / "1").iterdir())
    # The last of 100 units gets a bit map; 51 are in the first file.
    at = (100 - 51 - 1) * 20
    raw = bytearray(last.read_bytes())
    size, code, store_ms, _ = EXTENSION_UNIT.unpack_from(raw, at)
    EXTENSION_UNIT.pack_into(raw, at, size + 4, code, store_ms, 4)
    raw[at + 20 : at + 24] = b"\xff\xff\xff\xff"
    last.write_bytes(raw)
    done = redacted(tmp_path / "s", ["k7", "k298"])
    assert done.counts == (1, 1)
    assert verified(tmp_path / "s", full=True).findings == []
    units = [EXTENSION_UNIT.unpack_from(first.read_bytes(), at * 20) for at in range(5)]
    # Message 7 is the third one of queue 1.
    assert [unit[1] == 0 for unit in units] == [False, False, True, False, False]
    assert EXTENSION_UNIT.unpack_from(last.read_bytes(), at) == (24, 0, store_ms, 4)
    assert not any(last.read_bytes()[at + 20 :])
    records_in(tmp_path / "s", **on)


def test_compaction_keeps_the_newest_of_each_key(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root)
    for number in range(200):
        body, key = f"the price of a share is {number}".encode(), f"share-{number % 7}"
        put(store, "prices", number % 2, body, tag="eur", keys=(f"id-{number}", key))
        put(store, "news", 0, body, keys=(f"n-{number}", key))
    put(store, "prices", 0, b"without a key")
    store.commit()
    store.close()
    before = records_in(root)
    assert compacted(root, "prices", Way()).records == 193
    done = compacted(root, "prices")
    assert [(each.topic, each.records) for each in done.topics] == [("prices", 193)]
    assert verified(root, full=True).findings == []
    after = records_in(root)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        is_old = old.topic == "prices" and number < len(before) - 15 and old.properties
        assert (new != old) is bool(is_old), number
        if is_old:
            assert is_tombstone(new.properties)
            assert place_of(new) == place_of(old)
            assert props.decode(new.properties)["COMETMQ_ERASED"] == "compacted"
    assert compacted(root, "prices").records == 0


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_java_broker_s_store(tmp_path: Path, name: str) -> None:
    root = library.unpack_store(name, tmp_path)
    read = verified(root)
    shown = [*dump(StoreConfig(str(root)), DumpSelection())]
    key = next(keys_of(record)[0] for record in shown if keys_of(record))
    done = erasure.redact(StoreConfig(str(root)), [key], VirtualClock(), IN_PLACE)
    assert done.records >= 1
    found = verified(root, full=True)
    assert damage(found) == []
    assert found.records == read.records
    assert key.encode() not in b"".join(texts_in(root).values())


def test_a_log_in_its_own_directory(tmp_path: Path) -> None:
    places: dict[str, Any] = {"store_path_commit_log": str(tmp_path / "log" / "files")}
    store = opened(tmp_path / "s", **places)
    fill(store, 100)
    store.close()
    own = config(tmp_path / "s", **places)
    copy = erasure.redact(own, ["k3"], VirtualClock(), Way(str(tmp_path / "copy")))
    assert copy.records == 1
    assert b"k3\2" not in b"".join(texts_in(tmp_path / "copy").values())
    assert verified(tmp_path / "copy").findings == []
    assert erasure.redact(own, ["k3"], VirtualClock(), IN_PLACE).records == 1
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["files"]


def test_seals_are_made_again(sealed: Path) -> None:
    done = redacted(sealed, ["k3", "k2499"])
    # The last log file is not full, so it has none.
    assert (done.log_files, done.seals) == (2, 1)
    assert verified(sealed).sealed_files == 2
    assert (sealed / "commitlog" / f"{0:020d}").stat().st_size == FILE_BYTES
