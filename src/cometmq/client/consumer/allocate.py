"""Strategies that allocate the queues of a topic to the members of a group. No I/O.

All members of a group, including Java clients, must use the same strategy and the same list of
client ids (upstream: rebalance/AllocateMessageQueue*).

A strategy is a function that takes a :class:`Group` and returns the queues of this member. Users
may pass their own function, as long as all members use it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.message.names import Namespace


@dataclass(frozen=True, slots=True)
class Group:
    """Input of a strategy: a group and the queues of one topic.

    ``queues`` and ``members`` (client ids) are in an order that is the same for all members. ``me``
    is one of the members.
    """

    name: str
    topic: str
    queues: tuple[MessageQueue, ...]
    members: tuple[str, ...]
    me: str

    @property
    def index(self) -> int:
        """Index of this member in ``members``."""
        return self.members.index(self.me)


Strategy = Callable[[Group], Iterable["MessageQueue"]]


def share(
    strategy: Strategy,
    group: str,
    topic: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
    client_id: str,
) -> list[MessageQueue]:
    """Return the queues of ``topic`` that ``strategy`` allocates to ``client_id``, sorted.

    A client that is not among ``client_ids`` gets no queues. Queues that are not in ``queues`` are
    ignored.
    """
    members = tuple(sorted(set(client_ids), key=_java_order))
    ordered = tuple(sorted(queues))
    if client_id not in members or not ordered:
        return []
    given = set(strategy(Group(group, topic, ordered, members, client_id)))
    return [queue for queue in ordered if queue in given]


def average(group: Group) -> tuple[MessageQueue, ...]:
    """Allocate contiguous shares whose sizes differ by at most one.

    Earlier members get the larger shares.
    """
    size, rest = divmod(len(group.queues), len(group.members))
    start = group.index * size + min(group.index, rest)
    return group.queues[start : start + size + (group.index < rest)]


def circle(group: Group) -> tuple[MessageQueue, ...]:
    """Allocate queues in turn, so that each member gets queues of every broker."""
    return group.queues[group.index :: len(group.members)]


@dataclass(frozen=True, slots=True)
class ByConfig:
    """Fixed allocation: this member reads ``queues``. Other members must be set to read the rest.

    Topics without a queue in ``queues``, such as the group's retry topic, use :func:`average`.
    """

    queues: frozenset[MessageQueue]

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        object.__setattr__(self, "queues", frozenset(queues))

    def __call__(self, group: Group) -> Iterable[MessageQueue]:
        named = [queue for queue in self.queues if queue.topic == group.topic]
        return named or average(group)

    def wrapped(self, namespace: Namespace) -> ByConfig:
        """Return the strategy with the broker names of its topics."""
        return ByConfig(map(namespace.wrap_queue, self.queues))


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Allocation by a hash ring: when a member joins or leaves, only its neighbours' queues move.

    Each member has ``virtual_nodes`` points on the ring.
    """

    virtual_nodes: int = 10

    def __call__(self, group: Group) -> list[MessageQueue]:
        owners = {
            ring_hash(f"{member}-{number}"): member
            for member in group.members
            for number in range(self.virtual_nodes)
        }
        ring = sorted(owners)
        return [queue for queue in group.queues if owners[_next(ring, _name(queue))] == group.me]


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Allocation of the queues in ``rooms``; this group does not read other queues.

    Broker names have the form ``room@broker``.
    """

    rooms: frozenset[str]

    def __init__(self, rooms: Iterable[str]) -> None:
        object.__setattr__(self, "rooms", frozenset(rooms))

    def __call__(self, group: Group) -> list[MessageQueue]:
        near = [queue for queue in group.queues if _room(queue.broker_name) in self.rooms]
        size, rest = divmod(len(near), len(group.members))
        start = group.index * size
        left_over = len(group.members) * size + group.index
        return near[start : start + size] + near[left_over : left_over + (group.index < rest)]


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Allocation by room: members share the queues of their own room with the strategy ``inner``.

    All members share the queues of rooms without a member. ``room_of_broker`` takes a broker name,
    ``room_of_member`` a client id.
    """

    room_of_broker: Callable[[str], str]
    room_of_member: Callable[[str], str]
    inner: Strategy = average

    def __call__(self, group: Group) -> list[MessageQueue]:
        mine = self.room_of_member(group.me)
        members: dict[str, list[str]] = {}
        for member in group.members:
            members.setdefault(self.room_of_member(member), []).append(member)
        queues: dict[str, list[MessageQueue]] = {}
        for queue in group.queues:
            queues.setdefault(self.room_of_broker(queue.broker_name), []).append(queue)
        found: list[MessageQueue] = []
        for room, lying in sorted(queues.items()):
            if room == mine or room not in members:
                sharing = tuple(members.get(room, group.members))
                found += self.inner(replace(group, queues=tuple(lying), members=sharing))
        return found


#: Strategies by the names that a subscription accepts.
NAMED: Final[dict[str, Strategy]] = {
    "average": average,
    "circle": circle,
    "consistent-hash": ConsistentHash(),
}


def ring_hash(text: str) -> int:
    """Return the first four bytes of the MD5 digest (upstream: ConsistentHashRouter.MD5Hash)."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _next(ring: list[int], name: str) -> int:
    """Return the first point of the ring at or after a name's hash; the ring wraps around."""
    return ring[bisect_left(ring, ring_hash(name)) % len(ring)]


def _name(queue: MessageQueue) -> str:
    """Return the text of a queue as in Java's toString, which both clients hash."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _room(broker_name: str) -> str | None:
    room, separator, rest = broker_name.partition("@")
    return room if separator and rest and "@" not in rest else None


def _java_order(text: str) -> bytes:
    """Return a sort key that orders text as Java does, by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
