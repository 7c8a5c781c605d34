"""Which messages wait, until when, and as what."""

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.scheduled.timers.rules import (
    TimerRules,
    drop_wishes,
    due_ms,
    is_recalled,
    out_ms,
    recall_key,
    rolled,
    wants_timer,
)
from cometmq.core.errors import BadRequest, MessageIllegal
from cometmq.message.ids import decode_recall
from cometmq.message.names import TIMER_TOPIC

NOW = 1_700_000_000_400
RULES = TimerRules(BrokerConfig())


@pytest.mark.parametrize(
    ("properties", "wants"),
    [
        ({}, False),
        ({"TIMER_DELAY_SEC": "1"}, True),
        ({"TIMER_DELAY_MS": "1"}, True),
        ({"TIMER_DELIVER_MS": "1"}, True),
        ({"TIMER_DELIVER_MS": "1", "TIMER_OUT_MS": "1"}, False),
        ({"TIMER_DEL_UNIQKEY": "t+k"}, False),
    ],
)
def test_who_wants_a_timer(properties: dict[str, str], wants: bool) -> None:
    assert wants_timer(properties) is wants


@pytest.mark.parametrize(
    ("wish", "slot", "due"),
    [
        ({"TIMER_DELAY_SEC": "2"}, 1_700_000_002_000, NOW + 2_000),
        ({"TIMER_DELAY_MS": "100"}, 1_700_000_000_000, NOW + 100),
        ({"TIMER_DELAY_MS": "600"}, 1_700_000_000_000, 1_700_000_001_000),
        ({"TIMER_DELAY_MS": "601"}, 1_700_000_001_000, 1_700_000_001_001),
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, 1_700_000_000_000, NOW + 1),
        ({"TIMER_DELIVER_MS": "1700000007000"}, 1_700_000_006_000, 1_700_000_007_000),
        ({"TIMER_DELIVER_MS": f"+{NOW + 1}"}, 1_700_000_000_000, NOW + 1),
        # Seconds win over milliseconds, and both over the moment, as upstream has it.
        (
            {"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "5", "TIMER_DELAY_SEC": "3"},
            1_700_000_003_000,
            NOW + 3_000,
        ),
    ],
)
def test_a_message_waits_in_its_second(wish: dict[str, str], slot: int, due: int) -> None:
    parked = RULES.place_for("t", 5, {"a": "b", **wish}, NOW)
    assert parked is not None
    topic, queue_id, properties = parked
    assert (topic, queue_id) == (TIMER_TOPIC, 0)
    assert properties == {
        "a": "b",
        **wish,
        "TIMER_OUT_MS": str(slot),
        "REAL_TOPIC": "t",
        "REAL_QID": "5",
    }
    assert out_ms(properties) == slot
    assert due_ms(properties, NOW) == due


@pytest.mark.parametrize(
    "wish",
    [
        {"TIMER_DELIVER_MS": str(NOW)},
        {"TIMER_DELIVER_MS": "5"},
        {"TIMER_DELAY_MS": "0"},
        {"TIMER_DELAY_SEC": "-5"},
    ],
)
def test_what_is_past_does_not_wait(wish: dict[str, str]) -> None:
    assert RULES.place_for("t", 0, wish, NOW) is None


@pytest.mark.parametrize(
    ("wish", "problem"),
    [
        ({"TIMER_DELAY_SEC": "259201"}, "max delay 259200000ms"),
        ({"TIMER_DELAY_SEC": "9" * 18}, "max delay"),
        ({"TIMER_DELIVER_MS": "x"}, "'x' is not a number of milliseconds"),
        ({"TIMER_DELAY_SEC": "1.5"}, "not a number of seconds"),
        ({"TIMER_DELAY_MS": "9" * 19}, "not a number"),
        ({"TIMER_DELIVER_MS": str(NOW), "TIMER_DEL_UNIQKEY": "t+k"}, "if set del msg"),
    ],
)
def test_times_that_cannot_be_are_refused(wish: dict[str, str], problem: str) -> None:
    with pytest.raises(MessageIllegal, match="timer message illegal") as caught:
        RULES.place_for("t", 0, wish, NOW)
    assert problem in str(caught.value)
    assert caught.value.code == 13


def test_the_longest_delay_and_the_switch_are_settings() -> None:
    config = BrokerConfig(timer_max_delay_sec=5)
    rules = TimerRules(config)
    assert rules.place_for("t", 0, {"TIMER_DELAY_SEC": "5"}, NOW) is not None
    with pytest.raises(MessageIllegal):
        rules.place_for("t", 0, {"TIMER_DELAY_SEC": "6"}, NOW)
    config.timer_wheel_enable = False
    with pytest.raises(BadRequest, match="timerWheelEnable is false"):
        rules.place_for("t", 0, {"TIMER_DELAY_SEC": "5"}, NOW)


def test_a_store_time_off_by_a_turn_stays_within_the_second() -> None:
    waiting = {"TIMER_DELAY_MS": "600", "TIMER_OUT_MS": "1700000000000"}
    assert due_ms(waiting, NOW + 30) == 1_700_000_001_000
    assert due_ms(waiting, NOW - 1_000) == 1_700_000_000_001


def test_what_says_no_time_is_due_at_the_end_of_its_second() -> None:
    assert due_ms({"TIMER_OUT_MS": "1000"}, NOW) == 2_000
    assert due_ms({"TIMER_OUT_MS": "1000", "TIMER_DELIVER_MS": "x"}, NOW) == 2_000
    assert due_ms({}, NOW) is None
    assert due_ms({"TIMER_OUT_MS": "-1"}, NOW) is None


def test_a_rolled_message_keeps_its_second() -> None:
    waiting = {"TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": "5000"}
    once = rolled(waiting)
    assert once == {**waiting, "TIMER_ROLL_TIMES": "1"}
    assert rolled(once)["TIMER_ROLL_TIMES"] == "2"
    assert rolled({"TIMER_ROLL_TIMES": "x"})["TIMER_ROLL_TIMES"] == "1"
    assert due_ms(once, NOW) == 6_000
    moment = rolled({"TIMER_DELIVER_MS": "5400", "TIMER_OUT_MS": "5000"})
    assert due_ms(moment, NOW) == 5_400


def test_a_recall_is_due_before_what_it_is_for() -> None:
    waiting = {"TIMER_DEL_UNIQKEY": "t+k", "TIMER_OUT_MS": "5000", "TIMER_DELIVER_MS": "5001"}
    assert due_ms(waiting, NOW) == 5_000
    target = {"REAL_TOPIC": "t", "UNIQ_KEY": "k"}
    assert is_recalled(target, {recall_key("t", "k"): 1})
    assert not is_recalled(target, {recall_key("other", "k"): 1})
    assert is_recalled(target, {"k": 1})
    assert not is_recalled({"REAL_TOPIC": "t"}, {recall_key("t", "k"): 1})


def test_a_recall_is_of_the_topic_that_it_was_sent_to() -> None:
    """Who may send to a topic need not be allowed to keep another topic's messages back."""
    wish = {"TIMER_DELIVER_MS": str(NOW + 5_000)}
    for named in ("t+k", "k"):
        parked = RULES.place_for("t", 0, {**wish, "TIMER_DEL_UNIQKEY": named}, NOW)
        assert parked is not None
        assert parked[2]["TIMER_DEL_UNIQKEY"] == "t+k"
    with pytest.raises(MessageIllegal, match="cannot recall 'u\\+k'"):
        RULES.place_for("t", 0, {**wish, "TIMER_DEL_UNIQKEY": "u+k"}, NOW)


def test_a_delay_level_takes_the_wishes_out() -> None:
    properties = {"DELAY": "1", "TIMER_DELAY_SEC": "1", "TIMER_DELIVER_MS": "1", "a": "b"}
    drop_wishes(properties)
    assert properties == {"DELAY": "1", "a": "b"}


def test_a_parked_message_has_a_recall_handle() -> None:
    parked = RULES.place_for("t", 0, {"TIMER_DELAY_SEC": "2", "UNIQ_KEY": "k"}, NOW)
    assert parked is not None
    text = RULES.recall_handle(parked[2])
    assert text is not None
    assert decode_recall(text) == ("t", "broker-a", 1_700_000_002_001, "k")
    for change in ({"UNIQ_KEY": None}, {"REAL_TOPIC": "%RETRY%g"}, {"TIMER_DEL_UNIQKEY": "t+k"}):
        changed = {k: v for k, v in {**parked[2], **change}.items() if v is not None}
        assert RULES.recall_handle(changed) is None
    assert RULES.recall_handle({"UNIQ_KEY": "k"}) is None
