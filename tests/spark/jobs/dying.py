"""Dead letters for tests, made as consumers make them."""

from itertools import islice

from cometmq.client.blocking import Client


def kill_all(client: Client, topic: str, group: str, count: int) -> None:
    """Have a group refuse so many messages of a topic, which makes them dead letters at once."""
    joined = client.subscribe(topic, group=group, start="first", max_reconsume_times=0)
    with joined as subscription:
        for message in islice(subscription, count):
            message.retry()
