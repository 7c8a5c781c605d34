"""Leases on queues."""

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.queuelocks import LEASE_MS, PURGE_EVERY, QueueLockHandler, QueueLocks
from cometmq.core.clock import VirtualClock
from cometmq.protocol.bodies import QueueKey, QueueLockRequest, QueueLockResponse
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json
from tests.broker.world import connect, request

QUEUES = [QueueKey("t", "b", number) for number in range(4)]


def test_a_queue_has_one_holder() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "a", QUEUES[:2], 0) == QUEUES[:2]
    assert locks.lock("g", "b", QUEUES, 1) == QUEUES[2:]
    assert locks.lock("other", "b", QUEUES, 1) == QUEUES
    assert locks.holder("g", QUEUES[0], 1) == "a"


def test_a_lease_ends_unless_it_is_renewed() -> None:
    locks = QueueLocks()
    locks.lock("g", "a", QUEUES[:2], 0)
    locks.lock("g", "a", QUEUES[:1], 30_000)
    assert locks.lock("g", "b", QUEUES[:2], LEASE_MS) == QUEUES[1:2]
    assert locks.holder("g", QUEUES[0], 30_000 + LEASE_MS) is None


def test_only_the_holder_gives_back() -> None:
    locks = QueueLocks()
    locks.lock("g", "a", QUEUES, 0)
    locks.unlock("g", "b", QUEUES)
    locks.unlock("none", "b", QUEUES)
    assert locks.lock("g", "b", QUEUES, 1) == []
    locks.unlock("g", "a", QUEUES)
    assert locks.lock("g", "b", QUEUES, 1) == QUEUES


def test_made_up_names_leave_nothing_behind() -> None:
    locks = QueueLocks()
    locks.lock("empty", "a", [], 0)
    for number in range(3 * PURGE_EVERY):
        locks.lock(f"g{number}", "a", QUEUES[:1], number * 60)
    assert 1 <= len(locks) <= PURGE_EVERY + LEASE_MS // 60 + 1
    assert locks.lock(f"g{3 * PURGE_EVERY - 1}", "b", QUEUES[:1], 3 * PURGE_EVERY * 60) == []


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans(), st.integers(0, 40_000))
    )
)
def test_two_clients_never_hold_a_queue(steps: list[tuple[str, int, bool, int]]) -> None:
    locks = QueueLocks()
    now_ms = 0
    believed: dict[int, tuple[str, int]] = {}
    for client, number, takes, pause_ms in steps:
        now_ms += pause_ms
        queue = QUEUES[number]
        holder = believed.get(number)
        free = holder is None or holder[1] <= now_ms or holder[0] == client
        if takes:
            assert locks.lock("g", client, [queue], now_ms) == ([queue] if free else [])
            if free:
                believed[number] = (client, now_ms + LEASE_MS)
        else:
            locks.unlock("g", client, [queue])
            if holder is not None and holder[0] == client:
                del believed[number]


def test_requests_lock_and_unlock() -> None:
    clock = VirtualClock()
    handlers = QueueLockHandler(clock=clock).handlers()
    lock, unlock = handlers[RequestCode.LOCK_BATCH_MQ], handlers[RequestCode.UNLOCK_BATCH_MQ]

    def ask(client: str) -> list[QueueKey]:
        body = encode_json(QueueLockRequest("g", client, QUEUES))
        reply = lock(connect(), request(RequestCode.LOCK_BATCH_MQ, body=body))
        assert reply is not None
        assert not hasattr(reply, "send")
        return parse_json(reply.body, QueueLockResponse).lock_ok_mq_set

    assert ask("a") == QUEUES
    assert ask("b") == []
    body = encode_json(QueueLockRequest("g", "a", QUEUES))
    unlock(connect(), request(RequestCode.UNLOCK_BATCH_MQ, body=body))
    assert ask("b") == QUEUES
