"""What waits to be dispatched: in order, within the bound of a turn, and never lost at a stop."""

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.store import dispatch
from cometmq.store.config import FlushDiskType
from cometmq.store.messagestore import MessageStore
from tests.store.stores import assert_consistent, bodies, fill, opened, put

Calls = deque[Callable[[], None]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    monkeypatch.setattr(dispatch, "ROWS_PER_TURN", 10)
    return deque()


def with_turns(
    root: Path, calls: Calls, flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH
) -> MessageStore:
    """A store whose later turns are ``calls``."""
    store = opened(root, flush_disk_type=flush)
    store.backlog.start(calls.append)
    return store


def seen(store: MessageStore) -> int:
    return store.queue("t", 0).max_offset


def test_a_long_turn_is_dispatched_in_several(tmp_path: Path, calls: Calls) -> None:
    store = with_turns(tmp_path, calls)
    fill(store, 35, queues=1, turn=100)
    steps = [seen(store)]
    assert store.dispatched_offset < store.written_offset
    while calls:
        calls.popleft()()
        steps.append(seen(store))
    assert steps == [10, 20, 30, 35]
    assert store.dispatched_offset == store.written_offset
    assert len(assert_consistent(store)) == 35
    store.close()


def test_what_comes_later_waits_behind(tmp_path: Path, calls: Calls) -> None:
    store = with_turns(tmp_path, calls)
    fill(store, 25, queues=1, turn=100)
    put(store, body=b"later")
    store.commit()
    assert (len(calls), store.backlog.messages) == (1, 16)
    while calls:
        calls.popleft()()
    assert bodies(store, "t", 0)[-1] == b"later"
    assert store.backlog.messages == 0
    store.close()


@pytest.mark.parametrize("flush", FlushDiskType)
def test_a_stop_dispatches_everything(tmp_path: Path, calls: Calls, flush: FlushDiskType) -> None:
    store = with_turns(tmp_path, calls, flush)
    fill(store, 35, queues=1, turn=100)
    store.close()
    while calls:
        calls.popleft()()
    again = opened(tmp_path)
    assert again.report is not None
    assert not again.report.crashed
    assert len(assert_consistent(again)) == 35
    again.close()


def test_with_sync_flush_nothing_is_seen_before_the_sync(tmp_path: Path, calls: Calls) -> None:
    store = with_turns(tmp_path, calls, FlushDiskType.SYNC_FLUSH)
    store.on_durable.append(lambda tokens: None)
    fill(store, 15, queues=1, turn=100)
    put(store, body=b"later")
    store.commit()
    assert (seen(store), len(calls)) == (0, 0)
    store.flusher.sync_now()
    assert (seen(store), len(calls)) == (10, 1)
    calls.popleft()()
    assert seen(store) == 16
    store.close()


def test_queues_that_go_away_are_forgotten(tmp_path: Path, calls: Calls) -> None:
    store = with_turns(tmp_path, calls)
    fill(store, 25, queues=1, turn=100)
    put(store, "kept")
    store.commit()
    queue = store.queue("t", 0)
    store.backlog.forget({queue})
    while calls:
        calls.popleft()()
    assert (queue.max_offset, store.backlog.messages) == (10, 0)
    assert len(bodies(store, "kept", 0)) == 1
    assert store.dispatched_offset == store.written_offset
    store.close()


def test_delays_are_counted_from_the_commit_on(tmp_path: Path, calls: Calls) -> None:
    store = with_turns(tmp_path, calls)
    delays, clock = store.backlog.delays, store.clock
    assert isinstance(clock, VirtualClock)
    fill(store, 8, queues=1, turn=100)
    assert (delays.counts[0], delays.total) == (8, 0)
    fill(store, 25, queues=1, turn=100)
    clock.advance(30)
    while calls:
        calls.popleft()()
    by_bound = dict(zip(delays.bounds, delays.counts, strict=False))
    assert by_bound == {**dict.fromkeys(delays.bounds, 0), 0.0005: 18, 0.05: 15}
    assert delays.total == pytest.approx(15 * 0.03)
    store.close()


def test_with_sync_flush_the_sync_is_part_of_the_delay(tmp_path: Path, calls: Calls) -> None:
    store = with_turns(tmp_path, calls, FlushDiskType.SYNC_FLUSH)
    store.on_durable.append(lambda tokens: None)
    fill(store, 5, queues=1, turn=100)
    assert sum(store.backlog.delays.counts) == 0
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance(7)
    store.flusher.sync_now()
    assert sum(store.backlog.delays.counts) == 5
    assert store.backlog.delays.total == pytest.approx(5 * 0.007)
    store.close()
