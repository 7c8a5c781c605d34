"""A broker is killed at any moment; who heard no answer sends again; each id is there once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

from cometmq.client.blocking import Client
from cometmq.core.errors import CometError
from cometmq.message.model import Message
from cometmq.testing.cluster import ProcessCluster

TOPIC = "Killed"
KILLS = 3
BATCH = 20
MESSAGES = 1_200


def message(number: int) -> Message:
    return Message(TOPIC, f"{number}".encode(), message_id=f"id-{number}")


def send_all(namesrv: str, progress: list[int], *, seed: int) -> None:
    """Send every message until it is acknowledged, and some of those again that are."""
    chance = random.Random(seed)
    with Client(namesrv, send_timeout_ms=2_000) as client:
        at = 0
        while at < MESSAGES:
            numbers = list(range(at, min(at + BATCH, MESSAGES)))
            numbers += chance.sample(range(at), min(at, 3))
            try:
                if chance.random() < 0.5:
                    client.send_batch([message(number) for number in numbers])
                else:
                    for number in numbers:
                        client.send_many([message(number)])
            except CometError:
                continue
            at += BATCH
            progress[0] = at


def test_each_id_once_over_kills(tmp_path: Path) -> None:
    progress = [0]
    settings = {"dropRepeatedIdsTopics": TOPIC}
    with ProcessCluster(tmp_path, **settings) as cluster:
        sending = threading.Thread(
            target=send_all, args=(cluster.namesrv, progress), kwargs={"seed": 5}
        )
        with Client(cluster.namesrv) as client:
            client.send(TOPIC, b"first")
        sending.start()
        paused = threading.Event()
        for kill in range(1, KILLS + 1):
            while progress[0] < kill * MESSAGES // (KILLS + 1) and sending.is_alive():
                paused.wait(0.005)
            cluster.kill()
            cluster.start()
        sending.join(120)
        assert not sending.is_alive()
        with Client(cluster.namesrv) as client:
            bodies: Counter[str] = Counter()
            for queue in client.queues(TOPIC):
                offset = 0
                while messages := client.puller.pull(queue, offset).messages:
                    offset += len(messages)
                    bodies.update(each.body.decode() for each in messages)
    del bodies["first"]
    assert {body: count for body, count in bodies.items() if count > 1} == {}
    assert len(bodies) == MESSAGES
