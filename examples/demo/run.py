"""The run, in order: load, change, disturb, catch up, compare.

The disturbances: in the first load the relay is killed once, after it sent messages and before it
recorded that. The social platform stops at half of the changes and starts again later. The order
platform fails on some rows at first. None of these may show in the copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.admin.api import Admin
from cometmq.admin.node import NodeFailed, NodeProcess
from cometmq.client.client import Client
from cometmq.core.errors import CometError
from examples.demo.base import Source
from examples.demo.compare import compare, digest
from examples.demo.folder import Folder, empty_folder
from examples.demo.platform import Platform, fails_at_first
from examples.demo.progress import Board, Party, PartyResult, Report, Result
from examples.demo.script import Script, iso_regions
from examples.demo.tables import TABLES, Row, read_table

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from examples.demo.compare import Comparison
    from examples.demo.script import Edit

TOPIC: Final = "base-data-changes"
QUEUES: Final = 8
LOAD_STEPS: Final = 200
TICK_MS: Final = 20
POLL_MS: Final = 50
CATCH_UP_MS: Final = 60_000
PIPELINE_START_MS: Final = 45_000
FAILING_SHARE: Final = 0.02

#: Times of the disturbances, as shares of the script's changes.
SOCIAL_STOPS_AT: Final = 0.5
SOCIAL_STARTS_AT: Final = 0.7

BROKER_SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(30_000 * 20),
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
}

Tables = Mapping[str, Sequence[Row]]


class Pipeline(Protocol):
    """A copy that another system keeps from the same topic."""

    name: str

    async def start(self, namesrv: str, topic: str, board: Board) -> None:
        """Begin to follow the topic."""
        ...

    async def started(self, timeout_ms: int) -> bool:
        """Wait until it has applied its first changes; return False after a timeout."""
        ...

    async def finish(self) -> tuple[Tables, Report]:
        """Read to the end of the topic and stop; return the tables and the report."""
        ...

    async def close(self) -> None:
        """End everything that still runs."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run.

    ``changes`` follow the first load, at most ``changes_per_s`` of them a second. ``regions``
    replaces the regions of the world.
    """

    directory: Path
    changes: int = 6_000
    users: int = 2_000
    seed: int = 7
    changes_per_s: int = 400
    regions: Sequence[Row] | None = None


@dataclass(slots=True)
class Times:
    """Start of the run (monotonic), duration of the first load, and its number of changes."""

    started_ms: int = 0
    loading_ms: int = 0
    loaded: int = 0


@dataclass(slots=True)
class Demo:
    """One run, created by :func:`prepare`."""

    options: Options
    folder: Folder
    script: Script
    board: Board
    clock: Clock
    pipeline: Pipeline | None
    problems: list[str] = field(default_factory=list)
    times: Times = field(default_factory=Times)
    spark: tuple[Tables, Report] | None = None

    async def run(self) -> Result:
        """Run everything. Raise CometError if a part cannot start or fails."""
        self.times.started_ms = self.clock.monotonic_ms()
        async with AsyncExitStack() as stack:
            node = NodeProcess(
                self.folder.store, settings=BROKER_SETTINGS, log_path=self.folder.broker_log
            )
            await asyncio.to_thread(node.start)
            stack.push_async_callback(self._stop_node, node)
            client = await stack.enter_async_context(Client(node.namesrv))
            await Admin(client.session).create_topic(TOPIC, queues=QUEUES)
            if self.pipeline is not None:
                stack.push_async_callback(self.pipeline.close)
                await self.pipeline.start(node.namesrv, TOPIC, self.board)
            platforms = self._platforms(node.namesrv)
            for platform in platforms.values():
                stack.push_async_callback(platform.stop)
                await platform.start()
            source = await stack.enter_async_context(
                Source(self.folder.base, client, TOPIC, self.board, self.clock)
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(source.publish())
                await self._load(source)
                await self._await_pipeline()
                await self._change(source, platforms["social"])
                source.finish()
            await self._catch_up(source, platforms.values())
            if self.pipeline is not None:
                self.board.phase = "finishing the pipeline"
                self.spark = await self.pipeline.finish()
        self.board.phase = "comparing"
        return await asyncio.to_thread(self.judge)

    def _platforms(self, namesrv: str) -> dict[str, Platform]:
        fails = {"order": fails_at_first(FAILING_SHARE)}
        return {
            name: Platform(
                name,
                self.folder.copy(name),
                namesrv=namesrv,
                topic=TOPIC,
                party=party,
                clock=self.clock,
                fails=fails.get(name),
            )
            for name, party in self.board.parties.items()
        }

    async def _load(self, source: Source) -> None:
        """Commit the first load without pauses, and wait until it is published."""
        times = self.times
        self.board.phase = "loading"
        begun_ms = self.clock.monotonic_ms()
        steps = self.script.initial()
        crash_at = (self.board.expected - self.options.changes) // 2
        while edits := _joined(islice(steps, LOAD_STEPS)):
            times.loaded += await source.commit(edits)
            if crash_at and times.loaded >= crash_at:
                source.crash_relay()
                crash_at = 0
        deadline_ms = self.clock.monotonic_ms() + CATCH_UP_MS
        while self.board.published < times.loaded:
            if self.clock.monotonic_ms() > deadline_ms:
                raise CometError(f"the first load is not published: see {self.folder.broker_log}")
            await self.clock.sleep_ms(TICK_MS)
        times.loading_ms = self.clock.monotonic_ms() - begun_ms

    async def _await_pipeline(self) -> None:
        """Wait until the pipeline reads, so that it follows the changes live."""
        if self.pipeline is not None:
            self.board.phase = "waiting for the pipeline"
            if not await self.pipeline.started(PIPELINE_START_MS):
                self.board.say("the pipeline is not ready yet; the changes continue without it")

    async def _change(self, source: Source, social: Platform) -> None:
        """Run the script at its rate, with the disturbances at their times."""
        self.board.phase = "changing"
        begun_ms = self.clock.monotonic_ms()
        goal = self.options.changes
        moments = [(SOCIAL_STOPS_AT, False), (SOCIAL_STARTS_AT, True)]
        done = 0
        for step in self.script.steps(goal):
            done += await source.commit(step)
            while moments and done >= moments[0][0] * goal:
                await self._switch(social, on=moments.pop(0)[1])
            due_ms = done * 1000 // self.options.changes_per_s
            ahead_ms = begun_ms + due_ms - self.clock.monotonic_ms()
            if ahead_ms > TICK_MS:
                await self.clock.sleep_ms(ahead_ms)
        self.board.expected = self.board.committed

    async def _switch(self, social: Platform, *, on: bool) -> None:
        if on:
            await social.start()
            self.board.say("the social platform starts again and catches up")
        else:
            await social.stop()
            self.board.say(f"the social platform stops after {self.board.committed:,} changes")

    async def _catch_up(self, source: Source, platforms: Iterable[Platform]) -> None:
        """Wait until every platform has the last change of every row, and no retry is left.

        A platform that does not get there before the deadline is a problem of the result.
        """
        self.board.phase = "catching up"
        last = await source.last_changes()
        deadline_ms = self.clock.monotonic_ms() + CATCH_UP_MS
        for platform in platforms:
            outcomes = self.board.parties[platform.name].outcomes
            while platform.known != last or outcomes["retried"] < outcomes["failed"]:
                if self.clock.monotonic_ms() > deadline_ms:
                    self.problems.append(
                        f"{platform.name} did not catch up within {CATCH_UP_MS // 1000} s"
                    )
                    break
                await self.clock.sleep_ms(POLL_MS)

    async def _stop_node(self, node: NodeProcess) -> None:
        try:
            code = await asyncio.to_thread(node.terminate)
        except NodeFailed as error:
            self.problems.append(f"the broker: {error}")
            return
        if code != 0:
            self.problems.append(f"the broker ended with code {code}: {node.log_tail()}")

    def judge(self) -> Result:
        """Read every copy from its files and compare it with the base."""
        times = self.times
        base = _read(self.folder.base)
        parties = [
            _party_result(party, compare(party.name, base, _read(self.folder.copy(party.name))))
            for party in self.board.parties.values()
        ]
        files = {"base": self.folder.base}
        files |= {name: self.folder.copy(name) for name in self.board.parties}
        if self.spark is not None and self.pipeline is not None:
            parties.append(PartyResult(compare(self.pipeline.name, base, self.spark[0])))
            files[self.pipeline.name] = self.folder.spark
        files |= {"broker": self.folder.store, "broker log": self.folder.broker_log}
        return Result(
            seconds=(self.clock.monotonic_ms() - times.started_ms) / 1000,
            published=self.board.published,
            published_again=self.board.published_again,
            loaded=times.loaded,
            load_seconds=times.loading_ms / 1000,
            base_rows={name: len(rows) for name, rows in base.items()},
            base_digest=digest(base),
            parties=parties,
            report=None if self.spark is None else self.spark[1],
            files=files,
            events=list(self.board.events),
            problems=list(self.problems),
        )


def prepare(options: Options, clock: Clock, pipeline: Pipeline | None = None) -> Demo:
    """Empty the folder, and create the script and the board. ``pipeline`` may also be set later.

    Raise SettingsError for a folder that holds other files, ModuleNotFoundError without pycountry.
    """
    folder = empty_folder(options.directory)
    regions = options.regions
    if regions is None:
        regions = iso_regions(Random(options.seed))
    script = Script(regions, options.users, options.seed)
    expected = len(regions) + options.users + options.changes
    parties = {name: Party(name) for name in ("social", "order")}
    return Demo(options, folder, script, Board(expected, parties), clock, pipeline)


def _joined(steps: Iterable[list[Edit]]) -> list[Edit]:
    return [edit for step in steps for edit in step]


def _read(path: Path) -> dict[str, list[Row]]:
    return {name: read_table(path, table) for name, table in TABLES.items()}


def _party_result(party: Party, comparison: Comparison) -> PartyResult:
    return PartyResult(
        comparison,
        applied=party.outcomes["new"],
        repeated=party.outcomes["repeated"],
        stale=party.outcomes["stale"],
        retried=party.outcomes["retried"],
        lag_p50_ms=party.lag_ms(50),
        lag_p99_ms=party.lag_ms(99),
    )
