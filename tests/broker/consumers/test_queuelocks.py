"""Leases on queues."""

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.consumers.queuelocks import (
    LEASE_MS,
    PURGE_EVERY,
    RESUMED_LEASE_MS,
    QueueLockHandler,
    QueueLocks,
)
from cometmq.broker.tables import TableDirectory
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.net.limits import Limit
from cometmq.net.tasks import Tasks
from cometmq.protocol.bodies import QueueKey, QueueLockRequest, QueueLockResponse
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json
from tests.broker.world import answer, connect, request
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles

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


def test_queues_that_nobody_has_take_bounded_memory() -> None:
    locks = QueueLocks(leases_max=3)
    assert locks.lock("g", "a", QUEUES, 0) == QUEUES[:3]
    assert locks.lock("h", "b", QUEUES[:1], 1) == []
    assert locks.lock("g", "a", QUEUES, 2) == QUEUES[:3], "a renewal needs no room"
    locks.unlock("g", "a", QUEUES[:1])
    assert locks.lock("h", "b", QUEUES, 3) == QUEUES[:1]
    assert len(locks) == 3
    assert locks.lock("h", "b", QUEUES[1:], 3 + LEASE_MS) == QUEUES[1:], "those before have ended"
    assert len(locks) == 3


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


class Machine:
    """A broker's locks on a disk in memory, one process after the other."""

    def __init__(self) -> None:
        self.disk, self.clock = Disk(), VirtualClock()
        self.files = MemoryFiles(self.disk, self.clock, Random(1))
        self.tasks = Tasks()

    async def start(self) -> QueueLockHandler:
        """A new process."""
        self.files = MemoryFiles(self.disk, self.clock, Random(1))
        self.tasks = Tasks()
        made = QueueLockHandler(TableDirectory("/c", self.clock, self.tasks, self.files))
        made.load()
        await made.saved()
        return made

    async def kill(self) -> None:
        """End it."""
        self.files.end()
        await self.tasks.close()

    async def ask(self, locks: QueueLockHandler, client: str) -> list[QueueKey]:
        """The queues that a client gets; [] also for a refusal."""
        peer = connect()
        body = encode_json(QueueLockRequest("g", client, QUEUES))
        lock = locks.handlers()[RequestCode.LOCK_BATCH_MQ]
        reply = lock(peer, request(RequestCode.LOCK_BATCH_MQ, body=body))
        found = await answer(peer, reply)
        if found.code:
            return []
        assert self.disk.find("/c/queueLocks.json") is not None
        return parse_json(found.body, QueueLockResponse).lock_ok_mq_set


async def test_requests_lock_and_unlock() -> None:
    machine = Machine()
    locks = await machine.start()
    assert await machine.ask(locks, "a") == QUEUES
    assert await machine.ask(locks, "b") == []
    body = encode_json(QueueLockRequest("g", "a", QUEUES))
    locks.handlers()[RequestCode.UNLOCK_BATCH_MQ](
        connect(), request(RequestCode.UNLOCK_BATCH_MQ, body=body)
    )
    assert await machine.ask(locks, "b") == QUEUES
    await machine.kill()


async def test_many_leases_are_written_in_pieces_and_all_of_them_hold() -> None:
    machine = Machine()
    locks = await machine.start()
    many = [QueueKey("t", "b", number) for number in range(600)]
    peer = connect()
    for group in ("g", "h"):
        body = encode_json(QueueLockRequest(group, "a", many))
        reply = locks.lock(peer, request(RequestCode.LOCK_BATCH_MQ, body=body))
        assert (reply, peer.running_tasks) == (None, 1), "it counts while it waits for the disk"
        assert (await answer(peer, reply)).code == 0
        assert peer.running_tasks == 0
    assert max(map(len, locks._encode())) < 256 * 100
    await machine.kill()
    locks = await machine.start()
    for group in ("g", "h"):
        body = encode_json(QueueLockRequest(group, "b", many))
        found = await answer(peer, locks.lock(peer, request(RequestCode.LOCK_BATCH_MQ, body=body)))
        assert parse_json(found.body, QueueLockResponse).lock_ok_mq_set == []
    await machine.kill()


async def test_who_finds_no_room_is_told_the_queues_that_it_has() -> None:
    machine = Machine()
    tasks = Tasks()
    directory = TableDirectory("/c", machine.clock, tasks, machine.files)
    locks = QueueLockHandler(directory, QueueLocks(leases_max=1))
    peer = connect()
    body = encode_json(QueueLockRequest("g", "a", QUEUES))
    found = await answer(peer, locks.lock(peer, request(RequestCode.LOCK_BATCH_MQ, body=body)))
    assert parse_json(found.body, QueueLockResponse).lock_ok_mq_set == QUEUES[:1]
    assert peer.limits.hits[Limit.QUEUE_LOCKS] == 1
    await tasks.close()


@pytest.mark.parametrize(
    "body",
    [
        QueueLockRequest("g" * 256, "a", QUEUES),
        QueueLockRequest("g", "a" * 1_025, QUEUES),
        QueueLockRequest("g", "a", [QueueKey("t" * 256, "b", 0)]),
        QueueLockRequest("g", "a", [QueueKey("t", "b" * 256, 0)]),
    ],
)
async def test_names_that_nobody_has_are_not_kept(body: QueueLockRequest) -> None:
    machine = Machine()
    locks = await machine.start()
    with pytest.raises(BadRequest, match="1024 are allowed"):
        locks.lock(connect(), request(RequestCode.LOCK_BATCH_MQ, body=encode_json(body)))
    await machine.kill()


async def stopped_while_held() -> Machine:
    """A machine whose broker stopped in order while "a" held all queues."""
    machine = Machine()
    locks = await machine.start()
    assert await machine.ask(locks, "a") == QUEUES
    await locks.close()
    await machine.kill()
    return machine


async def test_a_killed_broker_gives_a_queue_to_nobody_else() -> None:
    machine = Machine()
    locks = await machine.start()
    assert await machine.ask(locks, "a") == QUEUES
    await machine.kill()
    locks = await machine.start()
    assert await machine.ask(locks, "b") == []
    assert await machine.ask(locks, "a") == QUEUES
    machine.clock.advance(RESUMED_LEASE_MS)
    assert await machine.ask(locks, "b") == []
    await machine.kill()
    locks = await machine.start()
    machine.clock.advance(RESUMED_LEASE_MS)
    assert await machine.ask(locks, "b") == QUEUES
    await machine.kill()


async def test_who_was_told_that_it_holds_a_queue_holds_it_after_a_power_cut() -> None:
    for seed in range(20):
        machine = Machine()
        locks = await machine.start()
        assert await machine.ask(locks, "a") == QUEUES
        await machine.kill()
        machine.disk.lose_power(Random(seed))
        locks = await machine.start()
        assert await machine.ask(locks, "b") == []
        await machine.kill()


async def test_the_time_since_a_stop_counts() -> None:
    machine = await stopped_while_held()
    machine.clock.advance(RESUMED_LEASE_MS - 1)
    locks = await machine.start()
    assert await machine.ask(locks, "b") == []
    # This start has not been stopped: what was written then counts no more.
    await machine.kill()
    machine.clock.advance(RESUMED_LEASE_MS)
    locks = await machine.start()
    assert await machine.ask(locks, "b") == []
    await locks.close()
    await machine.kill()
    machine.clock.advance(RESUMED_LEASE_MS)
    locks = await machine.start()
    assert await machine.ask(locks, "b") == QUEUES
    await machine.kill()


async def test_a_wall_clock_that_is_set_ends_no_lease() -> None:
    machine = await stopped_while_held()
    machine.clock.jump_wall(3_700_000)
    assert await machine.ask(await machine.start(), "b") == []
    await machine.kill()


async def test_how_long_a_machine_was_off_is_not_known() -> None:
    machine = await stopped_while_held()
    machine.disk.lose_power(Random(0))
    machine.clock.advance(RESUMED_LEASE_MS - 1)
    locks = await machine.start()
    machine.clock.advance(RESUMED_LEASE_MS - 1)
    assert await machine.ask(locks, "b") == []
    await machine.kill()


async def test_queues_that_were_given_back_are_free_after_a_restart() -> None:
    machine = Machine()
    locks = await machine.start()
    assert await machine.ask(locks, "a") == QUEUES
    body = encode_json(QueueLockRequest("g", "a", QUEUES))
    locks.unlock(connect(), request(RequestCode.UNLOCK_BATCH_MQ, body=body))
    await locks.saved()
    await machine.kill()
    assert await machine.ask(await machine.start(), "b") == QUEUES
    await machine.kill()


async def test_a_lease_that_cannot_be_written_is_refused() -> None:
    machine = Machine()
    locks = await machine.start()
    machine.files.faults.append(Fault("pwrite", errno.ENOSPC, 1, "queueLocks"))
    assert await machine.ask(locks, "a") == []
    assert await machine.ask(locks, "a") == QUEUES
    await machine.kill()


async def test_locks_that_cannot_be_read_are_lost_and_the_broker_starts() -> None:
    machine = Machine()
    locks = await machine.start()
    assert await machine.ask(locks, "a") == QUEUES
    await machine.kill()
    handle = MemoryFiles(machine.disk, machine.clock, Random(1)).open("/c/queueLocks.json")
    assert handle
    node = machine.disk.find("/c/queueLocks.json")
    node.resize(3)  # type: ignore[union-attr]
    assert await machine.ask(await machine.start(), "b") == QUEUES
    await machine.kill()


async def test_a_broker_without_ordered_consumers_has_no_file() -> None:
    machine = Machine()
    locks = await machine.start()
    await locks.close()
    assert machine.disk.find("/c/queueLocks.json") is None
    await machine.kill()
