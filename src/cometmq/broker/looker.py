"""The looker: a process beside the broker that looks at messages ahead of consumers that filter.

One loop serves all consumers, and with expressions of their own it spends most of its time on
looking at messages, while other processors have nothing to do. The looker takes a part of that
(lookahead.py decides which): nothing waits for it, and without it the loop looks at all of them. It
is started for the first consumer that it can help, ends when none was there for a while, and when
it dies there is a new one after a rest that gets longer each time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, cast

from cometmq.net.runtime import KEPT_BYTES
from cometmq.store.files import PosixFiles
from cometmq.store.gathered import Gathered
from cometmq.store.lookahead import LookAhead
from cometmq.store.looking import NO_TRAY, TRAY_BYTES, BadFrame, Frames, Look, Seen, frame
from cometmq.store.verdicts import Verdicts

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.store.commitlog import CommitLog
    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.lookahead import Asked, Wanted

logger = logging.getLogger(__name__)

#: Requests under way: the next ones are there when one is answered.
MAX_UNDER_WAY: Final = 4
IDLE_MS: Final = 30_000
FIRST_REST_MS: Final = 1_000
MAX_REST_MS: Final = 300_000
#: Who lived so long did not die of what it was asked.
_SOUND_MS: Final = 60_000
COMMAND: Final = (sys.executable, "-m", "cometmq.store.tools.look")
#: Memory that is free stays at hand, as in the broker (net/runtime.py); one thread is enough.
_ENVIRONMENT: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
    "OPENBLAS_NUM_THREADS": "1",
}
_files: Final = PosixFiles()


class Looker:
    """Has messages looked at ahead of consumers; ``verdicts`` is what was found out, ``gathered``
    what of it a consumer will soon want."""

    def __init__(
        self,
        log: CommitLog,
        *,
        clock: Clock,
        tasks: Tasks,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.verdicts = Verdicts()
        self.gathered = Gathered()
        self._clock = clock
        self._tasks = tasks
        self._command = command
        self._ahead = LookAhead(log, self.verdicts, self.gathered)
        self._under_way: deque[tuple[Asked, int]] = deque()
        self._pipe: _Pipe | None = None
        self._life: asyncio.Task[None] | None = None
        self._rest_ms = 0
        self._rests_until_ms = 0
        self._asked_ms = 0
        self._looked_at = 0

    def read_on(self, queue: ConsumeQueue, wanted: Wanted, start: int, position: int) -> None:
        """A consumer that was at ``start`` of a queue is at ``position`` now."""
        if not self._ahead.read_on(queue, wanted, start, position):
            return
        if self._pipe is not None:
            self._ask(self._pipe)
        elif self._life is None and self._clock.monotonic_ms() >= self._rests_until_ms:
            self._life = self._tasks.spawn(self._live(), name="looker")

    def forget_queue(self, queue: ConsumeQueue) -> None:
        """It is there no more."""
        self._ahead.forget_queue(queue)

    @property
    def under_way(self) -> int:
        """Requests that are not answered yet."""
        return len(self._under_way)

    def facts(self) -> dict[str, str]:
        """Of its state, for operators."""
        pid = self._pipe.pid if self._pipe else 0
        return {
            "lookerPid": str(pid),
            "lookerMemoryBytes": str(memory_bytes(pid) if pid else 0),
            "lookerLookedAt": str(self._looked_at),
            "lookerHeldBytes": str(self.gathered.held_bytes),
        }

    def _ask(self, pipe: _Pipe) -> None:
        while len(self._under_way) < MAX_UNDER_WAY:
            asked = self._ahead.next()
            if asked is None:
                return
            tray = pipe.trays.take() if asked.gathers else NO_TRAY
            self._under_way.append((asked, tray))
            self._asked_ms = self._clock.monotonic_ms()
            file, expression = asked.file, asked.reader.wanted.expression
            pipe.send(Look(expression, file.path, file.base, asked.entries, tray, asked.known))

    def _seen(self, pipe: _Pipe, seen: Seen) -> None:
        """Raises BadFrame for an answer to nothing that was asked."""
        if not self._under_way:
            raise BadFrame("an answer too many")
        asked, tray = self._under_way.popleft()
        size_bytes = seen.ends[-1] if seen.ends else 0
        records = b""
        if tray != NO_TRAY and 0 <= size_bytes <= TRAY_BYTES:
            records = pipe.trays.clear(tray, size_bytes)
        if len(records) != size_bytes or len(seen.ends) > len(seen.numbers or ()):
            raise BadFrame(f"{len(seen.ends)} records of {size_bytes} bytes")
        if self._ahead.answered(asked, seen.numbers, seen.ends, records):
            self._looked_at += asked.size if asked.known is None else 0
        self._ask(pipe)

    # ------------------------------------------------------------------------------- the process

    async def _live(self) -> None:
        """One process, from its start to its end."""
        begun_ms = self._asked_ms = self._clock.monotonic_ms()
        code: int | None = None
        try:
            code = await self._run()
        except OSError as error:
            logger.warning("looker_not_started error=%r", str(error))
            self._rest(begun_ms)
        else:
            if code is not None:
                logger.warning("looker_ended code=%d", code)
                self._rest(begun_ms)
        finally:
            self._life = self._pipe = None
            self._under_way.clear()
            self._ahead.forget()

    async def _run(self) -> int | None:
        """Its exit code if it ended by itself; None when it was not needed any more. Raises
        OSError when it cannot be started."""
        loop = asyncio.get_running_loop()
        with closing(_Trays()) as trays:
            transport, pipe = await loop.subprocess_exec(
                lambda: _Pipe(self._seen, trays), *self._command, *map(str, trays.handles),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=None,
                env=os.environ | _ENVIRONMENT, pass_fds=trays.handles,
            )  # fmt: skip
            return await self._serve(transport, pipe)

    async def _serve(self, transport: asyncio.SubprocessTransport, pipe: _Pipe) -> int | None:
        idle = self._tasks.spawn(self._until_idle(), name="looker is idle")
        try:
            self._pipe = pipe
            await asyncio.wait((pipe.ended, idle), return_when=asyncio.FIRST_COMPLETED)
            return transport.get_returncode() if pipe.ended.done() else None
        finally:
            self._pipe = None
            idle.cancel()
            pipe.kill()
            await asyncio.wait((pipe.ended,))
            transport.close()

    async def _until_idle(self) -> None:
        while (left_ms := self._asked_ms + IDLE_MS - self._clock.monotonic_ms()) > 0:
            await self._clock.sleep_ms(left_ms)

    def _rest(self, begun_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        is_sound = now_ms - begun_ms >= _SOUND_MS
        self._rest_ms = (
            FIRST_REST_MS if is_sound else min(max(2 * self._rest_ms, FIRST_REST_MS), MAX_REST_MS)
        )
        self._rests_until_ms = now_ms + self._rest_ms


class _Trays:
    """Memory into which a looker lays records, and from which the broker takes them: a tray for
    each request under way. Where there is no such memory, none is ever free."""

    def __init__(self) -> None:
        self.handles: tuple[int, ...] = ()
        with suppress(AttributeError, OSError):  # a system or a sandbox that has none
            self.handles = (os.memfd_create("looker"),)
        self._free = [*range(MAX_UNDER_WAY)] if self.handles else []

    def take(self) -> int:
        """One that is free."""
        return self._free.pop() if self._free else NO_TRAY

    def clear(self, tray: int, size_bytes: int) -> bytes:
        """What is in it; it is free then."""
        self._free.append(tray)
        return _files.pread(self.handles[0], size_bytes, tray * TRAY_BYTES)

    def close(self) -> None:
        """Give it back."""
        for handle in self.handles:
            _files.close(handle)


class _Pipe(asyncio.SubprocessProtocol):
    """The requests and answers of one process, and the trays into which it lays records."""

    def __init__(self, on_seen: Callable[[_Pipe, Seen], None], trays: _Trays) -> None:
        self._on_seen = on_seen
        self.trays = trays
        self._frames = Frames(Seen)
        self._transport: asyncio.SubprocessTransport | None = None
        self._input: asyncio.WriteTransport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_broken = False
        self.pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._input = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self.ended.done() or self._is_broken:
            return
        try:
            for seen in self._frames.take(data):
                self._on_seen(self, seen)
        except BadFrame as error:
            logger.error("looker_answer_unreadable error=%r", str(error))
            self._is_broken = True
            self.kill()

    def process_exited(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def send(self, request: Look) -> None:
        """Ask it."""
        if self._input is not None and not self.ended.done():
            self._input.write(frame(request))

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._transport is not None:
            with suppress(ProcessLookupError):
                self._transport.kill()


def memory_bytes(pid: int) -> int:
    """What a process holds itself, without maps of files; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as found:
            _, resident, shared, *_ = map(int, found.read().split())
    except OSError:
        return 0
    return (resident - shared) * resource.getpagesize()


def is_useful(processors: int | None = None) -> bool:
    """Whether this machine has a processor for a looker beside the broker's."""
    if processors is None:
        usable = getattr(os, "sched_getaffinity", None)
        processors = len(usable(0)) if usable is not None else os.cpu_count() or 1
    return processors > 1
