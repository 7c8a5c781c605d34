"""The history knows which messages each group must still process."""

from tests.simulation.cluster.history import POISON, Attempt, Group, History, Local, Outcome, Sent

GROUP = Group("workers", ("events",), max_times=2)


def history_of(*sent: Sent) -> History:
    history = History(groups={GROUP.name: GROUP})
    for each in sent:
        history.send(each, 1)
    return history


def attempt(history: History, sent: Sent, outcome: Outcome) -> Attempt:
    made = Attempt(GROUP.name, "w-1", sent, ("events", 0, 3), 0, 5)
    history.begin(made)
    made.outcome = outcome
    history.end(made)
    return made


def test_an_acknowledged_message_is_owed_until_it_is_done() -> None:
    sent = Sent("m1", "events")
    history = history_of(sent, Sent("m2", "elsewhere"))
    assert list(history.owed()) == []
    history.acknowledge(sent, 2)
    assert list(history.owed()) == [(GROUP, sent)]
    attempt(history, sent, Outcome.FAILED)
    attempt(history, sent, Outcome.CUT_OFF)
    assert list(history.owed()) == [(GROUP, sent)]
    attempt(history, sent, Outcome.DONE)
    assert list(history.owed()) == []
    assert (history.acknowledged, history.operations) == (1, 5)


def test_a_transaction_is_owed_when_it_was_committed() -> None:
    sent = Sent("m1", "events", local=Local.OPEN)
    history = history_of(sent)
    history.acknowledge(sent, 2)
    assert list(history.owed()) == []
    sent.local = Local.ROLLED_BACK
    assert list(history.owed()) == []
    sent.local = Local.COMMITTED
    assert list(history.owed()) == [(GROUP, sent)]
    assert "committed" in str(sent)


def test_work_fails_as_often_as_it_should() -> None:
    once, poison = Sent("m1", "events", fails=1), Sent("m2", "events", fails=POISON)
    history = history_of(once, poison)
    history.acknowledge(poison, 2)
    assert history.fails_now(GROUP.name, once)
    attempt(history, once, Outcome.CUT_OFF)
    assert history.fails_now(GROUP.name, once)
    attempt(history, once, Outcome.FAILED)
    assert not history.fails_now(GROUP.name, once)
    for _ in range(5):
        attempt(history, poison, Outcome.FAILED)
    assert history.fails_now(GROUP.name, poison)
    assert list(history.owed()) == []
    assert history.poisonous(GROUP) == [poison]
