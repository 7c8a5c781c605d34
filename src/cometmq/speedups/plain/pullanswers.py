"""Plain pulls of a connection: from request frames to answer frames.

This is the definition; compiled/pullanswers.pyx does the same, byte for byte. A pull is plain if
all of the following is true; every other frame is odd and is handled individually:

- its header is plain (headers.py) and shorter than 1 KiB, all strings are ASCII without escapes;
- its code is 11 or 361, it expects an answer, and it has all fields that upstream requires;
- it has no body.

A :class:`PullPlan` caches the decisions for all pulls that send the same request to one queue,
whatever their offsets. A plain pull is answered here if its records are near the end of the log, in
memory and in one log file. A pull at the end of its queue can be held for long polling. All others
are odd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from cometmq.speedups.plain.headers import (
    LENGTHS,
    LONG_NUMBER,
    NUMBER,
    ODD_MAX,
    SHORT_HEADER_MAX_BYTES,
    TEXT,
    Form,
    Header,
    Odd,
    read_header,
)
from cometmq.speedups.plain.match import Program, match_records
from cometmq.speedups.plain.pulls import take_records
from cometmq.speedups.plain.records import ENTRY

if TYPE_CHECKING:
    from cometmq.speedups.plain.access import AccessCache
    from cometmq.speedups.plain.writebatch import QueueState

#: Maximum number of pulls answered before other connections get their turn. A pull with a filter
#: ends the turn of its connection.
AT_ONCE: Final = 8
#: Maximum number of cached plans; when it is reached, the cache is cleared.
PLANS_MAX: Final = 4_096
#: Least number of entries that are read from a queue's file; those after a pull serve the next.
AHEAD_ENTRIES: Final = 256
#: Number of entries that a filter program examines in one step, and per pull.
STEP_ENTRIES: Final = 256
LOOKED_MAX: Final = 800

#: Bits of a pull's sysFlag: it commits an offset, and it may be held for long polling.
COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2

#: A pull at the end of its queue: its plan, offset, opaque, and maximum hold time in ms.
Waiting: TypeAlias = "tuple[PullPlan, int, int, int]"
Entries: TypeAlias = bytes | bytearray
#: Flag bits that make a frame odd: a response, or a one-way request.
_ODD_FLAGS: Final = 3
#: Fields of a pull; the last two are optional.
_PULL: Final = Form(
    {
        b"consumerGroup": TEXT, b"topic": TEXT, b"queueId": NUMBER, b"queueOffset": LONG_NUMBER,
        b"maxMsgNums": NUMBER, b"sysFlag": NUMBER, b"commitOffset": LONG_NUMBER,
        b"suspendTimeoutMillis": LONG_NUMBER, b"subVersion": LONG_NUMBER, b"subscription": TEXT,
        b"expressionType": TEXT,
    },
    required=9,
)  # fmt: skip
_FORMS: Final = {11: _PULL, 361: _PULL}

#: Fields of a pull, in the order of its header.
PullFields: TypeAlias = tuple[
    str, str, int, int, int, int, int, int, int, str | None, str | None
]  # fmt: skip


def read_pull(data: bytes, at: int) -> tuple[PullFields, int, int] | int:
    """Return the fields and the opaque of the plain pull at ``data[at]``, and the end of its frame.

    If the frame is odd, returns the number of consecutive odd frames instead; if it is incomplete,
    returns 0.
    """
    found = _next_pull(data, at)
    if isinstance(found, int):
        return found
    header, stop = found
    return _fields_of(header), header.opaque, stop


def _next_pull(data: bytes, at: int) -> tuple[Header, int] | int:
    """Return the header of the plain pull at ``data[at]`` and the end of its frame.

    Returns the number of consecutive odd frames instead, as :func:`read_pull` does.
    """
    if not 0 <= at <= len(data):
        raise ValueError("a begin outside the data")
    odd = 0
    while odd < ODD_MAX and len(data) - at >= LENGTHS.size:
        total, word = LENGTHS.unpack_from(data, at)
        stop = at + 4 + total
        if total < 4 + word:
            # A binary header, or a frame with invalid lengths.
            return odd + 1
        if stop > len(data):
            break
        if word == total - 4 and word <= SHORT_HEADER_MAX_BYTES:
            try:
                found = _read(data[at + 8 : stop])
            except Odd:
                pass
            else:
                return odd or (found, stop)
        odd += 1
        at = stop
    return odd


def _read(header: bytes) -> Header:
    found = read_header(header, _FORMS)
    if found.flag & _ODD_FLAGS:
        raise Odd
    return found


def _fields_of(header: Header) -> PullFields:
    fields = [field.decode() if isinstance(field, bytes) else field for field in header.fields]
    return tuple(fields)  # type: ignore[return-value]


def answer_frame(
    pieces: tuple[bytes, ...],
    numbers: tuple[int, ...],
    chunks: Sequence[bytes | bytearray | memoryview],
) -> bytes:
    """Return the frame of an answer.

    The header consists of ``pieces`` with one of ``numbers`` after each but the last; the body
    consists of ``chunks``.
    """
    if len(pieces) != len(numbers) + 1:
        raise ValueError("a piece of the header stands before each number, and one at the end")
    head = b"".join([b"%b%d" % pair for pair in zip(pieces, numbers, strict=False)]) + pieces[-1]
    total = 4 + len(head) + sum(map(len, chunks))
    return b"".join((LENGTHS.pack(total, len(head)), head, *chunks))


class Reads(Protocol):
    """Access to the part of ``log`` that is in memory; see store/read/coldreads.py."""

    @property
    def log(self) -> Any: ...
    @property
    def hot_bytes(self) -> int: ...
    @property
    def sound_from(self) -> int: ...

    def mapped(self, file: Any, start: int, stop: int, /) -> memoryview | None: ...


class Wanted(Protocol):
    """Filter of a pull: none, a set of tag codes, or a program."""

    @property
    def codes(self) -> frozenset[int] | None: ...
    @property
    def program(self) -> Program | None: ...


class PullCounter:
    """Messages of a topic delivered to a consumer group, their bytes, and the number of pulls.

    ``step`` is the number of the time step in which the last messages were counted. A subclass may
    override :meth:`begin`, which is called at the first count of each step.
    """

    __slots__ = ("count", "size_bytes", "step", "times")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.times = 0
        self.step = -1

    def begin(self, step: int) -> None:
        """Start a new time step."""
        self.step = step

    def add(self, count: int, size_bytes: int, step: int) -> None:
        """Count the messages of one pull in a time step; call :meth:`begin` if the step is new."""
        if self.step != step:
            self.begin(step)
        self.count += count
        self.size_bytes += size_bytes
        self.times += 1


class PullTotals:
    """Numbers of pulls that found messages, of pulls that found none, and of messages delivered.

    ``step`` is the current time step.
    """

    __slots__ = ("found", "missed", "step", "transferred")

    def __init__(self) -> None:
        self.found = 0
        self.missed = 0
        self.transferred = 0
        self.step = 0


class PullPosition:
    """Queue offset up to which a consumer group has pulled a queue; -1 before its first pull."""

    __slots__ = ("offset",)

    def __init__(self) -> None:
        self.offset = -1


class PullPlan:
    """Cached decisions for all pulls that send the same request to ``queue``.

        fields      those of one such pull
        most        maximum number of messages, and of bytes, in an answer
        wanted      the filter
        budget      maximum number of messages, and of bytes of properties, that its program
                    examines
        proof       what the records of entries from a file are checked against: ``queue`` of
                    :func:`take_records`
        suggested   broker ids to ask next, if slaves serve lagging consumers: the usual one, and
                    the one while this broker is busy with such reads
        position    set by each pull that is answered or may be held

    ``block`` are the entries from ``block_offset`` on that were read ahead. A plan is outdated if
    its ``epoch`` is not that of its :class:`PullAnswers`.
    """

    __slots__ = (
        "block",
        "block_offset",
        "budget",
        "codes",
        "counter",
        "epoch",
        "fields",
        "most",
        "position",
        "program",
        "proof",
        "queue",
        "suggested",
        "wanted",
    )

    def __init__(
        self,
        queue: QueueState,
        fields: PullFields,
        most: tuple[int, int],
        wanted: Wanted,
        budget: tuple[int, int],
        proof: tuple[int, bytes] | None,
        suggested: tuple[int, int],
        position: PullPosition,
    ) -> None:
        self.queue = queue
        self.fields = fields
        self.most = max(most[0], 1), most[1]
        self.wanted = wanted
        self.codes: frozenset[int] | None = wanted.codes
        self.program: Program | None = wanted.program
        self.budget = budget
        self.proof = proof
        self.suggested = suggested
        self.position = position
        self.counter: PullCounter | None = None
        self.epoch = -1
        self.block: Entries = b""
        self.block_offset = 0


class PullAnswers:
    """Answers plain pulls.

    ``pieces`` are the header pieces (:func:`answer_frame`) of an answer with messages, and of one
    without. The last ``recent_bytes`` of the log are certainly in memory, as far as this process
    wrote them.

    ``plan_of(fields)`` returns a plan, or None for an odd pull. ``entries_of(queue, offset,
    count)`` reads entries from a queue's file, or returns None if that would block.
    ``counter_of(group, topic)`` returns a counter, and ``commit(group, topic, queue id, offset)``
    stores a consumer offset.
    """

    __slots__ = (
        "_commit",
        "_counter_of",
        "_entries_of",
        "_epoch",
        "_pieces",
        "_plan_of",
        "_plans",
        "_reads",
        "_recent_bytes",
        "_totals",
    )

    def __init__(
        self,
        reads: Reads,
        recent_bytes: int,
        pieces: tuple[tuple[bytes, ...], tuple[bytes, ...]],
        totals: PullTotals,
        plan_of: Callable[[PullFields], PullPlan | None],
        entries_of: Callable[[QueueState, int, int], Entries | None],
        counter_of: Callable[[str, str], PullCounter],
        commit: Callable[[str, str, int, int], object],
    ) -> None:
        self._reads = reads
        self._recent_bytes = recent_bytes
        self._pieces = pieces
        self._totals = totals
        self._plan_of = plan_of
        self._entries_of = entries_of
        self._counter_of = counter_of
        self._commit = commit
        self._plans: dict[object, PullPlan] = {}
        self._epoch = 0

    def forget(self) -> None:
        """Drop all plans, after a change of something on which they depend."""
        self._plans.clear()
        self._epoch += 1

    def take(
        self,
        data: bytes,
        at: int,
        suggests: int,
        may_match: bool,
        access: AccessCache | None = None,
    ) -> tuple[bytes, int, int, list[Waiting]]:
        """Answer plain pulls from ``data[at]`` on.

        Returns their answers, the position of the first frame that was not taken, the number of odd
        frames from there on, and the pulls that can be held. ``suggests`` selects the broker to ask
        next: 0 for none, 1 or 2 for the first or second that the plan suggests. Unless
        ``may_match`` is true, pulls with a filter are odd; with ``access``, so are pulls that are
        not certainly allowed.
        """
        frames: list[bytes] = []
        waiting: list[Waiting] = []
        odd = 0
        for _ in range(AT_ONCE):
            found = _next_pull(data, at)
            if isinstance(found, int):
                odd = found
                break
            header, stop = found
            group, topic = header.fields[:2]
            if access is not None and not access.permits(
                header.code, header.all_fields, b"", topic, group
            ):
                odd = 1
                break
            fields, opaque = _fields_of(header), header.opaque
            plan = self._plan(fields)
            if plan is None or (plan.program is not None and not may_match):
                odd = 1
                break
            offset, flag, hold_ms = fields[3], fields[5], fields[7]
            frame = self._answer(plan, offset, opaque, suggests)
            if frame is not None:
                frames.append(frame)
            elif offset == plan.queue.max_offset and flag & SUSPEND and hold_ms > 0:
                plan.position.offset = offset
                waiting.append((plan, offset, opaque, hold_ms))
            else:
                odd = 1
                break
            if flag & COMMIT_OFFSET:
                self._commit(fields[0], fields[1], fields[2], fields[6])
            at = stop
            # A filter examines many records, so other connections get their turn.
            if plan.program is not None:
                break
        return b"".join(frames), at, odd, waiting

    def serve(self, pulls: Sequence[Any], suggests: int) -> list[bytes | None]:
        """Return the answers to held pulls, each with its ``plan``, ``offset`` and ``opaque``.

        The answer is None for a pull that is odd by now or has a filter.
        """
        return [
            self._answer(pull.plan, pull.offset, pull.opaque, suggests)
            if pull.plan.epoch == self._epoch and pull.plan.program is None
            else None
            for pull in pulls
        ]

    def _plan(self, fields: PullFields) -> PullPlan | None:
        # Pulls that differ only in their offset, committed offset or hold time share a plan.
        key = (*fields[:3], *fields[4:6], *fields[8:])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan_of(fields)
            if plan is not None:
                if len(self._plans) >= PLANS_MAX:
                    self._plans.clear()
                plan.epoch = self._epoch
                self._plans[key] = plan
        return plan

    def _answer(self, plan: PullPlan, offset: int, opaque: int, suggests: int) -> bytes | None:
        """Return the answer to a pull and count it; None if the pull is odd."""
        queue, totals = plan.queue, self._totals
        if not queue.min_offset <= offset < queue.max_offset:
            return None
        if plan.program is None:
            taken = self._take(plan, offset)
        else:
            taken = self._match(plan, plan.program, offset)
        if taken is None:
            return None
        looked_at, count, size_bytes, records = taken
        if count:
            totals.found += 1
            totals.transferred += count
            self._count(plan, count, size_bytes)
        else:
            totals.missed += 1
        suggested = plan.suggested[suggests - 1] if count and suggests else 0
        plan.position.offset = next_offset = offset + looked_at
        numbers = (queue.max_offset, queue.min_offset, next_offset, suggested, opaque)
        return answer_frame(self._pieces[0 if count else 1], numbers, (records,))

    def _count(self, plan: PullPlan, count: int, size_bytes: int) -> None:
        counter = plan.counter
        if counter is None:
            counter = plan.counter = self._counter_of(plan.fields[0], plan.fields[1])
        counter.add(count, size_bytes, self._totals.step)

    def _take(self, plan: PullPlan, offset: int) -> tuple[int, int, int, memoryview] | None:
        """Return the records for a pull without a program; None unless there is at least one.

        The result is that of :func:`take_records`. Tag codes may filter.
        """
        count_max = plan.most[0]
        wanted = count_max if plan.codes is None else max(LOOKED_MAX, count_max)
        entries, is_kept = self._entries(plan, offset, wanted)
        found = self._take_of(plan, entries, offset)
        if is_kept and found is not None and found[0] * ENTRY.size == len(entries):
            # All cached entries were examined. The queue's file may have more: read again.
            plan.block = b""
            entries, _ = self._entries(plan, offset, wanted)
            found = self._take_of(plan, entries, offset)
        if found is None or not found[1]:
            plan.block = b""
            return None
        return found

    def _take_of(
        self, plan: PullPlan, entries: Entries, offset: int
    ) -> tuple[int, int, int, memoryview] | None:
        part = self._part(entries)
        if part is None:
            return None
        log, has_at_once = part
        # Entries in the tail were not read from a file and need no check.
        proof = None if offset >= plan.queue.tail_offset else plan.proof
        return take_records(entries, offset, plan.codes, plan.most, log, proof, has_at_once)

    def _match(
        self, plan: PullPlan, program: Program, start: int
    ) -> tuple[int, int, int, memoryview] | None:
        """Return the records for a pull with a program; None if the first one is not available.

        The result has the form of :func:`take_records`.
        """
        count_max, bytes_max = plan.most
        looked_left, properties_left = plan.budget
        stop = min(plan.queue.max_offset, start + LOOKED_MAX)
        offset, count, size_bytes, records = start, 0, 0, b""
        while (
            offset < stop
            and count < count_max
            and (offset == start or (looked_left > 0 and properties_left > 0))
        ):
            entries, _ = self._entries(plan, offset, min(stop - offset, STEP_ENTRIES))
            part = self._part(entries)
            if part is None:
                break
            log, has_at_once = part
            proof = None if offset >= plan.queue.tail_offset else plan.proof
            most = count_max - count, bytes_max - size_bytes
            budget = looked_left, properties_left
            looked_at, properties_bytes, chosen = match_records(
                program, entries, offset, most, budget, log, proof, has_at_once
            )
            if not looked_at:
                break
            every = len(chosen) // ENTRY.size, 1 << 62
            data, base, low, high, _ = log
            # match_records has read and checked these records already.
            taken = take_records(
                chosen, 0, None, every, (data, base, low, high, base), None, has_at_once
            )
            # match_records returns its first match whatever its size. That match may exceed what
            # earlier steps left of the limit.
            if taken is None or (count and size_bytes + taken[2] > bytes_max):
                break
            offset += looked_at
            looked_left -= looked_at
            properties_left -= properties_bytes
            count += taken[1]
            size_bytes += taken[2]
            records += taken[3]
        if offset == start:
            plan.block = b""
            return None
        return offset - start, count, size_bytes, memoryview(records)

    def _entries(self, plan: PullPlan, offset: int, count: int) -> tuple[Entries, bool]:
        """Return at most ``count`` entries of a queue; none if reading them would block.

        The second value is true if there are fewer because the read-ahead block ended.
        """
        queue = plan.queue
        if offset >= queue.tail_offset:
            at = (offset - queue.tail_offset) * ENTRY.size
            return queue.tail[at : at + count * ENTRY.size], False
        if plan.proof is None:
            # A plan without proof has no read-ahead block: its entries name records of other
            # queues.
            return self._entries_of(queue, offset, count) or b"", False
        at = (offset - plan.block_offset) * ENTRY.size
        if 0 <= at <= len(plan.block) - ENTRY.size:
            entries = plan.block[at : at + count * ENTRY.size]
            return entries, len(entries) < count * ENTRY.size
        plan.block = self._entries_of(queue, offset, max(count, AHEAD_ENTRIES)) or b""
        plan.block_offset = offset
        return plan.block[: count * ENTRY.size], False

    def _part(
        self, entries: Entries
    ) -> tuple[tuple[memoryview, int, int, int, int], Callable[[int, int], bool]] | None:
        """Return the ``log`` and ``has_at_once`` of :func:`take_records` for the first entry.

        They cover the log file that holds its record. Returns None if that record is not near the
        end of the log.
        """
        if len(entries) < ENTRY.size:
            return None
        reads = self._reads
        log = reads.log
        place = int.from_bytes(entries[:8], "big", signed=True)
        written = log.written
        if place < 0 or written - place > reads.hot_bytes:
            return None
        file = log.segments.find(place)
        if file is None:
            return None
        near = written - min(self._recent_bytes, reads.hot_bytes)
        sure = max(log.opened_at, near, reads.sound_from)
        base = file.base
        return (
            (file.view, base, base, min(file.end, written), sure),
            lambda start, stop: reads.mapped(file, start, stop) is not None,
        )
