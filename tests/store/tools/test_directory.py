"""Directories that are none, or in use."""

from pathlib import Path

import pytest

from cometmq.store.files import PosixFiles, ReadOnlyFiles
from cometmq.store.tools.directory import NoStore, StoreInUse
from cometmq.store.tools.findings import Severity
from cometmq.store.tools.verify import verify
from tests.store.stores import opened, put
from tests.store.tools.verifying import verified


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
