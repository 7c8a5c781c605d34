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
