"""Whole stores verified: sound ones, and every kind of damage."""

import shutil
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.message.record import Record, decode_one
from cometmq.store.files import PosixFiles, ReadOnlyFiles
from cometmq.store.indexfile import HEADER_BYTES
from cometmq.store.seals import BLOCK_BYTES
from cometmq.store.tools import jobs
from cometmq.store.tools.directory import NoStore, StoreInUse
from cometmq.store.tools.findings import Severity
from cometmq.store.tools.verify import verify
from tests.golden import library
from tests.store.sealed import FILE_BYTES
from tests.store.stores import fill, log_of, opened, put
from tests.store.tools.verifying import damage, flip_byte, kinds, verified, written


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    return written(tmp_path / "store", sealed=True)


@pytest.fixture
def unsealed(tmp_path: Path) -> Path:
    return written(tmp_path / "store", sealed=False)


def records_in(root: Path) -> list[Record]:
    store = opened(
        shutil.copytree(root, root.parent / "read"), VirtualClock(),
        mapped_file_size_commit_log=FILE_BYTES, max_hash_slot_num=500, max_index_num=1_500,
        mapped_file_size_consume_queue=20 * 500,
    )  # fmt: skip
    found = log_of(store)
    store.close()
    return found


def log_file(root: Path, offset: int) -> tuple[Path, int]:
    """The file that holds a physical offset, and where in it."""
    base = offset - offset % FILE_BYTES
    return root / "commitlog" / f"{base:020d}", offset - base


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_a_sound_store(tmp_path: Path, is_sealed: bool, full: bool) -> None:
    found = verified(written(tmp_path / "s", sealed=is_sealed), full=full)
    assert found.findings == []
    assert found.is_sound
    assert (found.records, found.queues, found.entries) == (2_500, 3, 2_500)
    assert found.index_entries == 5_000
    assert found.sealed_files == (2 if is_sealed else 0)


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_java_broker_s_store(tmp_path: Path, name: str) -> None:
    found = verified(library.unpack_store(name, tmp_path))
    assert damage(found) == []
    assert kinds(found) == ({"crashed"} if name == "killed" else set())
    assert (found.records, found.entries, found.index_entries) == (459, 459, 918)


def test_several_processes_find_the_same(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = records_in(sealed)[7]
    flip_byte(*log_file(sealed, record.physical_offset + 90))
    alone = verified(sealed)
    monkeypatch.setattr(jobs, "ALONE_BYTES", 0)
    assert verified(sealed, processes=2) == alone
    assert not alone.is_sound


FIELDS = {
    "size": 0, "magic": 4, "crc": 8, "queue": 12, "flag": 16, "queue offset": 20,
    "physical offset": 28, "system flag": 36, "born time": 40, "born host": 48,
    "store time": 56, "store host": 64, "reconsume times": 72, "prepared offset": 76,
    "body length": 84, "body": 88,
}  # fmt: skip


def field_bytes(record: Record) -> list[tuple[str, int]]:
    """The first and the last byte of every field of a record."""
    topic_at = 88 + len(record.body)
    fields = FIELDS | {
        "topic length": topic_at,
        "topic": topic_at + 1,
        "properties length": topic_at + 2,
        "properties": topic_at + 4,
    }
    ends = [*list(fields.values())[1:], record.size_bytes]
    pairs = zip(fields.items(), ends, strict=True)
    return [(name, at) for (name, first), end in pairs for at in {first, end - 1}]


def test_every_field_of_a_record_in_a_sealed_file(sealed: Path) -> None:
    record = records_in(sealed)[40]
    for name, at in field_bytes(record):
        path, place = log_file(sealed, record.physical_offset + at)
        flip_byte(path, place)
        found = verified(sealed)
        blocks = [each for each in damage(found) if each.kind == "block"]
        assert [each.offset for each in blocks] == [place - place % BLOCK_BYTES], name
        assert blocks[0].path == str(path)
        flip_byte(path, place)
    assert verified(sealed).is_sound


@pytest.mark.parametrize("java", [True, False])
def test_every_field_of_a_record_that_something_else_knows(tmp_path: Path, java: bool) -> None:
    if java:
        root = library.unpack_store("clean", tmp_path)
        fact = library.stores()["clean"]["topics"]["golden"]["messages"][60]
        path = root / "commitlog" / f"{fact['commitLogOffset'] // 65_536 * 65_536:020d}"
        start = fact["commitLogOffset"] % 65_536
        record = decode_one(path.read_bytes(), start)
    else:
        root = written(tmp_path / "store", sealed=False)
        record = records_in(root)[40]
        path, start = log_file(root, record.physical_offset)
    silent: set[str] = set()
    for name, at in field_bytes(record):
        for bits in (0x01, 0x80):
            flip_byte(path, start + at, bits)
            if verified(root).is_sound:
                silent.add(name)
            flip_byte(path, start + at, bits)
    # Nothing in RocketMQ's files says a second time what stands there: this is what seals are for.
    # (A Java client's first property is none that the index or the queue knows.)
    assert silent == {
        "flag", "born time", "born host", "store time", "store host", "reconsume times",
        "prepared offset", "system flag", *(("properties",) if java else ()),
    }  # fmt: skip


def test_every_byte_of_a_queue_entry(unsealed: Path) -> None:
    queue = unsealed / "consumequeue" / "t" / "1"
    path = sorted(queue.iterdir())[0]
    for at in range(20 * 30, 20 * 31):
        flip_byte(path, at)
        (first, *_) = damage(verified(unsealed))
        assert first.path in (str(queue), str(log_file(unsealed, 0)[0])), at
        flip_byte(path, at)
    assert verified(unsealed).is_sound


def test_a_queue_entry_of_a_sealed_file(sealed: Path) -> None:
    path = sorted((sealed / "consumequeue" / "t" / "1").iterdir())[0]
    flip_byte(path, 20 * 30 + 19)
    (found,) = damage(verified(sealed))
    assert found.kind == "queue-entry-wrong"
    assert found.path == str(path.parent)
    assert "entry 30" in found.text
    assert "tag code" in found.text


@pytest.mark.parametrize("is_sealed", [True, False])
def test_every_byte_of_an_index_entry(tmp_path: Path, is_sealed: bool) -> None:
    root = written(tmp_path / "s", sealed=is_sealed)
    path = sorted((root / "index").iterdir())[0]
    for at in range(20):
        place = HEADER_BYTES + 4 * 500 + 20 * 700 + at
        flip_byte(path, place, 0x41)
        found = damage(verified(root))
        assert found, at
        assert {each.kind.split("-")[0] for each in found} == {"index"}
        flip_byte(path, place, 0x41)
    assert verified(root).is_sound


def test_every_byte_of_an_index_header_and_a_slot(unsealed: Path) -> None:
    path = sorted((unsealed / "index").iterdir())[0]
    tolerated = set()
    for at in range(HEADER_BYTES + 4):
        flip_byte(path, at, 0x01)
        if verified(unsealed).is_sound:
            tolerated.add(at)
        flip_byte(path, at, 0x01)
    # The last bytes of the end time: a start after a crash knows it by the second.
    assert tolerated <= {14, 15}


def test_two_entries_that_changed_places(sealed: Path) -> None:
    path = sorted((sealed / "consumequeue" / "t" / "1").iterdir())[0]
    raw = bytearray(path.read_bytes())
    raw[100:120], raw[120:140] = raw[120:140], raw[100:120]
    path.write_bytes(raw)
    found = damage(verified(sealed))
    assert [each.kind for each in found] == ["queue-entry-wrong"] * 2
    assert {each.text.partition(": ")[2] for each in found} == {
        "queue offset 5 not 6",
        "queue offset 6 not 5",
    }


def test_entries_that_are_zeros(sealed: Path) -> None:
    path = sorted((sealed / "consumequeue" / "t" / "1").iterdir())[0]
    raw = bytearray(path.read_bytes())
    raw[200:400] = bytes(200)
    path.write_bytes(raw)
    found = damage(verified(sealed))
    assert {each.kind for each in found} == {"queue-entry-missing", "record-without-entry"}
    assert "10 records (queue offsets 10 to 19)" in found[-1].text + found[0].text


def test_a_queue_that_ends_early(unsealed: Path) -> None:
    path = sorted((unsealed / "consumequeue" / "t" / "1").iterdir())[-1]
    raw = path.read_bytes()
    end = len(raw.rstrip(b"\0"))
    end -= end % 20
    path.write_bytes(raw[: end - 200].ljust(len(raw), b"\0"))
    (found,) = damage(verified(unsealed))
    assert found.kind == "record-without-entry"
    # After a crash the next start sees to it.
    (unsealed / "abort").touch()
    assert kinds(verified(unsealed)) == {"crashed", "queue-behind"}


def test_files_of_a_queue_that_are_gone_or_too_short(unsealed: Path) -> None:
    first, second = sorted((unsealed / "consumequeue" / "t" / "1").iterdir())
    second.write_bytes(second.read_bytes()[:-20])
    assert {"queue-file-size"} <= kinds(verified(unsealed))
    second.unlink()
    assert {"record-without-entry"} <= kinds(verified(unsealed))
    first.rename(first.with_name(f"{20_000:020d}"))
    assert not verified(unsealed).is_sound
    third = unsealed / "consumequeue" / "t" / "2"
    paths = sorted(third.iterdir())
    paths[1].rename(paths[1].with_name(f"{30_000:020d}"))
    assert "queue-file-missing" in kinds(verified(unsealed))


def test_a_topic_whose_queues_are_gone(unsealed: Path) -> None:
    shutil.rmtree(unsealed / "consumequeue" / "t")
    found = verified(unsealed)
    assert found.is_sound
    assert kinds(found) == {"deleted-topic"}
    (unsealed / "config").mkdir()
    table = unsealed / "config" / "topics.json"
    table.write_text('{"topicConfigTable":{"t":{"topicName":"t"}}}')
    assert kinds(verified(unsealed)) == {"record-without-entry"}
    (unsealed / "abort").touch()
    assert kinds(verified(unsealed)) == {"crashed", "queue-behind"}


async def test_a_topic_that_was_made_anew(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=FILE_BYTES)
    fill(store, 300, queues=1)
    await store.deletions.settle(store.deletions.delete("t"))
    fill(store, 20, queues=1, first=1_000)
    store.close()
    found = verified(tmp_path)
    assert found.is_sound
    assert kinds(found) == {"deleted-topic"}


def test_the_log_itself(unsealed: Path) -> None:
    records = records_in(unsealed)
    path, place = log_file(unsealed, records[-3].physical_offset)
    flip_byte(path, place + 5)
    found = damage(verified(unsealed))
    assert found[0].kind == "gap"
    assert found[0].offset == records[-3].physical_offset
    flip_byte(path, place + 5)
    # The last record of all: what was noted at the stop says that one is missing.
    path, place = log_file(unsealed, records[-1].physical_offset)
    flip_byte(path, place + 5)
    assert {"log-short", "gap"} <= kinds(verified(unsealed))
    (unsealed / "abort").touch()
    assert "log-short" in kinds(verified(unsealed))


def test_what_stands_behind_the_end(unsealed: Path) -> None:
    end = records_in(unsealed)[-1]
    path, place = log_file(unsealed, end.physical_offset + end.size_bytes)
    flip_byte(path, place + 3)
    assert kinds(verified(unsealed)) == {"gap"}
    # Torn by a crash, or left by a Java broker that cut its log.
    (unsealed / "cometmq-positions.json").unlink()
    assert kinds(verified(unsealed)) == {"behind-end"}
    (unsealed / "abort").touch()
    assert kinds(verified(unsealed)) == {"crashed", "torn-end"}


def test_files_of_the_log_that_are_gone_strange_or_short(sealed: Path) -> None:
    (sealed / "commitlog" / "readme.txt").touch()
    found = verified(sealed)
    assert found.is_sound
    assert kinds(found) == {"stray-file"}
    second = sealed / "commitlog" / f"{FILE_BYTES:020d}"
    second.write_bytes(second.read_bytes()[:-100])
    assert {"log-file-size", "seal"} <= kinds(verified(sealed))
    second.unlink()
    found = verified(sealed)
    assert {"log-file-missing", "seal"} <= kinds(found)
    assert not found.is_sound


def test_a_log_that_breaks_off_before_its_last_file(unsealed: Path) -> None:
    first = unsealed / "commitlog" / f"{0:020d}"
    raw = first.read_bytes()
    middle = records_in(unsealed)[500].physical_offset
    first.write_bytes(raw[:middle].ljust(len(raw), b"\0"))
    assert "gap" in kinds(verified(unsealed))


def test_every_byte_of_a_seal(sealed: Path) -> None:
    path = sealed / "cometmq-seals" / f"{0:020d}"
    for at in range(path.stat().st_size):
        if at % 7 > 2:
            continue  # test_seals flips every byte; here it is about what verify makes of it
        flip_byte(path, at)
        (found,) = damage(verified(sealed))
        assert (found.kind, found.path) == ("seal", str(path))
        flip_byte(path, at)
    assert verified(sealed).is_sound


def another_broker(root: Path) -> None:
    """Leave the checkpoint as another broker would."""
    flip_byte(root / "checkpoint", 7, 0x01)


def test_a_seal_that_another_broker_made_out_of_date(sealed: Path) -> None:
    records = records_in(sealed)
    another_broker(sealed)
    assert verified(sealed).is_sound
    path = sealed / "commitlog" / f"{FILE_BYTES:020d}"
    raw = bytearray(path.read_bytes())
    for record in records:
        if FILE_BYTES * 1.5 < record.physical_offset < FILE_BYTES * 2:
            at = record.physical_offset - FILE_BYTES + 56
            raw[at : at + 8] = (record.store_ms + (1 << 40)).to_bytes(8, "big")
    shutil.rmtree(sealed / "index")
    path.write_bytes(raw)
    found = verified(sealed)
    assert found.is_sound, found.findings
    assert kinds(found) == {"seal-outdated", "no-index"}


def test_a_flip_after_another_broker_s_run_is_damage_all_the_same(sealed: Path) -> None:
    another_broker(sealed)
    flip_byte(sealed / "commitlog" / f"{0:020d}", 16)
    assert [each.kind for each in damage(verified(sealed))] == ["block"]


def test_tables_and_checkpoint(unsealed: Path) -> None:
    config = unsealed / "config"
    config.mkdir()
    (config / "topics.json").write_text('{"topicConfigTable":{}}')
    (config / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:5}}}')
    assert verified(unsealed).is_sound
    for text in ("{", "[]", "{}", ""):
        (config / "consumerOffset.json").write_text(text)
        (found,) = damage(verified(unsealed))
        assert found.path.endswith("consumerOffset.json")
    (config / "consumerOffset.json").unlink()
    checkpoint = unsealed / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    assert kinds(verified(unsealed)) == {"checkpoint"}
    checkpoint.unlink()
    assert "checkpoint" in kinds(verified(unsealed))


def test_an_index_that_lags_or_is_not_there(unsealed: Path) -> None:
    paths = sorted((unsealed / "index").iterdir())
    paths[-1].unlink()
    assert kinds(verified(unsealed)) == {"index-behind"}
    (unsealed / "abort").touch()
    found = verified(unsealed)
    assert found.is_sound
    assert kinds(found) == {"crashed", "index-behind"}
    paths[0].unlink()
    assert "index-begins-later" in kinds(verified(unsealed))
    shutil.rmtree(unsealed / "index")
    assert kinds(verified(unsealed)) == {"crashed", "no-index"}


def test_index_files_that_cannot_be_read(unsealed: Path) -> None:
    path = sorted((unsealed / "index").iterdir())[0]
    path.write_bytes(path.read_bytes()[:30])
    assert "index-file-size" in kinds(verified(unsealed))


def test_a_store_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store)
    store.commit()
    with pytest.raises(StoreInUse, match="a CometMQ broker"):
        verified(tmp_path)
    store.close()
    assert verified(tmp_path).is_sound


def test_a_broker_that_comes_up_meanwhile(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store)
    store.close()
    locks: list[int] = []

    def start(_size: int) -> None:
        if not locks:
            locks.append(PosixFiles().lock(str(tmp_path / "lock")))

    with pytest.raises(StoreInUse):
        verify(store.config, ReadOnlyFiles(), progress=start)


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match="nothing of this name"):
        verified(tmp_path / "x")
    with pytest.raises(NoStore, match="commitlog is missing"):
        verified(tmp_path)
    (tmp_path / "commitlog").mkdir()
    found = verified(tmp_path)
    assert found.is_sound
    assert found.records == 0
    assert all(each.severity is Severity.NOTE for each in found.findings)
