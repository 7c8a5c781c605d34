"""Unexpected errors."""

import logging
import random

from tests.simulation.cluster.history import History
from tests.simulation.cluster.invariants import Watch
from tests.simulation.cluster.loop import Process, SimLoop
from tests.simulation.cluster.surprises import Surprises, quiet
from tests.simulation.cluster.trace import Trace

log = logging.getLogger("cometmq.broker.test")


def fail(message: str) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        log.exception(message)


def problem_of(watch: Watch) -> str:
    return str(watch.violation)


def test_a_logged_traceback_of_a_living_process_is_a_surprise() -> None:
    loop, process = SimLoop(), Process("p", "127.0.0.1")
    watch = Watch(History(), Trace(loop), ())
    with quiet(), Surprises(watch):
        process.context.run(log.warning, "nothing")
        process.context.run(log.error, "it refused")
        fail("of nobody")
        assert problem_of(watch) == "None"
        process.context.run(fail, "it broke")
    assert "p: it broke: ValueError('why')" in problem_of(watch)
    loop.close()


def test_an_ended_process_surprises_nobody() -> None:
    loop, process = SimLoop(), Process("p", "127.0.0.1")
    watch = Watch(History(), Trace(loop), ())
    with quiet(), Surprises(watch):
        process.end()
        process.context.run(fail, "it broke")
    assert watch.violation is None
    fail("after it all")
    assert watch.violation is None
    loop.close()


def test_others_have_their_random_numbers_and_logs_as_before() -> None:
    state, disabled = random.getstate(), logging.root.manager.disable
    with quiet():
        random.seed(5)
        assert not log.isEnabledFor(logging.WARNING)
    assert random.getstate() == state
    assert logging.root.manager.disable == disabled
    assert logging.getLogger("cometmq").propagate
