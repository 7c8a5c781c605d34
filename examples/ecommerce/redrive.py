"""Sends dead letters again, as the events that they were."""

from collections import Counter

import cometmq
from examples.ecommerce.events import decode


async def redrive(client: cometmq.Client, group: str, counts: Counter[str]) -> None:
    """Send a group's dead letters to its topic again, until cancelled. ``counts`` counts them.

    All groups of the topic receive them again, so they must tolerate repeats, as in any case.
    """
    letters = client.subscribe(f"%DLQ%{group}", group=f"{group}-again", start="first")
    async with letters:
        async for letter in letters:
            async with letter.processing():
                await client.send(decode(letter.body).message())
                counts["sent again"] += 1
