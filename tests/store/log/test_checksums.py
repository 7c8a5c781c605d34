"""Seals: their bytes, and which of them count."""

from pathlib import Path
from zlib import crc32

import pytest

from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import PosixFiles
from cometmq.store.log import checksums as seals_module
from cometmq.store.log.checksums import (
    BLOCK_BYTES,
    BlockChecksums,
    Seal,
    Summary,
    block_count,
    decode,
    encode,
    sums_of,
)
from cometmq.store.log.segments import Segments
from tests.store.sealed import seal_of

CONTENT = bytes(range(256)) * 600
SUMMARY = Summary(7, 1, 2, 6, 0xFEDC_BA98_7654_3210, 5, 1 << 63)
SEAL = Seal(3 * len(CONTENT), len(CONTENT), 1_700_000_000_000, SUMMARY, sums_of(CONTENT))


def test_bytes_of_a_seal() -> None:
    raw = encode(SEAL)
    assert block_count(len(CONTENT)) == 3
    assert len(raw) == 96 + 3 * 4 + 4
    assert raw[:8] == b"CMQS\0\1\0\1"
    assert decode(raw, "p", SEAL.base) == SEAL


def test_every_flipped_byte_and_every_other_length_is_noticed() -> None:
    raw = encode(SEAL)
    for at in range(len(raw)):
        for flip in (0x01, 0x80, 0xFF):
            other = bytearray(raw)
            other[at] ^= flip
            with pytest.raises(StoreCorrupt, match="p"):
                decode(bytes(other), "p", SEAL.base)
        with pytest.raises(StoreCorrupt):
            decode(raw[:at], "p", SEAL.base)
    with pytest.raises(StoreCorrupt):
        decode(raw + b"\0", "p", SEAL.base)
    with pytest.raises(StoreCorrupt, match="to a file at"):
        decode(raw, "p", 0)


def test_a_seal_of_another_version_is_said_so() -> None:
    raw = bytearray(encode(SEAL))
    raw[5] = 2
    raw[-4:] = crc32(raw[:-4]).to_bytes(4, "big")
    with pytest.raises(StoreCorrupt, match="version"):
        decode(bytes(raw), "p", SEAL.base)


def test_blocks_are_compared() -> None:
    for block, at in enumerate(range(0, len(CONTENT), BLOCK_BYTES)):
        data = CONTENT[at : at + BLOCK_BYTES]
        assert SEAL.holds(block, data)
        assert not SEAL.holds(block, data[:-1] + bytes([data[-1] ^ 1]))
        assert not SEAL.holds(block, data[:-1])


def made(tmp_path: Path, *bases: int) -> BlockChecksums:
    seals = BlockChecksums(PosixFiles(), str(tmp_path))
    for base in bases:
        seals.add(seal_of(base, bytes(100)))
    return BlockChecksums(PosixFiles(), str(tmp_path))


def test_what_was_added_is_found_again(tmp_path: Path) -> None:
    seals = made(tmp_path, 0, 100)
    assert seals.bases == {0, 100}
    found = seals.of(100)
    assert found is not None
    assert found.base == 100
    assert seals.of(100) is found
    assert seals.of(200) is None


def test_few_are_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seals_module, "_LOADED_LIMIT", 2)
    seals = made(tmp_path, 0, 100, 200)
    first = seals.of(0)
    assert seals.of(0) is first
    for base in (100, 200):
        seals.of(base)
    assert seals.of(0) is not first
    assert seals.of(0) == first


def test_an_unreadable_seal_counts_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seals = made(tmp_path, 0)
    Path(seals.path(0)).write_bytes(b"nothing")
    assert seals.of(0) is None
    assert seals.bases == set()
    assert "seal_unreadable" in caplog.text


def test_seals_of_files_that_are_gone_or_may_change_are_taken_away(tmp_path: Path) -> None:
    files = PosixFiles()
    seals = made(tmp_path, 0, 4_096, 8_192, 12_288)
    segments = Segments(files, str(tmp_path / "commitlog"), 4_096)
    (tmp_path / "commitlog").mkdir()
    for base in (4_096, 8_192, 12_288):
        segments.add(segments.create_file(base))
    segments.attach(seals)
    draft = Path(seals.path(100) + ".tmp")
    draft.write_bytes(b"half")
    segments.keep_seals(seals, 12_288 + 4_095)
    assert seals.bases == {4_096, 8_192}
    assert [file.seals is seals for file in segments.files] == [True, True, False]
    assert sorted(path.name for path in Path(seals.directory).iterdir()) == [
        f"{base:020d}" for base in (4_096, 8_192)
    ]
    seals.forget([8_192, 700])
    assert BlockChecksums(files, str(tmp_path)).bases == {4_096}
    assert seals.of(8_192) is None
    segments.close()


def test_doubted_seals_count_once_confirmed(tmp_path: Path) -> None:
    seals = made(tmp_path, 0, 100)
    seals.doubt()
    assert (seals.bases, seals.doubted) == (set(), {0, 100})
    assert seals.of(0) is None
    again = BlockChecksums(PosixFiles(), str(tmp_path))
    assert (again.bases, again.doubted) == (set(), {0, 100})
    again.doubt()
    again.confirm(100)
    assert again.of(100) is not None
    again.forget([0])
    last = BlockChecksums(PosixFiles(), str(tmp_path))
    assert (last.bases, last.doubted) == ({100}, set())
