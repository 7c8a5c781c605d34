"""Dead letters get another chance: they are sent again as what they were."""

from collections import Counter

import cometmq
from examples.ecommerce.events import decode


async def redrive(client: cometmq.Client, group: str, counts: Counter[str]) -> None:
    """Send what a group gave up on to its topic again, until cancelled; ``counts`` has how much.

    All groups of the topic get it again, so they must bear repetitions, as they must in any case.
    """
    letters = client.subscribe(f"%DLQ%{group}", group=f"{group}-again", start="first")
    async with letters:
        async for letter in letters:
            async with letter.processing():
                await client.send(decode(letter.body).message())
                counts["sent again"] += 1
