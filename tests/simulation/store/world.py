"""One machine without a network: a disk, a clock, one process at a time, and their faults.

Every start is checked against the model (history.py, checks.py). Operations take their parameters
as arguments; ``chance`` makes small decisions, such as which sectors survive. seeded.py chooses
operations from a seed, test_machine.py by hypothesis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

from cometmq.broker.acknowledgement import WaitingSend
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreError
from cometmq.protocol.fastjson import parse_json
from cometmq.store.config import FlushDiskType, StoreConfig
from cometmq.store.files import read_file
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles, Moment, ProcessEnded
from tests.simulation.store import checks
from tests.simulation.store.history import History, QueueKey
from tests.simulation.store.process import CONFIG, GROUP, ROOT, FilesMaker, Machine, Process

Answered = Callable[[list[WaitingSend], int, str | None], None]


class World:
    """The simulated machine and the model of its store."""

    def __init__(
        self,
        chance: Random,
        config: StoreConfig,
        *,
        sync_ms: int = 0,
        memory_bytes: int = 1 << 30,
        split: float = 0.2,
        seals: bool = True,
        make_files: FilesMaker = MemoryFiles,
    ) -> None:
        self.chance = chance
        self.config = replace(config, store_path_root_dir=ROOT)
        self.sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.loop = asyncio.new_event_loop()
        self.disk, self.clock = Disk(), VirtualClock()
        self._machine = Machine(
            self.disk, self.clock, self.loop, chance, sync_ms, memory_bytes, split, seals,
            make_files,
        )  # fmt: skip
        self.history = History()
        self.answered: Answered = lambda sends, code, remark: None
        self.operations = 0
        self.starts = 0
        self.crashes = 0
        self.trace: list[str] = []
        #: True if the disk failed since the last start.
        self.disk_failed = False
        self._process: Process | None = None
        self._decoded: checks.Decoded = {}
        self._sync_failed = False
        self._lossy = False

    @property
    def process(self) -> Process:
        """The running process."""
        assert self._process is not None
        return self._process

    @property
    def is_heard(self) -> bool:
        """True if a process runs, so that its answers reach clients."""
        return self._process is not None and not self._process.files.ended

    def close(self) -> None:
        """End the process and close the loop."""
        if self._process is not None:
            self._process.abandon()
        self.loop.close()

    def note(self, what: str) -> None:
        """Count an operation and add it to the trace."""
        self.operations += 1
        self.trace.append(what)

    # --- starts ------------------------------------------------------------------------------

    def start(self, ends_in: int = -1, moment: Moment = Moment.BEFORE) -> bool:
        """Start a process and check the store; return whether the process serves.

        With ``ends_in`` the process ends at the changing file operation of that number.
        """
        self.note(f"start ends_in={ends_in} {moment.value}")
        process = Process(self._machine, self.config)
        process.files.on_names_synced = lambda path: self._names_synced(process, path)
        if ends_in >= 0:
            process.files.end_at(ends_in, moment)
        try:
            process.open(self.answered)
            self._check(process)
            process.complete(process.serve())
        except ProcessEnded:
            self._note_log_start(process)
            process.abandon()
            return False
        except (OSError, StoreError) as error:
            process.abandon()
            self.trace.append(f"  refused: {error}")
            if not self.disk.full:
                raise
            self.disk.kill(self.chance)
            return False
        self._process = process
        self.starts += 1
        self.disk_failed = self.disk.full
        for commits in self.history.commits.values() if not self.disk_failed else ():
            if commits.values[-1] != commits.values[-2]:
                # What was corrected must not come back.
                commits.note_saved(len(commits.values) - 1)
        self._listen(process)
        return True

    def _check(self, process: Process) -> None:
        store, history = process.store, self.history
        history.shortened |= self._lossy
        loaded = _progress(process)
        process.agree()
        for ends in history.ends.values():
            ends[:] = [min(end, store.log.written) for end in ends]
        held = checks.look(store, self._decoded)
        checks.check_messages(held, history, lossy=self._lossy)
        queues = checks.check_queues(held, history)
        checks.check_index(held, history)
        checks.check_seen(held, history, queues, lossy=self._lossy)
        checks.check_commits(held, history, loaded)
        self._check_agreed(process, loaded)
        for name, record in held.names.items():
            history.keep(history.messages[name], record)
        history.durable = store.log.written
        self._lossy = self._sync_failed = False

    def _check_agreed(self, process: Process, loaded: dict[QueueKey, int]) -> None:
        """Check that the group's offsets are within the queues."""
        progress = _progress(process)
        for key, commits in self.history.commits.items():
            offset = progress.get(key, -1)
            queue = process.store.find_queue(*key)
            end = queue.max_offset if queue is not None else 0
            assert offset <= end, f"{key} goes on at {offset}, its end is {end}"
            commits.values += loaded.get(key, -1), offset

    def _names_synced(self, process: Process, path: str) -> None:
        """Record which offsets are on the device: the next start must find these or later ones."""
        raw = read_file(process.files, f"{CONFIG}/consumerOffset.json") if path == CONFIG else None
        table = parse_json(raw) if raw is not None else {"offsetTable": {}}
        assert isinstance(table, dict)
        for (topic, queue_id), commits in self.history.commits.items():
            offsets = table["offsetTable"].get(f"{topic}@{GROUP}", {})
            offset = offsets.get(queue_id, offsets.get(str(queue_id), -1))
            if raw is not None and offset in commits.values[commits.saved :]:
                # Of equal ones the first: the file may be from before it was changed and set back.
                commits.note_saved(commits.values.index(offset, commits.saved))

    # --- ends --------------------------------------------------------------------------------

    def stop(self, ends_in: int = -1, moment: Moment = Moment.BEFORE) -> None:
        """Stop the process cleanly; with ``ends_in`` it ends at that file operation of the stop."""
        self.note(f"stop ends_in={ends_in} {moment.value}")
        process = self.process
        if ends_in >= 0:
            process.files.end_at(process.files.steps + ends_in, moment)
        may_fail = self.disk_failed or process.store.log.failure is not None
        try:
            process.stop()
        except ProcessEnded:
            pass
        except (OSError, StoreError) as error:
            self.trace.append(f"  stop failed: {error}")
            if not may_fail:
                raise
        self._gone()
        self.disk.locks.clear()

    def _gone(self) -> None:
        process, self._process = self.process, None
        self._listen(process)
        process.abandon()
        # A failure in a thread may not have been reported before the end.
        self._sync_failed |= process.store.log.failure is not None
        if process.problems:
            raise process.problems[0]

    def _listen(self, process: Process) -> None:
        """Record what a process reported; reports after its end do not count."""
        log = process.store.log
        if not process.files.ended:
            self.history.durable = max(self.history.durable, log.durable)
        self._note_log_start(process)
        self._sync_failed |= log.failure is not None

    def _note_log_start(self, process: Process) -> None:
        if process.is_open:
            start = process.store.log.segments.start
            self.history.log_start = max(self.history.log_start, start)

    def kill(self) -> None:
        """Kill the process; the machine stays up."""
        self.note("kill")
        self._end()
        self.disk.kill(self.chance)
        self._lossy |= self._sync_failed and not self.sync

    def cut_power(self) -> None:
        """Cut the power of the machine, and restart it."""
        self.note("cut power")
        self._end()
        self.disk.lose_power(self.chance)
        self._lossy |= not self.sync

    def _end(self) -> None:
        self.crashes += 1
        if self._process is not None:
            self.process.files.end()
            self._gone()

    def end_soon(self, steps: int, moment: Moment) -> None:
        """End the process at a changing file operation, ``steps`` from now."""
        self.note(f"end in {steps} {moment.value}")
        files = self.process.files
        files.end_at(files.steps + steps, moment)

    # --- time, and the disk ------------------------------------------------------------------

    def turn(self, count: int = 1) -> None:
        """Run turns of the loop; threads run some of their jobs in between."""
        process = self.process
        for _ in range(count):
            process.turn()
            if self.chance.random() < 0.7:
                process.threads.step()
        self._listen(process)

    def sleep(self, duration_ms: int) -> None:
        """Let time pass, and run what waited for it."""
        self.note(f"sleep {duration_ms}")
        self.clock.advance(duration_ms)
        self.turn(2)

    def jump_clock(self, offset_ms: int) -> None:
        """Set the wall clock ahead or back."""
        self.note(f"jump {offset_ms}")
        self.clock.jump_wall(offset_ms)

    def write_back(self) -> None:
        """Write some unsynced data to the device."""
        self.note("write back")
        self.disk.write_back(self.chance)

    def fill_disk(self, used_ratio: float, *, full: bool) -> None:
        """Set how full the disk is."""
        self.note(f"disk {used_ratio} full={full}")
        self.disk.used_ratio, self.disk.full = used_ratio, full
        self.disk_failed |= full
        self.history.faults |= full

    def fail(self, operation: str, code: int, times: int, where: str = "") -> None:
        """Make the next ``times`` file operations of a kind fail."""
        self.note(f"fail {operation} {code} {times} {where}")
        self.process.files.faults.append(Fault(operation, code, times, where))
        self.disk_failed = self.history.faults = True

    def heal(self) -> None:
        """Repair the disk, make room, and let the store notice both."""
        self.fill_disk(0.5, full=False)
        self.process.files.faults.clear()
        # The store removes expired files one by one before it checks the disk again.
        for round_ in range(12):
            self.sleep(11_000)
            self.turn(20)
            if round_ >= 2 and not self.process.store.state.disk_problem:
                break


def _progress(process: Process) -> dict[QueueKey, int]:
    return {
        (topic, queue_id): offset
        for topic in process.offsets.topics_of(GROUP)
        for queue_id in range(4)
        if (offset := process.offsets.query(GROUP, topic, queue_id)) >= 0
    }
