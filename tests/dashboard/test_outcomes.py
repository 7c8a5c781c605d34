"""What changes came to, until a page has shown it."""

from __future__ import annotations

from cometmq.dashboard.accounts import OUTCOMES_MAX, Outcomes


def test_an_outcome_is_taken_once() -> None:
    outcomes = Outcomes()
    token = outcomes.keep([1])
    assert outcomes.take("", list) is None
    assert outcomes.take(token, list) == [1]
    assert outcomes.take(token, list) is None


def test_an_outcome_of_another_page_is_not_shown() -> None:
    outcomes = Outcomes()
    assert outcomes.take(outcomes.keep([1]), dict) is None


def test_outcomes_that_nobody_takes_have_a_bound() -> None:
    outcomes = Outcomes()
    tokens = [outcomes.keep([number]) for number in range(OUTCOMES_MAX + 1)]
    assert outcomes.take(tokens[0], list) is None
    assert outcomes.take(tokens[1], list) == [1]
