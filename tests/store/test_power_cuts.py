"""SYNC_FLUSH: whatever is lost that was not synced, acknowledged messages are there, once."""

import asyncio
import random
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.store.config import FlushDiskType
from cometmq.store.messagestore import MessageStore
from tests.store.faults import LossyFiles
from tests.store.stores import assert_consistent, opened, put


class Life:
    """One run of a store, from a start to a power cut."""

    def __init__(self, root: Path, clock: VirtualClock, number: int, sync: bool) -> None:
        self.files = LossyFiles(f"boot {number}")
        kind = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
        self.store: MessageStore = opened(root, clock, self.files, flush_disk_type=kind)
        self.store.on_durable.append(self._released)
        self.acknowledged: list[bytes] = []

    def _released(self, tokens: list[object]) -> None:
        for token in tokens:
            assert isinstance(token, list)
            self.acknowledged += token

    def run(self, chance: random.Random, clock: VirtualClock, prefix: bytes) -> None:
        """Random sends, syncs and rounds of upkeep."""
        store = self.store
        for turn in range(chance.randrange(1, 40)):
            turns = [b"%s.%d.%d" % (prefix, turn, at) for at in range(chance.randrange(1, 9))]
            for body in turns:
                padded = body + b":" + bytes(chance.randrange(600))
                put(store, "t", chance.randrange(3), padded, keys=(body.decode(), "all"))
            store.commit()
            store.sync_waiters.park(store.written_offset, 1 << 60, turns)
            if chance.random() < 0.6:
                store.flusher.sync_now()
            if chance.random() < 0.2:
                # Synced first: a thread that syncs would go on after the power cut.
                store.flusher.sync_now()
                clock.advance(chance.choice([1_000, 70_000]))
                asyncio.run(store.maintenance.flush_entries())


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_acknowledged_messages_survive(tmp_path: Path, seed: int, sync: bool) -> None:
    live(tmp_path, seed, sync)


@pytest.mark.deep
@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("seed", range(20, 1_000))
def test_acknowledged_messages_survive_often(tmp_path: Path, seed: int, sync: bool) -> None:
    live(tmp_path, seed, sync)


def live(tmp_path: Path, seed: int, sync: bool) -> None:
    """Three runs of one store, each ended by a power cut."""
    chance = random.Random(seed * 2 + sync)
    clock = VirtualClock()
    root = tmp_path / "0"
    acknowledged: list[bytes] = []
    for number in range(3):
        life = Life(root, clock, number, sync)
        assert_consistent(life.store)
        life.run(chance, clock, b"%d" % number)
        target = tmp_path / str(number + 1)
        life.files.crash(root, target, chance)
        acknowledged += life.acknowledged
        life.store.log.failure = life.store.log.fail("power cut")
        life.store.close()
        root = target
    store = opened(root, clock)
    records = assert_consistent(store)
    found = [record.body.partition(b":")[0] for record in records]
    assert len(set(found)) == len(found)
    assert set(acknowledged) <= set(found)
    store.close()
