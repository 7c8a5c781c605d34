"""What stands in a checkpoint."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.model import MessageQueue
from cometmq.spark.read.checkpoint import BadOffset, StreamOffset, from_json, key_of, queue_of

QUEUES = st.builds(
    MessageQueue,
    st.text("abAB|%-_09", min_size=1),
    st.text("abAB-_09.", min_size=1),
    st.integers(0, 2000),
)
VECTORS = st.dictionaries(QUEUES, st.integers(0, 2**62), max_size=6)


@given(QUEUES)
def test_keys_come_back(queue: MessageQueue) -> None:
    assert queue_of(key_of(queue)) == queue


@given(VECTORS, st.booleans(), st.none() | VECTORS)
def test_offsets_come_back(
    queues: dict[MessageQueue, int], is_first: bool, origin: dict[MessageQueue, int] | None
) -> None:
    offset = StreamOffset(queues, is_first, origin)
    assert from_json(json.loads(json.dumps(offset.to_json()))) == offset


@given(VECTORS)
def test_equal_offsets_are_equal_text(queues: dict[MessageQueue, int]) -> None:
    turned = dict(reversed(queues.items()))
    assert json.dumps(StreamOffset(turned).to_json()) == json.dumps(StreamOffset(queues).to_json())


def test_the_form_is_fixed() -> None:
    queues = {MessageQueue("TopicX", "broker-a", 10): 7, MessageQueue("TopicX", "broker-a", 0): 123}
    assert json.dumps(StreamOffset(queues).to_json()) == (
        '{"v": 1, "q": {"broker-a|TopicX|0": 123, "broker-a|TopicX|10": 7}}'
    )


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"v": 2, "q": {}},
        {"v": 1},
        {"v": 1, "q": {"broker-a|TopicX": 1}},
        {"v": 1, "q": {"broker-a|TopicX|x": 1}},
        {"v": 1, "q": {"broker-a|TopicX|0": "1"}},
        {"v": 1, "q": {"broker-a|TopicX|0": -1}},
        {"v": 1, "q": {"broker-a|TopicX|0": True}},
        {"v": 1, "q": {}, "from": 3},
    ],
)
def test_other_forms_are_refused(found: dict[str, object]) -> None:
    with pytest.raises(BadOffset):
        from_json(found)


def test_what_lies_behind_an_end_is_kept() -> None:
    queue = MessageQueue("T", "b", 0)
    offset = StreamOffset({queue: 5}, reached={queue: 9})
    assert offset.to_json() == {"v": 1, "q": {"b|T|0": 5}, "to": {"b|T|0": 9}}
    assert from_json(offset.to_json()) == offset
