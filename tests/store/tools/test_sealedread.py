"""Sealed files: every flip is found, and a seal out of date is told from one."""

import shutil
from pathlib import Path

from cometmq.store.seals import BLOCK_BYTES
from tests.store.sealed import FILE_BYTES
from tests.store.tools.verifying import (
    another_broker,
    damage,
    field_bytes,
    flip_byte,
    kinds,
    log_file,
    records_in,
    verified,
)


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
