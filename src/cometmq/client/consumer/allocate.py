"""Which queues of a topic each member of a group gets. Pure; all members must compute the same
(upstream: AllocateMessageQueueAveragely.java)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue


def average(
    queues: Iterable[MessageQueue], client_ids: Sequence[str], client_id: str
) -> list[MessageQueue]:
    """Contiguous shares, sizes differing by at most one, earlier members getting the larger ones.

    Both sides are sorted here. A client that is not among ``client_ids`` gets nothing.
    """
    members = sorted(set(client_ids))
    if client_id not in members:
        return []
    ordered = sorted(queues)
    index = members.index(client_id)
    share, rest = divmod(len(ordered), len(members))
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]
