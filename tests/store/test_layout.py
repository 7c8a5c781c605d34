"""Names and entries of store files."""

import pytest

from cometmq.store import layout


def test_file_names() -> None:
    assert layout.file_name(1 << 30) == "00000000001073741824"
    assert layout.file_offset("00000000001073741824") == 1 << 30


@pytest.mark.parametrize("name", ["", "1", "0000000000107374182x", "0" * 21, "٠" * 20])
def test_other_names(name: str) -> None:
    assert layout.file_offset(name) is None


def test_queue_entry() -> None:
    assert layout.QUEUE_ENTRY_BYTES == 20
    assert layout.QUEUE_ENTRY.pack(1, 2, -3).hex() == (
        "0000000000000001" + "00000002" + "fffffffffffffffd"
    )
    assert layout.HOLE.hex() == "0" * 16 + "7fffffff" + "0" * 16


def test_queue_ids() -> None:
    assert [layout.queue_id_of(name) for name in ("0", "7", "2147483647")] == [0, 7, 2**31 - 1]


@pytest.mark.parametrize("name", ["", "00", "07", "-1", "x", "٣", "²", "2147483648", "9" * 300])
def test_other_names_than_queue_ids(name: str) -> None:
    assert layout.queue_id_of(name) is None


def test_topic_names() -> None:
    assert all(map(layout.is_topic_name, ("t", "%RETRY%g", "主题", "x" * 127)))
    assert not any(map(layout.is_topic_name, ("", "x" * 128, "\udcff", "lost+found")))


def test_index_names() -> None:
    assert layout.is_index_name("20261128043000123")
    assert not any(map(layout.is_index_name, ("2026112804300012", "²" * 17, "2026112804300012x")))
