"""Many queues: written now and then, and back after a kill without a look at their files."""

import random
import shutil
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import MessageIllegal
from cometmq.store.checkpoint import Positions, read_positions
from cometmq.store.layout import SCHEDULE_TOPIC
from cometmq.store.messagestore import MessageStore
from cometmq.store.queue.journal import JOURNAL_DIRECTORY
from cometmq.store.recovery import filechecks
from tests.store.stores import assert_consistent, bodies, copied, opened, put

QUEUES = 40
pytestmark = pytest.mark.usefixtures("many")


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more queues than a start looks at."""
    monkeypatch.setattr(filechecks, "CHECKED_QUEUES", 4)


BUSY = 25 * QUEUES


def with_many_queues(root: Path, clock: VirtualClock) -> MessageStore:
    """A store whose rounds write two queues only, so that 40 are many."""
    store = opened(root, clock, mapped_file_size_commit_log=1 << 17)
    store.maintenance.queues_a_round = 2
    return store


def send(store: MessageStore, count: int, queues: int = QUEUES, first: int = 0) -> None:
    for number in range(first, first + count):
        key = f"k{number}"
        put(store, f"t{number % queues // 4}", number % 4, b"%d" % number, keys=(key,))
        if number % 7 == 6:
            store.commit()
    store.commit()


async def rounds(store: MessageStore, count: int) -> None:
    for _ in range(count):
        store.flusher.sync_now()  # a thorough round waits for the log, on a clock that stands still
        await store.maintenance.flush_entries()


async def busy_store(root: Path, clock: VirtualClock) -> MessageStore:
    """A store with BUSY messages in which the journal has what the queues' files lack."""
    store = with_many_queues(root, clock)
    for first in range(0, BUSY, QUEUES):
        send(store, QUEUES, first=first)
        await rounds(store, 1)
    positions = noted(store)
    assert 0 < positions.complete < positions.written == store.written_offset
    return store


def noted(store: MessageStore) -> Positions:
    found = read_positions(store.files, store.config.store_path_root_dir)
    assert found is not None
    return found


def start_of(store: MessageStore) -> int:
    assert store.report is not None
    return store.report.start


async def test_after_a_kill_only_what_came_since_the_last_round_is_read(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = await busy_store(tmp_path / "s", clock)
    end = store.written_offset
    send(store, 3, first=BUSY)
    again = with_many_queues(copied(tmp_path / "s", "killed"), clock)
    store.close()
    assert start_of(again) == end
    assert again.report is not None
    assert again.report.records == 3
    assert len(again.queues.resumed) > QUEUES // 2
    assert len(assert_consistent(again)) == BUSY + 3
    assert not again.queues.resumed
    again.close()
    assert not list((tmp_path / "killed" / JOURNAL_DIRECTORY).iterdir())
    clean = with_many_queues(tmp_path / "killed", clock)
    assert clean.report is not None
    assert clean.report.records == 0
    assert len(assert_consistent(clean)) == BUSY + 3
    clean.close()


async def test_index_entries_written_in_between_take_no_rows_away(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = await busy_store(tmp_path / "s", clock)
    send(store, 700, first=BUSY)
    await rounds(store, 1)
    again = with_many_queues(copied(tmp_path / "s", "killed"), clock)
    store.close()
    assert again.report is not None
    assert (again.report.records, again.report.remade) == (0, ())
    assert len(again.queues.resumed) > QUEUES // 2
    assert len(assert_consistent(again)) == BUSY + 700
    again.close()


async def test_a_journal_that_is_damaged_costs_only_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = await busy_store(tmp_path / "s", clock)
    complete = noted(store).complete
    killed = copied(tmp_path / "s", "killed")
    store.close()
    for path in (killed / JOURNAL_DIRECTORY).iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    again = with_many_queues(killed, clock)
    assert start_of(again) == complete
    assert len(assert_consistent(again)) == BUSY
    again.close()


async def test_what_was_resumed_is_written_without_being_asked_for(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = await busy_store(tmp_path / "s", clock)
    again = with_many_queues(copied(tmp_path / "s", "killed"), clock)
    store.close()
    await rounds(again, QUEUES)
    assert again.queues.resumed
    assert (noted(again).written, noted(again).complete) == (again.written_offset, -1)
    third = with_many_queues(copied(tmp_path / "killed", "killed again"), clock)
    assert not third.queues.resumed
    assert len(assert_consistent(third)) == BUSY
    third.close()
    again.close()


async def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = await busy_store(tmp_path / "s", clock)
    await store.deletions.settle(store.deletions.delete("t3"))
    assert store.dispatcher.dirty_count > QUEUES // 2, "all queues were written for one topic"
    put(store, "t3", 1, b"new life")
    store.commit()
    await rounds(store, 1)
    again = with_many_queues(copied(tmp_path / "s", "killed"), clock)
    store.close()
    assert again.topics()["t3"] == [1]
    await again.deletions.settle(again.deletions.delete("t4"))
    put(again, "t4", 2, b"another")
    again.commit()
    third = with_many_queues(copied(tmp_path / "killed", "killed again"), clock)
    again.close()
    assert bodies(third, "t4", 2) == [b"another"]
    assert bodies(third, "t3", 1) == [b"new life"]
    assert "t4" in third.topics()
    third.close()


@pytest.mark.parametrize("seed", range(6))
async def test_random_lives(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends to few and to many queues, rounds, kills and clean stops."""
    if seed % 2:
        monkeypatch.setattr(filechecks, "CHECKED_QUEUES", 1_000)
    chance = random.Random(seed)
    clock = VirtualClock()
    sent = 0
    store = with_many_queues(tmp_path / "0", clock)
    for life in range(6):
        for _ in range(chance.randrange(1, 8)):
            count = chance.randrange(1, 60)
            send(store, count, chance.choice([8, QUEUES]), sent)
            sent += count
            await rounds(store, chance.randrange(0, 4))
            if chance.random() < 0.2:
                clock.advance(70_000)
        if chance.random() < 0.7:
            killed = copied(tmp_path / str(life), str(life + 1))
            store.close()
            shutil.rmtree(tmp_path / str(life))
        else:
            store.close()
            killed = (tmp_path / str(life)).rename(tmp_path / str(life + 1))
        store = with_many_queues(killed, clock)
        assert len(assert_consistent(store)) == sent
    store.close()


def test_a_new_queue_of_a_delay_level_knows_its_delay(tmp_path: Path) -> None:
    store = opened(tmp_path, message_delay_level="1s 5s")
    delays = [store.queue(SCHEDULE_TOPIC, number).delay_ms for number in range(4)]
    assert delays == [1_000, 5_000, 5_000, 5_000]
    with pytest.raises(MessageIllegal):
        store.queue("t" * 128, 0)
    store.close()
