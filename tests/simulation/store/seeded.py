"""Runs from seeds: a seed chooses the settings, the lives, every operation and every loss."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from cometmq.store.config import FlushDiskType, StoreConfig
from tests.simulation.faults.files import MemoryFiles, Moment
from tests.simulation.store.clients import Clients
from tests.simulation.store.process import FilesMaker
from tests.simulation.store.world import World

OPERATIONS = 220
LIVES = 4
_LIVES_LIMIT = 100
_ATTEMPTS_LIMIT = 20
_TRACED = 60
TOPICS = ("a", "b", "c")
QUEUES = 2
SIZES = (60, 60, 60, 60, 200, 700, 1500)
FAILING = (
    "pwrite", "datasync", "datasync", "allocate", "create", "rename", "sync_directory", "resize",
    "unlink", "mkdir",
)  # fmt: skip
PLACES = ("", "", "commitlog", "consumequeue", "index", "config")
PAUSES_MS = (10, 500, 600, 1_100, 1_100, 5_000, 11_000, 61_000)
JUMPS_MS = (-7_200_000, -3_000, 3_000, 3_700_000, 9_000_000)
LEVELS = (0.5, 0.8, 0.87, 0.95)
MOMENTS = tuple(Moment)


def settings_of(chance: Random) -> StoreConfig:
    """Choose settings: small files of various sizes."""
    return StoreConfig(
        flush_disk_type=chance.choice((FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH)),
        mapped_file_size_commit_log=chance.choice((4096, 6000, 8192, 16_384)),
        mapped_file_size_consume_queue=20 * chance.choice((5, 13, 30, 100)),
        max_hash_slot_num=chance.choice((7, 64)),
        max_index_num=chance.choice((10, 40, 200)),
        message_delay_level="1s 5s 1m",
        file_reserved_time=chance.choice((1, 2, 72)),
        delete_when=";".join(map(str, range(24))),
        flush_consume_queue_thorough_interval=chance.choice((3_000, 60_000)),
        flush_commit_log_least_pages=chance.choice((0, 1, 4)),
    )


class Run:
    """Run of one seed."""

    def __init__(self, seed: int, make_files: FilesMaker = MemoryFiles) -> None:
        self.chance = chance = Random(seed)
        self.world = World(
            chance,
            settings_of(chance),
            sync_ms=chance.choice((0, 0, 0, 4)),
            memory_bytes=chance.choice((1 << 30, 1 << 30, 20_000)),
            split=chance.choice((0.0, 0.0, 0.3)),
            seals=chance.random() < 0.2,
            make_files=make_files,
        )
        self.clients = Clients(self.world)
        work: list[tuple[int, Callable[[], None]]] = [
            (30, self._send),
            (4, self._send_many),
            (4, self._batch),
            (2, self._delayed),
            (1, self.clients.send_prepared),
            (25, self._turn),
            (10, self._pull),
            (3, self.clients.save_offsets),
            (8, self._sleep),
            (2, self._find),
            (2, self.world.write_back),
        ]
        if chance.random() < 0.4:
            work.append((2, self._jump))
        if chance.random() < 0.3:
            work.append((1, self._delete))
        if chance.random() < 0.4:
            work += [(2, self._fail), (1, self._fill)]
        self._calls = [call for _, call in work]
        self._weights = [weight for weight, _ in work]

    def run(self) -> None:
        """Run all lives, then a last one without faults, in which the store must recover."""
        world = self.world
        for life in range(_LIVES_LIMIT):
            enough = life >= LIVES and world.operations >= OPERATIONS
            if enough and world.history.acknowledged and world.crashes:
                break
            self._start()
            if self._work():
                self._end()
        else:
            raise AssertionError("nothing was acknowledged in any life")
        self._get_well()

    def _start(self) -> None:
        """Start until the process serves; only an early end or a full disk may prevent that."""
        world, chance = self.world, self.chance
        if chance.random() < 0.5:
            world.fill_disk(0.5, full=False)
        for attempt in range(_ATTEMPTS_LIMIT):
            if attempt > 5:
                world.fill_disk(0.5, full=False)
            if world.start(*self._early(0.25 if attempt < 3 else 0)):
                return
            self._crash()
        raise AssertionError("it never starts")

    def _early(self, likely: float) -> tuple[int, Moment]:
        if self.chance.random() >= likely:
            return -1, Moment.BEFORE
        return int(self.chance.random() ** 2 * 40), self.chance.choice(MOMENTS)

    def _work(self) -> bool:
        """Run operations; return whether the process still runs."""
        world, chance = self.world, self.chance
        if chance.random() < 0.3:
            world.end_soon(chance.randrange(60), chance.choice(MOMENTS))
        for _ in range(chance.randrange(10, 90)):
            chance.choices(self._calls, self._weights)[0]()
            if world.process.files.ended:
                self._crash()
                return False
        return True

    def _end(self) -> None:
        if self.chance.random() < 0.3:
            self.world.stop(*self._early(0.4))
            if self.chance.random() < 0.6:
                return
        self._crash()

    def _crash(self) -> None:
        if self.chance.random() < 0.65:
            self.world.cut_power()
        else:
            self.world.kill()

    def _get_well(self) -> None:
        world = self.world
        self._start()
        if world.process.store.log.failure is None:
            world.heal()
            if world.is_heard:
                self.clients.probe()
        world.stop()
        world.kill()
        world.fill_disk(0.5, full=False)
        assert world.start()
        self.clients.probe()
        self._crash()

    # --- the operations ----------------------------------------------------------------------

    def _queue(self) -> tuple[str, int]:
        return self.chance.choice(TOPICS), self.chance.randrange(QUEUES)

    def _send(self) -> None:
        chance = self.chance
        keys = (f"u{len(self.world.history.messages)}", "all")[: chance.randrange(3)]
        tag = chance.choice(("", "red"))
        self.clients.send(*self._queue(), chance.choice(SIZES), tag=tag, keys=keys)

    def _send_many(self) -> None:
        for _ in range(self.chance.randrange(2, 12)):
            self._send()

    def _batch(self) -> None:
        chance = self.chance
        self.clients.send_batch(*self._queue(), chance.choice((1, 3, 9)), chance.choice((10, 60)))

    def _delayed(self) -> None:
        self.clients.send_delayed(self.chance.randrange(1, 4))

    def _turn(self) -> None:
        self.world.operations += 1
        self.world.turn(self.chance.choice((1, 1, 2, 4)))

    def _pull(self) -> None:
        self.clients.pull(*self._queue(), self.chance.choice((1, 8, 32)))

    def _sleep(self) -> None:
        self.world.sleep(self.chance.choice(PAUSES_MS))

    def _find(self) -> None:
        self.clients.find(self.chance.randrange(50))

    def _jump(self) -> None:
        self.world.jump_clock(self.chance.choice(JUMPS_MS))

    def _delete(self) -> None:
        self.clients.delete_topic(self.chance.choice(TOPICS))

    def _fail(self) -> None:
        chance = self.chance
        code = chance.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        self.world.fail(
            chance.choice(FAILING), code, chance.choice((1, 1, 3)), chance.choice(PLACES)
        )

    def _fill(self) -> None:
        self.world.fill_disk(self.chance.choice(LEVELS), full=self.chance.random() < 0.5)


@contextmanager
def quiet() -> Iterator[None]:
    """Switch the log off, because it takes too much time."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def run(seed: int, make_files: FilesMaker = MemoryFiles) -> list[str]:
    """Run one seed; return its trace. Raise its failure, with the last operations as a note."""
    with quiet():
        made = Run(seed, make_files)
        try:
            made.run()
        except BaseException as error:
            error.add_note("\n".join(made.world.trace[-_TRACED:]))
            error.add_note(f"seed {seed}: python -m tests.simulation.store {seed}")
            raise
        finally:
            made.world.close()
        return made.world.trace
