"""Whole stores verified: sound ones, and those of a Java broker."""

from pathlib import Path

import pytest

from tests.golden import library
from tests.store.tools.verifying import damage, kinds, verified, written


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
