"""Index entries against the log."""

from pathlib import Path

import pytest

from cometmq.store.indexfile import HEADER_BYTES
from tests.store.tools.verifying import damage, flip_byte, verified, written


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
