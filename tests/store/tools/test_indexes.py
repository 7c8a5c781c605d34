"""Index files as a whole."""

import shutil
from pathlib import Path

from cometmq.store.indexfile import HEADER_BYTES
from tests.store.tools.verifying import (
    flip_byte,
    kinds,
    verified,
)


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
