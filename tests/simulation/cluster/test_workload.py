"""Messages that producers send."""

from collections import Counter
from random import Random

from tests.simulation.cluster.history import POISON, Local
from tests.simulation.cluster.workload import LINE, WORKERS, Workload, no_message


def test_every_kind_of_message_is_sent() -> None:
    workload = Workload(Random(1), (WORKERS, LINE))
    found = [workload.next_message() for _ in range(1_000)]
    messages = [each for each in found if each is not None]
    assert len({sent.name for sent, _ in messages}) == 1_000
    kinds: Counter[str] = Counter()
    for sent, order_key in messages:
        kinds[sent.topic] += 1
        kinds["failing"] += sent.fails > 0
        kinds["poison"] += sent.fails == POISON
        kinds["delayed"] += sent.delay_level > 0
        kinds["transaction"] += sent.local is Local.OPEN
        assert (order_key is not None) == (sent.topic == "orders")
        assert sent.topic == "events" or sent.fails != POISON
    assert min(kinds.values()) > 5
    assert workload.pauses_ms()


def test_it_ends() -> None:
    workload = Workload(Random(1), (WORKERS,))
    workload.ended = True
    assert workload.next_message() is None
    no_message()
