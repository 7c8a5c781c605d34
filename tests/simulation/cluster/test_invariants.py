"""Each invariant detects its violation, and nothing else."""

import pytest

from tests.simulation.cluster.copies import Stored
from tests.simulation.cluster.history import (
    POISON,
    Attempt,
    Group,
    History,
    Local,
    Outcome,
    Place,
    Sent,
)
from tests.simulation.cluster.invariants import LEASE_MS, SLACK_MS, Watch
from tests.simulation.cluster.loop import SimLoop
from tests.simulation.cluster.trace import Trace

WORKERS = Group("workers", ("events",), max_times=1)
LINE = Group("line", ("orders",), ordered=True)
DELAYS_MS = (1_000, 2_000, 3_000, 4_000)


class Stage:
    """A watch, with short methods that report events to it."""

    def __init__(self) -> None:
        loop = SimLoop()
        self.history = History(groups={group.name: group for group in (WORKERS, LINE)})
        self.watch = Watch(self.history, Trace(loop), DELAYS_MS)
        self.now_ms = 10_000
        self.stops = 0
        self.watch.stop = self._stop
        loop.close()

    def _stop(self) -> None:
        self.stops += 1

    def send(self, name: str, topic: str = "orders", **fields: object) -> Sent:
        """Return an acknowledged message."""
        sent = Sent(name, topic, "p", **fields)  # type: ignore[arg-type]
        self.history.send(sent, self.now_ms)
        self.history.acknowledge(sent, self.now_ms)
        return sent

    def begin(
        self, group: Group, sent: Sent, place: Place, member: str = "a", times: int = 0
    ) -> Attempt:
        """Begin an attempt to process a message."""
        attempt = Attempt(group.name, member, sent, place, times, self.now_ms)
        self.watch.begun(attempt)
        return attempt

    def end(self, attempt: Attempt, outcome: Outcome = Outcome.DONE) -> None:
        """End an attempt."""
        attempt.outcome = outcome
        attempt.ended_ms = self.now_ms
        self.watch.ended(attempt)

    def work(self, group: Group, sent: Sent, place: Place, **more: object) -> None:
        """Begin and end an attempt."""
        self.end(self.begin(group, sent, place, **more))  # type: ignore[arg-type]

    @property
    def violated(self) -> str:
        """Return the name of the first violated invariant."""
        return self.watch.violation.name if self.watch.violation is not None else ""


@pytest.fixture
def stage() -> Stage:
    return Stage()


def line(offset: int) -> Place:
    return "orders", 0, offset


def test_a_queue_in_order_is_fine(stage: Stage) -> None:
    for offset in range(5):
        sent = stage.send(f"m{offset}")
        stage.watch.stored_at(sent, line(offset))
        stage.work(LINE, sent, line(offset))
    assert stage.violated == ""
    stage.watch.check_consumed()
    assert stage.stops == 0


def test_a_message_before_its_turn(stage: Stage) -> None:
    stage.work(LINE, stage.send("m0"), line(0))
    stage.begin(LINE, stage.send("m2"), line(2))
    assert stage.violated == "order"
    assert stage.stops == 1


def test_a_failed_message_comes_again_in_its_place(stage: Stage) -> None:
    first = stage.send("m0")
    stage.end(stage.begin(LINE, first, line(0)), Outcome.FAILED)
    stage.work(LINE, first, line(0), times=1)
    assert stage.violated == ""
    stage.work(LINE, stage.send("m1"), line(1))
    assert stage.violated == ""


def test_going_back_while_all_is_calm(stage: Stage) -> None:
    sent = [stage.send(f"m{offset}") for offset in range(3)]
    stage.history.calm_ms = stage.now_ms
    for offset in (0, 1, 2, 0, 1, 2):
        stage.work(LINE, sent[offset], line(offset))
    assert stage.violated == ""
    stage.now_ms += 1
    stage.work(LINE, sent[1], line(1))
    assert stage.violated == ""
    stage.work(LINE, sent[0], line(0))
    assert stage.violated == "order"


def test_a_new_member_goes_back_when_no_lease_kept_it_waiting(stage: Stage) -> None:
    sent = [stage.send(f"m{offset}") for offset in range(2)]
    stage.history.calm_ms = stage.now_ms
    stage.work(LINE, sent[0], line(0))
    stage.now_ms += LEASE_MS
    stage.work(LINE, sent[1], line(1))
    stage.work(LINE, sent[0], line(0), member="b")
    assert stage.violated == ""
    stage.work(LINE, sent[1], line(1))
    stage.now_ms += 1
    stage.work(LINE, sent[1], line(1), member="b")
    stage.work(LINE, sent[0], line(0), member="c")
    assert stage.violated == "order"


def test_a_suffix_that_comes_again_has_no_gap(stage: Stage) -> None:
    sent = [stage.send(f"m{offset}") for offset in range(5)]
    stage.history.calm_ms = stage.now_ms
    for offset in (0, 1, 0, 1, 2):
        stage.work(LINE, sent[offset], line(offset))
    assert stage.violated == ""
    stage.begin(LINE, sent[4], line(4))
    assert stage.violated == "order"


def test_two_work_on_one_queue(stage: Stage) -> None:
    sent = stage.send("m0")
    stage.begin(LINE, sent, line(0), "a")
    stage.begin(LINE, sent, line(0), "b")
    assert stage.violated == "alone"


def test_who_was_cut_off_works_no_more(stage: Stage) -> None:
    sent = stage.send("m0")
    stage.end(stage.begin(LINE, sent, line(0), "a"), Outcome.CUT_OFF)
    stage.begin(LINE, sent, line(0), "b")
    assert stage.violated == ""


def test_a_place_holds_another_message(stage: Stage) -> None:
    stage.watch.stored_at(stage.send("m0"), line(0))
    stage.begin(LINE, stage.send("m1"), line(0))
    assert stage.violated == "place"


def test_a_later_message_lies_before_an_older(stage: Stage) -> None:
    stage.watch.stored_at(stage.send("m0"), line(1))
    stage.watch.stored_at(stage.send("m1"), line(0))
    assert stage.violated == "place"


@pytest.mark.parametrize("local", [Local.OPEN, Local.ROLLED_BACK])
def test_a_message_of_no_committed_transaction(stage: Stage, local: Local) -> None:
    sent = stage.send("m0", "events", local=Local.COMMITTED)
    stage.work(WORKERS, sent, ("events", 0, 0))
    assert stage.violated == ""
    stage.begin(WORKERS, stage.send("m1", "events", local=local), ("events", 0, 1))
    assert stage.violated == "transaction"


def failed(stage: Stage) -> Sent:
    sent = stage.send("m0", "events", fails=1)
    stage.end(stage.begin(WORKERS, sent, ("events", 0, 0)), Outcome.FAILED)
    return sent


@pytest.mark.parametrize(
    ("after_ms", "calm_after_ms", "violated"),
    [
        (2_999, 0, "retry delay"),
        (3_000, 0, ""),
        (3_000 + SLACK_MS, -1, ""),
        (3_001 + SLACK_MS, -1, "retry delay"),
        (3_001 + SLACK_MS, 1, ""),
    ],
)
def test_a_retry_comes_after_its_delay(
    stage: Stage, after_ms: int, calm_after_ms: int, violated: str
) -> None:
    sent = failed(stage)
    stage.history.calm_ms = stage.now_ms + calm_after_ms
    stage.now_ms += after_ms
    stage.begin(WORKERS, sent, (WORKERS.retry_topic, 0, 0), times=1)
    assert stage.violated == violated


def test_the_second_retry_has_the_next_delay(stage: Stage) -> None:
    sent = failed(stage)
    stage.now_ms += 3_000
    again = stage.begin(WORKERS, sent, (WORKERS.retry_topic, 0, 0), times=1)
    stage.end(again, Outcome.FAILED)
    stage.now_ms += 3_999
    stage.begin(WORKERS, sent, (WORKERS.retry_topic, 0, 1), times=2)
    assert stage.violated == "retry delay"


def test_a_retry_of_what_never_failed(stage: Stage) -> None:
    sent = stage.send("m0", "events")
    stage.work(WORKERS, sent, ("events", 0, 0))
    stage.begin(WORKERS, sent, (WORKERS.retry_topic, 0, 0), times=1)
    assert stage.violated == "retry delay"


def test_a_delayed_message_before_its_time(stage: Stage) -> None:
    sent = stage.send("m0", "events", delay_level=2)
    stage.now_ms += 1_999
    stage.begin(WORKERS, sent, ("events", 0, 0))
    assert stage.violated == "retry delay"


def test_a_message_that_nobody_finished(stage: Stage) -> None:
    stage.send("m0")
    stage.watch.check_consumed()
    assert stage.violated == "consumed"


def poison(stage: Stage, last_attempts: int) -> Sent:
    sent = stage.send("m0", "events", fails=POISON)
    stage.history.calm_ms = stage.now_ms + 1_000_000
    for times, count in ((0, 1), (1, last_attempts)):
        for number in range(count):
            topic = WORKERS.retry_topic if times else "events"
            attempt = stage.begin(WORKERS, sent, (topic, 0, number), times=times)
            stage.end(attempt, Outcome.FAILED)
            stage.now_ms += 5_000
    return sent


@pytest.mark.parametrize(
    ("last_attempts", "names", "violated"),
    [
        (1, ["m0"], ""),
        (2, ["m0", "m0"], ""),
        (1, ["m0", "m0"], "dead letters"),
        (1, [], "dead letters"),
        (1, ["m0", "other"], "dead letters"),
    ],
)
def test_dead_letters(stage: Stage, last_attempts: int, names: list[str], violated: str) -> None:
    poison(stage, last_attempts)
    stage.watch.check_dead(WORKERS, names)
    assert stage.violated == violated
    stage.watch.check_consumed()
    assert stage.violated == violated


def test_what_is_left_open(stage: Stage) -> None:
    stage.watch.check_settled(0, [])
    assert stage.violated == ""
    stage.watch.check_settled(1, [])
    assert stage.violated == "settled"


def test_offsets_that_are_behind(stage: Stage) -> None:
    stage.watch.check_settled(0, ["orders-0 at 1 of 2"])
    assert stage.violated == "settled"


def test_offsets_that_are_too_far(stage: Stage) -> None:
    stage.watch.check_offsets([])
    assert stage.violated == ""
    stage.watch.check_offsets(["line orders-0 at 3, the queue ends at 2"])
    assert stage.violated == "offsets"


def gone(*names: str) -> list[Stored]:
    return [Stored(100 * at, "orders", 0, at, name) for at, name in enumerate(names)]


@pytest.mark.parametrize(
    ("is_safe", "kept", "violated"),
    [(True, {"m1"}, "kept"), (True, {"m0", "m1"}, ""), (False, set(), "")],
)
def test_what_a_master_lost(stage: Stage, is_safe: bool, kept: set[str], violated: str) -> None:
    sent = stage.send("m0")
    stage.watch.stored_at(sent, line(0))
    stage.watch.lost(gone("m0", "op"), kept, is_safe=is_safe)
    assert stage.violated == violated
    assert stage.watch.has_losses
    assert sent.is_owed == is_safe


def test_a_place_that_was_lost_gets_another_message(stage: Stage) -> None:
    first, second = stage.send("m0"), stage.send("m1")
    stage.watch.stored_at(first, line(0))
    stage.watch.lost(gone("m0"), (), is_safe=False)
    stage.watch.locks_lost_ms = stage.now_ms
    stage.watch.stored_at(second, line(0))
    stage.begin(LINE, first, line(0), "a")
    # Locks were lost, too.
    stage.begin(LINE, second, line(0), "b")
    assert stage.violated == ""
    stage.watch.passed_over(gone("m1"))
    assert not second.is_owed
    stage.watch.stored_at(stage.send("m2"), line(0))
    assert stage.violated == "place"


def test_two_work_on_one_queue_long_after_a_loss(stage: Stage) -> None:
    stage.watch.locks_lost_ms = stage.now_ms
    stage.now_ms += LEASE_MS + 1
    sent = stage.send("m0")
    stage.begin(LINE, sent, line(0), "a")
    stage.begin(LINE, sent, line(0), "b")
    assert stage.violated == "alone"


def test_a_clock_that_jumped_excuses_what_was_delayed_before(stage: Stage) -> None:
    before = stage.send("m0", "events", delay_level=2)
    stage.now_ms += 10
    stage.watch.clock_jumped(stage.now_ms)
    stage.begin(WORKERS, before, ("events", 0, 0))
    assert stage.violated == ""
    stage.now_ms += 10
    after = stage.send("m1", "events", delay_level=2)
    stage.begin(WORKERS, after, ("events", 0, 1))
    assert stage.violated == "retry delay"
