"""The publisher sends every change, each row's in order, and marks only what was sent."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from cometmq.demo.base import BaseData
from cometmq.demo.board import Board
from cometmq.demo.change import decode
from cometmq.demo.publisher import Publisher
from cometmq.outbox.worker import Worker
from tests.demo.worlds import small_script


@dataclass
class Wire:
    """Takes messages after a few turns of the loop, or breaks at the `breaks_at`th."""

    breaks_at: int = -1
    random: Random = field(default_factory=lambda: Random(1))
    arrived: list[bytes] = field(default_factory=list)
    meta: list[tuple[str, tuple[str, ...], str]] = field(default_factory=list)

    async def send(
        self, topic: str, body: bytes, *, tag: str, keys: Sequence[str], order_key: str
    ) -> object:
        assert topic == "changes"
        for _ in range(self.random.randrange(5)):
            await asyncio.sleep(0)
        if len(self.arrived) == self.breaks_at:
            raise ConnectionError("the broker is gone")
        self.arrived.append(body)
        self.meta.append((tag, tuple(keys), order_key))
        return None


@dataclass
class Bench:
    base: BaseData
    worker: Worker
    board: Board

    def publisher(self, wire: Wire) -> Publisher:
        return Publisher(self.base, self.worker, wire, "changes", self.board)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    base = BaseData(tmp_path / "base.sqlite")
    script = small_script(users=20)
    for step in [*script.initial(), *script.steps(600)]:
        base.apply(step, at_ms=1)
    worker = Worker("base")
    yield Bench(base, worker, Board(0, {}))
    worker.close()
    base.close()


async def test_everything_is_sent_and_each_row_in_order(bench: Bench) -> None:
    wire = Wire()
    waiting = len(bench.base.unsent(10_000))
    await bench.publisher(wire).publish_all()
    assert bench.base.unsent(10) == []
    assert bench.board.published == waiting == len(wire.arrived)
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for body, (tag, keys, order_key) in zip(wire.arrived, wire.meta, strict=True):
        change = decode(body)
        assert (tag, keys, order_key) == (change.op, (change.key,), change.key)
        rows[change.table, change.key].append(change.change)
    assert all(numbers == sorted(numbers) for numbers in rows.values())
    assert sorted(n for numbers in rows.values() for n in numbers) == list(range(1, waiting + 1))


async def test_a_crash_between_send_and_mark_sends_again_and_loses_nothing(bench: Bench) -> None:
    wire = Wire()
    publisher = bench.publisher(wire)
    sent = await publisher.publish_page(mark=False)
    assert sent > 0
    await publisher.publish_all()
    assert bench.board.published_again == sent
    assert bench.board.published == len(wire.arrived) - sent
    assert len({decode(body).change for body in wire.arrived}) == bench.board.published


async def test_a_send_that_fails_leaves_its_page_in_the_outbox(bench: Bench) -> None:
    before = bench.base.unsent(10_000)
    with pytest.raises(ExceptionGroup) as failed:
        await bench.publisher(Wire(breaks_at=10)).publish_all()
    assert failed.group_contains(ConnectionError)
    assert bench.base.unsent(10_000) == before
