"""What a poll gave is in work until the next one begins."""

from __future__ import annotations

from cometmq.client.consumer.inflight import InFlight
from cometmq.client.consumer.pullconsumer import Progress
from cometmq.message.model import MessageList
from tests.client.consumer.test_inflight import QUEUE, message


def given(progress: Progress, inflight: InFlight, count: int) -> None:
    """A poll gives so many messages."""
    for _ in range(count):
        taken = inflight.take(0)
        assert taken is not None
        progress.begin(inflight, taken)
        inflight.settle(taken)


def test_done_is_what_lies_before_the_last_poll() -> None:
    progress, inflight = Progress(), InFlight(QUEUE, 0)
    inflight.add(MessageList([message(offset) for offset in range(5)]), 5)
    assert progress.done(inflight) == 0
    given(progress, inflight, 2)
    assert (progress.done(inflight), progress.undone()) == (0, {QUEUE: 0})
    assert progress.positions([inflight]) == {QUEUE: 2}
    progress.finish()
    assert (progress.done(inflight), progress.undone()) == (2, {})
    given(progress, inflight, 3)
    assert progress.done(inflight) == 2
    progress.finish()
    assert progress.done(inflight) == 5


def test_a_queue_that_went_has_nothing_in_work() -> None:
    progress, inflight = Progress(), InFlight(QUEUE, 0)
    inflight.add(MessageList([message(0), message(1)]), 2)
    given(progress, inflight, 1)
    progress.forget(inflight)
    assert progress.done(inflight) == 1
    given(progress, inflight, 1)
    inflight.dropped = True
    assert progress.undone() == {}
