"""Flights become messages, at a pace, and a replay goes on where it ended."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.core.errors import CometError
from cometmq.message.model import StoredMessage
from cometmq.testing.cluster import Cluster
from examples.flights.data import Flight, flights
from examples.flights.replay import Progress, due_s, message_of, parse_speed, replay

FIRST = list(islice(flights(), 300))


async def stored(client: Client, topic: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for queue in await client.queues(topic):
        end = await client.puller.max_offset(queue)
        async for messages in client.puller.read_range(queue, 0, end):
            found += messages
    return found


async def test_every_flight_once_and_each_aeroplane_in_order(
    cometmq_session_cluster: Cluster,
) -> None:
    async with Client(cometmq_session_cluster.namesrv) as client:
        assert await replay(client, FIRST, topic="Flights") == 300
        messages = await stored(client, "Flights")
    assert sorted(message.born_ms for message in messages) == [each.born_ms for each in FIRST]
    by_tail: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for message in messages:
        by_tail[message.keys].append(message.born_ms)
        assert message.tag == json.loads(message.body)["carrier"]
    assert len(by_tail) > 100
    assert all(born == sorted(born) for tail, born in by_tail.items() if tail)


async def test_it_goes_on_where_it_ended(cometmq_session_cluster: Cluster, tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress.json")
    async with Client(cometmq_session_cluster.namesrv) as client:
        with pytest.raises(BaseExceptionGroup) as failed:
            await replay(client, broken_after(100), topic="Resumed", progress=progress)
        assert failed.group_contains(ZeroDivisionError)
        again = Progress(tmp_path / "progress.json")
        again.load()
        assert again.stored == progress.stored <= 100
        left = 300 - again.stored
        assert await replay(client, FIRST, topic="Resumed", progress=again) == left
        messages = await stored(client, "Resumed")
    # What was on its way when it ended may be there twice, under one id.
    assert {message.message_id for message in messages} == {
        message_of(number, flight).message_id for number, flight in enumerate(FIRST)
    }


def broken_after(count: int) -> Iterator[Flight]:
    yield from FIRST[:count]
    raise ZeroDivisionError


def test_progress_counts_what_is_stored_without_a_gap(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "p.json")
    for number, reached in ((1, 0), (2, 0), (0, 3), (4, 3), (3, 5)):
        progress.note(number)
        assert progress.stored == reached
    progress.save(10.0)
    progress.note(5)
    progress.save(10.5)
    assert json.loads((tmp_path / "p.json").read_text()) == {"stored": 5}
    progress.save()
    assert json.loads((tmp_path / "p.json").read_text()) == {"stored": 6}


def test_pace() -> None:
    assert due_s(3_600_000, 0, 3600) == 1
    assert due_s(3_600_000, 0, float("inf")) == 0
    assert (parse_speed("max"), parse_speed("60")) == (float("inf"), 60)
    for text in ("0", "-1", "nan"):
        with pytest.raises(ValueError, match="not more than 0"):
            parse_speed(text)


async def test_a_broker_that_is_not_there_is_said(unused_tcp_port: int) -> None:
    async with Client(f"127.0.0.1:{unused_tcp_port}") as client:
        with pytest.raises(BaseExceptionGroup) as failed:
            await replay(client, FIRST)
    assert failed.group_contains(CometError)
