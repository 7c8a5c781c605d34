"""Which queues of a topic each member of a group gets. Pure; all members of a group must use the
same strategy and see the same ids, Java's among them (upstream: rebalance/AllocateMessageQueue*).

A strategy is a function of a :class:`Group` that gives this member's queues; any function of one's
own will do, as long as its members agree.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.client.namespace import Namespace
    from cometmq.message.model import MessageQueue


@dataclass(frozen=True, slots=True)
class Group:
    """A group before the queues of one topic: ``queues`` and ``members`` (client ids) stand in the
    order on which all members agree; ``me`` is one of them."""

    name: str
    topic: str
    queues: tuple[MessageQueue, ...]
    members: tuple[str, ...]
    me: str

    @property
    def index(self) -> int:
        """This member's place among all."""
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
    """The queues of ``topic`` that ``strategy`` gives to one member, in their common order.

    A client that is not among ``client_ids`` gets nothing, and nobody gets what the topic does not
    have.
    """
    members = tuple(sorted(set(client_ids), key=_java_order))
    ordered = tuple(sorted(queues))
    if client_id not in members or not ordered:
        return []
    given = set(strategy(Group(group, topic, ordered, members, client_id)))
    return [queue for queue in ordered if queue in given]


def average(group: Group) -> tuple[MessageQueue, ...]:
    """Contiguous shares, sizes differing by at most one, earlier members getting the larger
    ones."""
    size, rest = divmod(len(group.queues), len(group.members))
    start = group.index * size + min(group.index, rest)
    return group.queues[start : start + size + (group.index < rest)]


def circle(group: Group) -> tuple[MessageQueue, ...]:
    """Queues are dealt out one by one, so that each member gets some of every broker."""
    return group.queues[group.index :: len(group.members)]


@dataclass(frozen=True, slots=True)
class ByConfig:
    """This member reads ``queues``; who reads the others is for the other members to say. Topics
    that it names no queue of, such as the group's retry topic, are shared on average."""

    queues: frozenset[MessageQueue]

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        object.__setattr__(self, "queues", frozenset(queues))

    def __call__(self, group: Group) -> Iterable[MessageQueue]:
        named = [queue for queue in self.queues if queue.topic == group.topic]
        return named or average(group)

    def wrapped(self, namespace: Namespace) -> ByConfig:
        """The same with brokers' names."""
        return ByConfig(map(namespace.wrap_queue, self.queues))


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Members and queues lie on a ring of hashes: when a member comes or goes, only the queues next
    to it move. Each member lies there at ``virtual_nodes`` places."""

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
    """Brokers are named ``room@broker``; queues of the ``rooms`` are shared, others are read by
    nobody here."""

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
    """Members read the queues of their own room, shared by ``inner``; rooms without a member are
    shared by all. The functions say in which room a broker (its name) and a member (its client id)
    are."""

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


#: Strategies by the names that a subscription takes.
NAMED: Final[dict[str, Strategy]] = {
    "average": average,
    "circle": circle,
    "consistent-hash": ConsistentHash(),
}


def ring_hash(text: str) -> int:
    """The first four bytes of the MD5 digest (upstream: ConsistentHashRouter.MD5Hash)."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _next(ring: list[int], name: str) -> int:
    """The place on the ring at or behind a name's hash; behind the last comes the first."""
    return ring[bisect_left(ring, ring_hash(name)) % len(ring)]


def _name(queue: MessageQueue) -> str:
    """A queue as Java prints it, which is what both sides hash."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _room(broker_name: str) -> str | None:
    room, separator, rest = broker_name.partition("@")
    return room if separator and rest and "@" not in rest else None


def _java_order(text: str) -> bytes:
    """Java compares text by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
