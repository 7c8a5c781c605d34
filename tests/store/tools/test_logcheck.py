"""Damage in the log files themselves."""

from pathlib import Path

import pytest

from cometmq.message.record import decode_one
from tests.golden import library
from tests.store.sealed import FILE_BYTES
from tests.store.tools.verifying import (
    damage,
    field_bytes,
    flip_byte,
    kinds,
    log_file,
    records_in,
    verified,
    written,
)


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
