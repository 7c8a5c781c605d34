"""Queues as bodies carry them."""

from __future__ import annotations

import pytest

from cometmq.client.routes import by_queue, key_of, queue_of
from cometmq.core.errors import CometError
from cometmq.message.model import MessageQueue

QUEUE = MessageQueue("t", "a", 3)


def test_a_queue_and_back() -> None:
    assert queue_of(key_of(QUEUE)) == QUEUE


def test_tables_by_queue() -> None:
    assert by_queue({'{"topic":"t","brokerName":"a","queueId":3}': 7}) == {QUEUE: 7}


@pytest.mark.parametrize("key", ["", "x", "{}", '{"topic":"t","brokerName":"a","queueId":-1}'])
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(CometError):
        by_queue({key: 7})
