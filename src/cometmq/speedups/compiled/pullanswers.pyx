# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain pulls of a connection: from request frames to answer frames.

Compiled; plain/pullanswers.py is the definition. Untrusted bytes are read by headers.pxd, entries
and records by pulls.pyx and match.pyx.
"""

from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from libc.string cimport memcpy

from cometmq.speedups.compiled.match import match_records

from cometmq.speedups.compiled.access cimport AccessCache, Claim, write_content
from cometmq.speedups.compiled.headers cimport (
    LONG_NUMBER, NUMBER, ODD_MAX, SHORT_HEADER_MAX_BYTES, TEXT, AllFields, Field, Form, Header, form_of,
    make_fields, read_header,
)
from cometmq.speedups.compiled.octets cimport (
    DIGITS_MAX, Bytes, be32, be64, put32, put64, put_decimal,
)
from cometmq.speedups.compiled.pulls cimport Reading
from cometmq.speedups.compiled.records cimport ENTRY_BYTES
from cometmq.speedups.compiled.writebatch cimport QueueState

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    char *PyByteArray_AsString(object) except NULL
    Py_ssize_t PyByteArray_Size(object) except -1
    Py_ssize_t PyBytes_Size(object) except -1
    object PyUnicode_FromStringAndSize(const char *, Py_ssize_t)

cdef enum:
    ODD_FLAGS = 3
    PULL = 11
    LITE_PULL = 361
    REQUIRED = 0x1FF
    NUMBERS_MAX = 16
    # Number of numbers in an answer to a pull.
    ANSWER_NUMBERS = 5
    # Limits of pulls and plans, and numbers of entries; see plain/pullanswers.py.
    AT_ONCE = 8
    PLANS_MAX = 4096
    AHEAD_ENTRIES = 256
    STEP_ENTRIES = 256
    LOOKED_MAX = 800
    # Bits of sysFlag.
    COMMIT_OFFSET = 1
    SUSPEND = 2
    # Maximum size of a plan's key: four numbers, the flags of the texts present, and the texts.
    KEY_MAX_BYTES = 4 * 8 + 1 + SHORT_HEADER_MAX_BYTES + 4

cdef tuple NAMED = (
    (b"consumerGroup", TEXT), (b"topic", TEXT), (b"queueId", NUMBER), (b"queueOffset", LONG_NUMBER),
    (b"maxMsgNums", NUMBER), (b"sysFlag", NUMBER), (b"commitOffset", LONG_NUMBER),
    (b"suspendTimeoutMillis", LONG_NUMBER), (b"subVersion", LONG_NUMBER), (b"subscription", TEXT),
    (b"expressionType", TEXT),
)
cdef Field FIELDS[11]
make_fields(FIELDS, NAMED)
cdef Form FORMS[2]
FORMS[0] = form_of(PULL, FIELDS, 11, REQUIRED)
FORMS[1] = form_of(LITE_PULL, FIELDS, 11, REQUIRED)


cdef inline object _text(Header *header, int number):
    if not header.fields & 1 << number:
        return None
    return PyUnicode_FromStringAndSize(
        <const char *>header.texts[number].at, header.texts[number].size
    )


cdef int _next_pull(
    bytes data, Py_ssize_t at, Header *pull, Py_ssize_t *stop, AllFields *all=NULL
) except -2:
    """Read the plain pull at a position and the end of its frame.

    Returns -1 if there is one, otherwise the number of consecutive odd frames.
    """
    cdef Bytes begin = <Bytes>PyBytes_AsString(data)
    cdef Bytes p
    cdef Py_ssize_t left = PyBytes_Size(data) - at
    cdef unsigned long long total, header_bytes
    cdef int odd = 0
    if at < 0 or left < 0:
        raise ValueError("a begin outside the data")
    p = begin + at
    while odd < ODD_MAX and left >= 8:
        total = be32(p)
        header_bytes = be32(p + 4)
        if total < 4 or header_bytes > total - 4:
            return odd + 1
        if total + 4 > <unsigned long long>left:
            break
        if (
            header_bytes == total - 4
            and header_bytes <= SHORT_HEADER_MAX_BYTES
            and read_header(p + 8, p + 4 + total, FORMS, 2, pull, all)
            and not pull.flag & ODD_FLAGS
        ):
            if odd:
                return odd
            stop[0] = p + 4 + total - begin
            return -1
        odd += 1
        p += 4 + total
        left -= 4 + total
    return odd


cdef tuple _fields(Header *pull):
    return (
        _text(pull, 0), _text(pull, 1), pull.numbers[2], pull.numbers[3], pull.numbers[4],
        pull.numbers[5], pull.numbers[6], pull.numbers[7], pull.numbers[8], _text(pull, 9),
        _text(pull, 10),
    )


cdef int _is_permitted(
    AccessCache access, Header *pull, bytes data, Py_ssize_t stop
) except -1:
    """Return whether a pull, without a body, is certainly allowed; its fields are noted already."""
    cdef Claim *claim = &access.claims.rows[0]
    access.claims.used = 0
    write_content(access.claims, 0, NULL, <Bytes>PyBytes_AsString(data) + stop, 0)
    access.prove(1)
    return claim.is_right and access.is_allowed(
        claim, pull.code, &pull.texts[1], &pull.texts[0]
    )


def read_pull(bytes data, Py_ssize_t at):
    """Return the plain pull at a position, or the number of odd frames; see plain/pullanswers.py."""
    cdef Header pull
    cdef Py_ssize_t stop = 0
    cdef int odd = _next_pull(data, at, &pull, &stop)
    if odd >= 0:
        return odd
    return _fields(&pull), pull.opaque, stop


def answer_frame(tuple pieces, tuple numbers, chunks):
    """Return the frame of an answer; see plain/pullanswers.py."""
    cdef long long values[NUMBERS_MAX]
    cdef Py_ssize_t n, count = len(numbers), body_bytes = 0
    cdef unsigned char *out
    cdef unsigned char *end
    cdef Py_buffer view
    cdef bytes frame
    if len(pieces) != count + 1:
        raise ValueError("a piece of the header stands before each number, and one at the end")
    if count > NUMBERS_MAX:
        raise ValueError("too many numbers")
    for n in range(count):
        values[n] = numbers[n]
    for chunk in chunks:
        body_bytes += len(chunk)
    frame = _begun(pieces, values, count, body_bytes)
    end = <unsigned char *>PyBytes_AsString(frame) + PyBytes_Size(frame)
    out = end - body_bytes
    for chunk in chunks:
        PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE)
        try:
            if view.len > end - out:
                raise ValueError("a chunk grew")
            memcpy(out, view.buf, view.len)
            out += view.len
        finally:
            PyBuffer_Release(&view)
    if out != end:
        raise ValueError("a chunk shrank")
    return frame


cdef class PullCounter:
    """Messages of a topic delivered to a consumer group; see plain/pullanswers.py."""

    cdef public long long count
    cdef public long long size_bytes
    cdef public long long times
    cdef public long long step

    def __cinit__(self):
        self.step = -1

    def begin(self, long long step):
        self.step = step

    cdef int more(self, long long count, long long size_bytes, long long step) except -1:
        """Count messages of one pull in a time step, which begins if it is a new one."""
        if self.step != step:
            self.begin(step)
        self.count += count
        self.size_bytes += size_bytes
        self.times += 1
        return 0

    def add(self, long long count, long long size_bytes, long long step):
        """Count messages in a time step; see plain/pullanswers.py."""
        self.more(count, size_bytes, step)


cdef class PullTotals:
    """Numbers of pulls and of messages delivered; see plain/pullanswers.py."""

    cdef public long long found
    cdef public long long missed
    cdef public long long transferred
    cdef public long long step


cdef class PullPosition:
    """Queue offset up to which a consumer group pulled a queue; see plain/pullanswers.py."""

    cdef public long long offset

    def __cinit__(self):
        self.offset = -1


cdef class PullPlan:
    """Cached decisions for all pulls with the same request; see plain/pullanswers.py."""

    cdef readonly QueueState queue
    cdef readonly tuple fields
    cdef readonly object wanted
    cdef readonly object codes
    cdef readonly object program
    cdef readonly PullPosition position
    cdef readonly long long epoch
    cdef Py_ssize_t count_max
    cdef long long bytes_max
    cdef long long looked_max, properties_max
    cdef tuple proof
    cdef long long suggested[2]
    cdef PullCounter counter
    cdef object block
    cdef long long block_offset

    def __init__(
        self, QueueState queue not None, tuple fields not None, tuple most not None, wanted,
        tuple budget not None, tuple proof, tuple suggested not None,
        PullPosition position not None,
    ):
        self.queue = queue
        self.fields = fields
        self.count_max, self.bytes_max = most
        self.count_max = max(self.count_max, 1)
        self.wanted = wanted
        self.codes = wanted.codes
        self.program = wanted.program
        self.looked_max, self.properties_max = budget
        self.proof = proof
        self.suggested[0], self.suggested[1] = suggested
        self.position = position
        self.epoch = -1
        self.block = b""


cdef class _AtOnce:
    """Callable that returns whether bytes of a log file can be read without blocking."""

    cdef object reads, file

    def __call__(self, start, stop):
        return self.reads.mapped(self.file, start, stop) is not None


cdef struct Part:
    long long base
    long long high
    long long sure


cdef class PullAnswers:
    """Answers plain pulls; see plain/pullanswers.py."""

    cdef object reads, plan_of, entries_of, counter_of, commit
    cdef tuple found_pieces, missed_pieces
    cdef PullTotals totals
    cdef dict plans
    cdef long long epoch, recent_bytes
    # Records, bytes and number of messages that the last pull with a filter found.
    cdef object matched
    cdef long long matched_bytes
    cdef Py_ssize_t matched_count

    def __init__(
        self, reads, long long recent_bytes, tuple pieces not None, PullTotals totals not None,
        plan_of, entries_of, counter_of, commit,
    ):
        self.found_pieces, self.missed_pieces = pieces
        for each in pieces:
            if len(each) != ANSWER_NUMBERS + 1:
                raise ValueError("a piece of the header stands before each number, and one at the end")
        self.reads = reads
        self.recent_bytes = recent_bytes
        self.totals = totals
        self.plan_of = plan_of
        self.entries_of = entries_of
        self.counter_of = counter_of
        self.commit = commit
        self.plans = {}

    def forget(self):
        """Drop all plans; see plain/pullanswers.py."""
        self.plans.clear()
        self.epoch += 1

    def take(
        self, bytes data not None, Py_ssize_t at, int suggests, bint may_match,
        AccessCache access=None,
    ):
        """Answer plain pulls; see plain/pullanswers.py."""
        cdef Header pull
        cdef AllFields *all_fields = NULL if access is None else &access.claims.fields
        cdef PullPlan plan
        cdef Py_ssize_t stop = 0
        cdef int odd = 0, n
        cdef list waiting = []
        cdef bytes frames = None
        cdef list more = None
        for n in range(AT_ONCE):
            odd = _next_pull(data, at, &pull, &stop, all_fields)
            if odd >= 0:
                break
            odd = 0
            if access is not None and not _is_permitted(access, &pull, data, stop):
                odd = 1
                break
            plan = self.plan(&pull)
            if plan is None or (plan.program is not None and not may_match):
                odd = 1
                break
            frame = self.answer(plan, pull.numbers[3], pull.opaque, suggests)
            if frame is not None:
                if frames is None:
                    frames = frame
                else:
                    if more is None:
                        more = [frames]
                    more.append(frame)
            elif (
                pull.numbers[3] == plan.queue.max_offset and pull.numbers[5] & SUSPEND
                and pull.numbers[7] > 0
            ):
                plan.position.offset = pull.numbers[3]
                waiting.append((plan, pull.numbers[3], pull.opaque, pull.numbers[7]))
            else:
                odd = 1
                break
            if pull.numbers[5] & COMMIT_OFFSET:
                self.commit(plan.fields[0], plan.fields[1], plan.fields[2], pull.numbers[6])
            at = stop
            if plan.program is not None:
                break
        if more is not None:
            frames = b"".join(more)
        return b"" if frames is None else frames, at, odd, waiting

    def serve(self, pulls, int suggests):
        """Return the answers to held pulls; see plain/pullanswers.py."""
        cdef PullPlan plan
        cdef list frames = []
        for pull in pulls:
            plan = pull.plan
            if plan.epoch == self.epoch and plan.program is None:
                frames.append(self.answer(plan, pull.offset, pull.opaque, suggests))
            else:
                frames.append(None)
        return frames

    cdef PullPlan plan(self, Header *pull):
        cdef unsigned char key[KEY_MAX_BYTES]
        cdef unsigned char *p = key + 33
        cdef int n
        cdef PullPlan plan
        put64(key, pull.numbers[2])
        put64(key + 8, pull.numbers[4])
        put64(key + 16, pull.numbers[5])
        put64(key + 24, pull.numbers[8])
        key[32] = (1 if pull.fields & 1 << 9 else 0) | (2 if pull.fields & 1 << 10 else 0)
        for n in (0, 1, 9, 10):
            if pull.fields & 1 << n:
                memcpy(p, pull.texts[n].at, pull.texts[n].size)
                p += pull.texts[n].size
            # No text contains a zero byte, so it separates them.
            p[0] = 0
            p += 1
        name = PyBytes_FromStringAndSize(<const char *>key, p - key)
        plan = self.plans.get(name)
        if plan is None:
            plan = self.plan_of(_fields(pull))
            if plan is not None:
                if len(self.plans) >= PLANS_MAX:
                    self.plans.clear()
                plan.epoch = self.epoch
                self.plans[name] = plan
        return plan

    cdef bytes answer(self, PullPlan plan, long long offset, long long opaque, int suggests):
        """Return the answer to a pull and count it; None if the pull is odd."""
        cdef QueueState queue = plan.queue
        cdef Reading reading = None
        cdef long long next_offset, size_bytes, suggested = 0
        cdef Py_ssize_t count
        cdef PullCounter counter
        cdef PullTotals totals = self.totals
        cdef bytes frame
        cdef long long numbers[ANSWER_NUMBERS]
        cdef unsigned char *out
        if not queue.min_offset <= offset < queue.max_offset:
            return None
        if plan.program is None:
            reading = self.take_some(plan, offset)
            if reading is None:
                return None
            next_offset = offset + reading.looked_at
            count = reading.count
            size_bytes = reading.total
        else:
            next_offset = self.match(plan, offset)
            if next_offset == offset:
                return None
            count = self.matched_count
            size_bytes = self.matched_bytes
        if count:
            totals.found += 1
            totals.transferred += count
            counter = plan.counter
            if counter is None:
                counter = plan.counter = self.counter_of(plan.fields[0], plan.fields[1])
            counter.more(count, size_bytes, totals.step)
            if 0 < suggests <= 2:
                suggested = plan.suggested[suggests - 1]
        else:
            totals.missed += 1
        plan.position.offset = next_offset
        numbers[0], numbers[1], numbers[2] = queue.max_offset, queue.min_offset, next_offset
        numbers[3], numbers[4] = suggested, opaque
        frame = _begun(
            self.found_pieces if count else self.missed_pieces, numbers, ANSWER_NUMBERS, size_bytes
        )
        out = <unsigned char *>PyBytes_AsString(frame) + PyBytes_Size(frame) - size_bytes
        if reading is not None:
            reading.gather(out)
        else:
            for reading in self.matched:
                reading.gather(out)
                out += reading.total
            self.matched = None
        return frame

    cdef Reading take_some(self, PullPlan plan, long long offset):
        """Return the records for a pull without a filter; None unless there is at least one."""
        cdef Py_ssize_t wanted = plan.count_max
        cdef bint is_kept = False
        cdef Reading reading
        cdef bytes entries
        if plan.codes is not None and wanted < LOOKED_MAX:
            wanted = LOOKED_MAX
        entries = self.entries(plan, offset, wanted, &is_kept)
        reading = self.take_of(plan, entries, offset)
        if is_kept and reading is not None and reading.looked_at * ENTRY_BYTES == len(entries):
            # All cached entries were examined; the queue may have more by now.
            plan.block = b""
            entries = self.entries(plan, offset, wanted, &is_kept)
            reading = self.take_of(plan, entries, offset)
        if reading is None or not reading.count:
            plan.block = b""
            return None
        return reading

    cdef Reading take_of(self, PullPlan plan, bytes entries, long long offset):
        cdef Part part
        cdef _AtOnce has_at_once = self.part(entries, &part)
        cdef Reading reading
        if has_at_once is None:
            return None
        reading = Reading.__new__(Reading)
        if reading.take(
            entries, has_at_once.file.view, offset, plan.codes, plan.count_max, plan.bytes_max,
            part.base, part.base, part.high, part.sure,
            None if offset >= plan.queue.tail_offset else plan.proof, has_at_once,
        ):
            return reading
        return None

    cdef long long match(self, PullPlan plan, long long start) except -1:
        """Find the records for a pull with a filter and return the next offset.

        The next offset equals `start` if the first record is not available.
        """
        cdef long long looked_left = plan.looked_max, properties_left = plan.properties_max
        cdef long long offset = start, stop = min(plan.queue.max_offset, start + LOOKED_MAX)
        cdef long long looked_at, properties_bytes
        cdef bint is_kept = False
        cdef bytes entries, chosen
        cdef Part part
        cdef _AtOnce has_at_once
        cdef Reading reading
        self.matched = []
        self.matched_count = 0
        self.matched_bytes = 0
        while (
            offset < stop
            and self.matched_count < plan.count_max
            and (offset == start or (looked_left > 0 and properties_left > 0))
        ):
            entries = self.entries(plan, offset, min(stop - offset, STEP_ENTRIES), &is_kept)
            has_at_once = self.part(entries, &part)
            if has_at_once is None:
                break
            data = has_at_once.file.view
            looked_at, properties_bytes, chosen = match_records(
                plan.program, entries, offset,
                (plan.count_max - self.matched_count, plan.bytes_max - self.matched_bytes),
                (looked_left, properties_left), (data, part.base, part.base, part.high, part.sure),
                None if offset >= plan.queue.tail_offset else plan.proof, has_at_once,
            )
            if not looked_at:
                break
            # match_records has read and checked these records already.
            reading = Reading.__new__(Reading)
            if not reading.take(
                chosen, data, 0, None, len(chosen) // ENTRY_BYTES, 1LL << 62, part.base, part.base,
                part.high, part.base, None, has_at_once,
            ):
                break
            # match_records always returns its first match, which may exceed the limit for this
            # pull.
            if self.matched_count and self.matched_bytes + reading.total > plan.bytes_max:
                break
            offset += looked_at
            looked_left -= looked_at
            properties_left -= properties_bytes
            self.matched_count += reading.count
            self.matched_bytes += reading.total
            self.matched.append(reading)
        if offset == start:
            plan.block = b""
        return offset

    cdef bytes entries(
        self, PullPlan plan, long long offset, Py_ssize_t count, bint *is_kept
    ):
        """Return at most `count` entries of a queue; none if reading them would block.

        Sets `is_kept` if there are fewer because the read-ahead block ended.
        """
        cdef QueueState queue = plan.queue
        cdef long long at
        cdef Py_ssize_t size = count * ENTRY_BYTES, left
        is_kept[0] = False
        if offset >= queue.tail_offset:
            left = PyByteArray_Size(queue.tail)
            if offset - queue.tail_offset >= left // ENTRY_BYTES:
                return b""
            at = (offset - queue.tail_offset) * ENTRY_BYTES
            return PyBytes_FromStringAndSize(
                PyByteArray_AsString(queue.tail) + at, min(size, left - <Py_ssize_t>at)
            )
        if plan.proof is None:
            # Entries of light queues name records of other queues; read them each time.
            return bytes(self.entries_of(queue, offset, count) or b"")
        if not plan.block_offset <= offset < plan.block_offset + len(plan.block) // ENTRY_BYTES:
            plan.block = bytes(self.entries_of(queue, offset, max(count, AHEAD_ENTRIES)) or b"")
            plan.block_offset = offset
            return plan.block[:size]
        at = (offset - plan.block_offset) * ENTRY_BYTES
        found = plan.block[at:at + size]
        is_kept[0] = len(found) < size
        return found

    cdef _AtOnce part(self, bytes entries, Part *part):
        """Find the log file of the first entry's record.

        Returns None if the record is not near the end of the log.
        """
        cdef long long place, written, hot_bytes, end, opened_at, sound_from
        cdef _AtOnce found
        if PyBytes_Size(entries) < ENTRY_BYTES:
            return None
        place = be64(<Bytes>PyBytes_AsString(entries))
        if place < 0:
            return None
        reads = self.reads
        log = reads.log
        written = log.written
        hot_bytes = reads.hot_bytes
        if written - place > hot_bytes:
            return None
        file = log.segments.find(place)
        if file is None:
            return None
        opened_at = log.opened_at
        sound_from = reads.sound_from
        end = file.end
        part.base = file.base
        part.high = min(end, written)
        part.sure = max(written - min(self.recent_bytes, hot_bytes), opened_at, sound_from)
        found = _AtOnce.__new__(_AtOnce)
        found.reads = reads
        found.file = file
        return found


cdef bytes _begun(
    tuple pieces, const long long *numbers, Py_ssize_t count, Py_ssize_t body_bytes
):
    """Return the frame of an answer with room for its body at the end.

    There is one piece more than there are numbers, of which there are ``NUMBERS_MAX`` at most.
    """
    cdef unsigned char digits[NUMBERS_MAX][DIGITS_MAX]
    cdef Py_ssize_t digit_counts[NUMBERS_MAX]
    cdef Py_ssize_t n, head_bytes = 0, size
    cdef unsigned char *out
    cdef bytes piece
    for n in range(count):
        digit_counts[n] = put_decimal(digits[n], numbers[n]) - digits[n]
        head_bytes += digit_counts[n]
    for piece in pieces:
        head_bytes += PyBytes_Size(piece)
    frame = PyBytes_FromStringAndSize(NULL, 8 + head_bytes + body_bytes)
    out = <unsigned char *>PyBytes_AsString(frame)
    put32(out, <unsigned int>(4 + head_bytes + body_bytes))
    put32(out + 4, <unsigned int>head_bytes)
    out += 8
    for n in range(count + 1):
        piece = pieces[n]
        size = PyBytes_Size(piece)
        memcpy(out, PyBytes_AsString(piece), size)
        out += size
        if n < count:
            memcpy(out, digits[n], digit_counts[n])
            out += digit_counts[n]
    return frame
