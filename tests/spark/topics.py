"""Topics with messages for tests, on any cluster."""

from collections.abc import Iterable, Sequence

from cometmq.admin.api import Admin
from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue, StoredMessage
from cometmq.spark.brokers.access import Access
from cometmq.spark.read.options import ReadOptions, parse


def options(namesrv: str, topic: str, **extra: str) -> ReadOptions:
    """The options of a read of one topic."""
    return parse({"nameservers": namesrv, "topic": topic, **extra})


def access(namesrv: str) -> Access:
    """How a cluster is reached."""
    return Access(tuple(namesrv.split(";")), 10_000)


def make_topic(client: Client, topic: str, queues: int = 4) -> list[MessageQueue]:
    """A new topic; its queues in order."""
    route = client.wait(Admin(client.inner.session).create_topic(topic, queues=queues))
    names = sorted(data.broker_name for data in route.queue_datas)
    return [MessageQueue(topic, name, at) for name in names for at in range(queues)]


def fill(client: Client, queue: MessageQueue, bodies: Iterable[str], tag: str = "") -> None:
    """Append messages to a queue, each with its body as its key."""
    for body in bodies:
        client.send(queue.topic, body.encode(), tag=tag, keys=[body], queue=queue)


def read_whole(client: Client, queue: MessageQueue) -> list[StoredMessage]:
    """Every message of a queue from offset 0 on."""
    found: list[StoredMessage] = []
    while messages := client.puller.pull(queue, len(found)).messages:
        found += messages
    return found


def fill_all(client: Client, queues: Sequence[MessageQueue], each: int, start: int = 0) -> None:
    """Append ``each`` messages to every queue: bodies are queue id and number, as ``2-17``."""
    for queue in queues:
        fill(client, queue, (f"{queue.queue_id}-{at}" for at in range(start, start + each)))


def delete_topic(client: Client, topic: str) -> None:
    """Delete a topic everywhere."""
    client.wait(Admin(client.inner.session).delete_topic(topic))
