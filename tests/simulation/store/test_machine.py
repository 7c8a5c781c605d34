"""The same simulation, driven by hypothesis, which looks for the shortest run that fails.

A failure prints its steps with all drawn values, including the seed of the small decisions; with
`make deep` also a line that repeats it (`reproduce_failure`).
"""

from __future__ import annotations

import errno
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.simulation.faults.files import Moment
from tests.simulation.store import seeded
from tests.simulation.store.clients import Clients
from tests.simulation.store.seeded import (
    FAILING,
    JUMPS_MS,
    LEVELS,
    PAUSES_MS,
    PLACES,
    QUEUES,
    TOPICS,
)
from tests.simulation.store.world import World

OPERATIONS = 200
_STARTS = 20

topics = st.sampled_from(TOPICS)
queues = st.integers(0, QUEUES - 1)
moments = st.sampled_from(Moment)


class Lives(RuleBasedStateMachine):
    """Every operation of the simulation as a rule."""

    world: World
    clients: Clients

    @initialize(
        seed=st.integers(0, 2**32 - 1),
        sync_ms=st.sampled_from((0, 4)),
        memory_bytes=st.sampled_from((1 << 30, 20_000)),
        split=st.sampled_from((0.0, 0.3)),
        seals=st.booleans(),
    )
    def begin(self, seed: int, sync_ms: int, memory_bytes: int, split: float, seals: bool) -> None:
        """Open a store; ``seed`` also chooses its sizes."""
        chance = Random(seed)
        self.world = World(
            chance,
            seeded.settings_of(chance),
            sync_ms=sync_ms,
            memory_bytes=memory_bytes,
            split=split,
            seals=seals,
        )
        self.clients = Clients(self.world)
        self._start()

    def _start(self) -> None:
        for _ in range(_STARTS):
            if self.world.start():
                return
            self.world.fill_disk(0.5, full=False)
        raise AssertionError("it never starts")

    @property
    def serves(self) -> bool:
        """True if the process runs."""
        return self.world.is_heard

    # --- clients -----------------------------------------------------------------------------

    @precondition(lambda self: self.serves)
    @rule(
        topic=topics,
        queue_id=queues,
        size=st.integers(0, 1_500),
        count=st.integers(1, 12),
        tag=st.sampled_from(("", "red")),
        keys=st.integers(0, 2),
    )
    def send(self, topic: str, queue_id: int, size: int, count: int, tag: str, keys: int) -> None:
        """Send messages in one turn."""
        for _ in range(count):
            names = (f"u{len(self.world.history.messages)}", "all")[:keys]
            self.clients.send(topic, queue_id, size, tag=tag, keys=names)
            if not self.serves:
                return

    @precondition(lambda self: self.serves)
    @rule(topic=topics, queue_id=queues, count=st.integers(1, 9), size=st.integers(0, 60))
    def send_batch(self, topic: str, queue_id: int, count: int, size: int) -> None:
        """Send a batch."""
        self.clients.send_batch(topic, queue_id, count, size)

    @precondition(lambda self: self.serves)
    @rule(level=st.integers(0, 3))
    def send_special(self, level: int) -> None:
        """Send a delayed message, or a half message."""
        if level:
            self.clients.send_delayed(level)
        else:
            self.clients.send_prepared()

    @precondition(lambda self: self.serves)
    @rule(topic=topics, queue_id=queues, count=st.sampled_from((1, 8, 32)))
    def pull(self, topic: str, queue_id: int, count: int) -> None:
        """Read the next messages for the group, and commit."""
        self.clients.pull(topic, queue_id, count)

    @precondition(lambda self: self.serves)
    @rule()
    def save_offsets(self) -> None:
        """Write the group's offsets."""
        self.clients.save_offsets()

    @precondition(lambda self: self.serves)
    @rule(number=st.integers(0, 49))
    def find(self, number: int) -> None:
        """Look up a message by its key."""
        self.clients.find(number)

    @precondition(lambda self: self.serves)
    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self.clients.delete_topic(topic)

    # --- time, and the disk ------------------------------------------------------------------

    @precondition(lambda self: self.serves)
    @rule(count=st.integers(1, 8))
    def turn(self, count: int) -> None:
        """Run turns of the loop."""
        self.world.operations += 1
        self.world.turn(count)

    @precondition(lambda self: self.serves)
    @rule(duration_ms=st.sampled_from(sorted(set(PAUSES_MS))))
    def sleep(self, duration_ms: int) -> None:
        """Let time pass, so that flushes become due."""
        self.world.sleep(duration_ms)

    @precondition(lambda self: self.serves)
    @rule(offset_ms=st.sampled_from(JUMPS_MS))
    def jump_clock(self, offset_ms: int) -> None:
        """Set the wall clock."""
        self.world.jump_clock(offset_ms)

    @precondition(lambda self: self.serves)
    @rule()
    def write_back(self) -> None:
        """Write some unsynced data to the device."""
        self.world.write_back()

    @precondition(lambda self: self.serves)
    @rule(
        operation=st.sampled_from(sorted(set(FAILING))),
        code=st.sampled_from((errno.EIO, errno.ENOSPC)),
        times=st.sampled_from((1, 3)),
        where=st.sampled_from(sorted(set(PLACES))),
    )
    def fail(self, operation: str, code: int, times: int, where: str) -> None:
        """Make file operations of a kind fail."""
        self.world.fail(operation, code, times, where)

    @precondition(lambda self: self.serves)
    @rule(used_ratio=st.sampled_from(LEVELS), full=st.booleans())
    def fill_disk(self, used_ratio: float, full: bool) -> None:
        """Set how full the disk is."""
        self.world.fill_disk(used_ratio, full=full)

    # --- ends and starts ---------------------------------------------------------------------

    @precondition(lambda self: self.serves)
    @rule(steps=st.integers(0, 60), moment=moments)
    def end_soon(self, steps: int, moment: Moment) -> None:
        """End the process at a file operation."""
        self.world.end_soon(steps, moment)

    @precondition(lambda self: self.serves)
    @rule(ends_in=st.integers(-1, 40), moment=moments)
    def stop(self, ends_in: int, moment: Moment) -> None:
        """Stop, perhaps with an end in between; then start."""
        self.world.stop(ends_in, moment)
        if ends_in >= 0:
            self.world.kill()
        self._start()

    @rule(power=st.booleans(), ends_in=st.lists(st.integers(0, 40), max_size=2), moment=moments)
    def crash(self, power: bool, ends_in: list[int], moment: Moment) -> None:
        """Crash, then start until a start does not crash."""
        self._crash(power)
        for steps in ends_in:
            self.world.start(steps, moment)
            self._crash(power)
        self._start()

    def _crash(self, power: bool) -> None:
        if power:
            self.world.cut_power()
        else:
            self.world.kill()

    # --- the end -----------------------------------------------------------------------------

    def teardown(self) -> None:
        """Complete the run, with an acknowledged message and a crash; the store recovers."""
        if not hasattr(self, "world"):
            return
        world = self.world
        try:
            with seeded.quiet():
                self._finish(world)
        except BaseException as error:
            error.add_note("\n".join(world.trace[-60:]))
            raise
        finally:
            world.close()

    def _finish(self, world: World) -> None:
        while world.operations < OPERATIONS:
            if not self.serves:
                self._crash(world.operations % 2 == 0)
                self._start()
            self.clients.send(TOPICS[0], 0, 40)
            self.turn(2)
            self.sleep(600)
        self._crash(True)
        world.fill_disk(0.5, full=False)
        self._start()
        self.clients.probe()
        self._crash(True)
        self._start()
        assert world.operations >= OPERATIONS
        assert world.crashes > 0 < world.history.acknowledged


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=max(20, settings().max_examples // 5), stateful_step_count=120
)
