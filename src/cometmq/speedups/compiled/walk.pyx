# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Columns of the records in a part of the log.

Compiled; plain/walk.py is the definition. The bytes are not trusted: `is_whole` keeps all parts of
a record within the remaining bytes, and `find_named` reads between two pointers.
"""

from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from libc.stdlib cimport malloc, realloc, free
from libc.string cimport memchr, memcmp, memcpy, memset

from cometmq.speedups.compiled.checksums cimport (
    look_at_processor, make_crc_tables, stored_crc,
)
from cometmq.speedups.compiled.octets cimport Bytes, be32, be64
from cometmq.speedups.compiled.properties cimport Named, find_named, forget, hash_keys, tag_code
from cometmq.speedups.compiled.records cimport (
    BORN_V6, PREPARED_BIT, TRANSACTION_MASK, V6_MORE_BYTES, Parts, WalkedRow, is_whole,
)
from cometmq.speedups.compiled.texts cimport Span, character, text_hash

from cometmq.speedups.plain.walk import Walked

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)

make_crc_tables()
look_at_processor()

cdef enum:
    STORE_MS_AT = 56
    SCHEDULE_BYTES = 19
    UNKNOWN_DELAY_MS = 1000
    QUEUES_MAX = 1024
    # Twice as many places as queues, so that few of them collide.
    TABLE = 2048
    ROWS_AT_FIRST = 64

cdef const char *SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"


cdef struct Queue:
    Bytes topic
    Py_ssize_t topic_bytes
    int queue_id
    # Java's hash of the topic and "#".
    unsigned int prefix
    bint is_odd
    bint is_delayed
    # Whether a record occupies a queue offset or has properties.
    bint is_listed


cdef inline int _look(
    Bytes p, Py_ssize_t left, bint has_place, long long place, bint check_crc, WalkedRow *row
) noexcept nogil:
    """Return 1 if a valid record starts at `p`, within `left` bytes.

    The positions in the row are relative to `p`.
    """
    cdef Parts parts
    cdef unsigned int crc
    if not is_whole(p, left, &parts) or (has_place and be64(p + 28) != place):
        return 0
    if check_crc:
        crc = be32(p + 8)
        if crc and stored_crc(p + parts.body, parts.body_end - parts.body) != crc:
            return 0
    row.size = be32(p)
    row.queue_offset = be64(p + 20)
    row.sys_flag = <int>be32(p + 36)
    row.store_ms = be64(p + STORE_MS_AT + (V6_MORE_BYTES if row.sys_flag & BORN_V6 else 0))
    row.body = parts.body
    row.body_end = parts.body_end
    row.topic = parts.topic
    row.topic_end = parts.topic_end
    return 1


cdef bint _is_odd(Bytes p, Py_ssize_t size) noexcept nogil:
    """Return whether a topic cannot name a queue directory."""
    cdef Bytes end = p + size
    cdef unsigned int point
    if size == 0 or (p[0] == c'.' and (size == 1 or (size == 2 and p[1] == c'.'))):
        return True
    while p < end:
        if p[0] < 0x80:
            if p[0] == 0 or p[0] == c'/':
                return True
            p += 1
        else:
            p += character(p, end, &point)
            if point == 0xFFFD:
                return True
    return False


cdef class _Walk:
    """Results of a walk so far."""

    cdef WalkedRow *rows
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef unsigned int *hashes
    cdef Py_ssize_t hashed
    cdef Py_ssize_t hash_capacity
    cdef Queue *queues
    cdef unsigned short *table
    cdef int queue_count
    cdef int last

    def __cinit__(self):
        self.queues = <Queue *>malloc(QUEUES_MAX * sizeof(Queue))
        self.table = <unsigned short *>malloc(TABLE * sizeof(unsigned short))
        if self.queues == NULL or self.table == NULL:
            raise MemoryError
        # 0 marks an empty place; other values are the number of a queue plus one.
        memset(self.table, 0, TABLE * sizeof(unsigned short))

    def __dealloc__(self):
        free(self.rows)
        free(self.hashes)
        free(self.queues)
        free(self.table)

    cdef int _make_room(self, Py_ssize_t hashes) except -1:
        """Ensure room for one row and `hashes` hashes."""
        cdef Py_ssize_t wanted
        cdef void *found
        if self.count == self.capacity:
            wanted = self.capacity * 2 + ROWS_AT_FIRST
            found = realloc(self.rows, wanted * sizeof(WalkedRow))
            if found == NULL:
                raise MemoryError
            self.rows = <WalkedRow *>found
            self.capacity = wanted
        if self.hashed + hashes > self.hash_capacity:
            wanted = self.hash_capacity * 2 + hashes + ROWS_AT_FIRST
            found = realloc(self.hashes, wanted * sizeof(unsigned int))
            if found == NULL:
                raise MemoryError
            self.hashes = <unsigned int *>found
            self.hash_capacity = wanted
        return 0

    cdef int _queue(self, Bytes topic, Py_ssize_t topic_bytes, int queue_id) noexcept nogil:
        """Return the number of a queue, added if it is new; -1 if there are too many."""
        cdef Queue *queue
        cdef unsigned long long mixed = <unsigned int>queue_id
        cdef unsigned long long word
        cdef Py_ssize_t at = 0
        cdef unsigned int place
        if self.queue_count:
            queue = &self.queues[self.last]
            if (queue.queue_id == queue_id and queue.topic_bytes == topic_bytes
                    and memcmp(queue.topic, topic, topic_bytes) == 0):
                return self.last
        mixed = (mixed << 16 ^ <unsigned long long>topic_bytes) * 0x9E3779B97F4A7C15ULL
        while at < topic_bytes:
            word = 0
            memcpy(&word, topic + at, topic_bytes - at if topic_bytes - at < 8 else 8)
            mixed = (mixed ^ mixed >> 29 ^ word) * 0x9E3779B97F4A7C15ULL
            at += 8
        place = (mixed >> 40) % TABLE
        while self.table[place]:
            queue = &self.queues[self.table[place] - 1]
            if (queue.queue_id == queue_id and queue.topic_bytes == topic_bytes
                    and memcmp(queue.topic, topic, topic_bytes) == 0):
                self.last = self.table[place] - 1
                return self.last
            place = (place + 1) % TABLE
        if self.queue_count == QUEUES_MAX:
            return -1
        self.last = self.queue_count
        self.queue_count += 1
        self.table[place] = self.queue_count
        queue = &self.queues[self.last]
        queue.topic = topic
        queue.topic_bytes = topic_bytes
        queue.queue_id = queue_id
        queue.prefix = text_hash(0, topic, topic_bytes) * 31 + c'#'
        queue.is_listed = False
        queue.is_odd = _is_odd(topic, topic_bytes)
        queue.is_delayed = (
            topic_bytes == SCHEDULE_BYTES and memcmp(topic, SCHEDULE_TOPIC, SCHEDULE_BYTES) == 0
        )
        return self.last

    cdef Py_ssize_t run(
        self, Bytes begin, Py_ssize_t at, Py_ssize_t stop, bint has_base, long long base,
        tuple delays_ms, bint check_crc,
    ) except -1:
        """Walk over the records and return the position where the walk stopped."""
        cdef Bytes p
        cdef Bytes text
        cdef Bytes end
        cdef WalkedRow found
        cdef WalkedRow *row
        cdef Queue *queue
        cdef Named named
        cdef int number
        cdef unsigned long long moment
        while _look(
            begin + at, stop - at, has_base,
            <long long>(<unsigned long long>base + <unsigned long long>at), check_crc, &found,
        ):
            p = begin + at
            number = self._queue(
                p + found.topic, found.topic_end - found.topic, <int>be32(p + 12)
            )
            if number < 0:
                break
            queue = &self.queues[number]
            text = p + found.topic_end + 2
            end = p + found.size
            if end > text or not found.sys_flag & PREPARED_BIT:
                queue.is_listed = True
            forget(&named)
            find_named(text, end, &named)
            # A key has at least one byte, and a space after each key but the last.
            self._make_room(named.keys.size // 2 + 2)
            row = &self.rows[self.count]
            row[0] = found
            row.position = at
            row.queue = number
            row.first_hash = self.hashed
            row.hashes = 0
            row.body += at
            row.body_end += at
            row.topic += at
            row.topic_end += at
            row.tag_code = tag_code(&named)
            if queue.is_delayed:
                moment = _delay_of(&named.delay, delays_ms)
                if moment:
                    row.tag_code = <long long>(moment + <unsigned long long>row.store_ms)
            # Rolled-back messages are not indexed.
            if row.sys_flag & TRANSACTION_MASK != TRANSACTION_MASK:
                row.hashes = hash_keys(&named, queue.prefix, self.hashes + self.hashed)
                self.hashed += row.hashes
            row.odd = (
                queue.is_odd or queue.queue_id < 0 or row.queue_offset < 0
                or (end > text and memchr(text, 0, end - text) != NULL)
            )
            self.count += 1
            at += row.size
        return at


cdef long long _delay_of(Span *level, tuple delays_ms) except -1:
    """Return the delay in ms of a level given as text.

    Returns 0 without a level; a level above the highest one counts as the highest.
    """
    cdef Py_ssize_t n
    cdef long long number = 0
    for n in range(level.size):
        if not c'0' <= level.at[n] <= c'9':
            return 0
        if n < 9:
            number = number * 10 + (level.at[n] - c'0')
    if number == 0:
        return 0
    if not delays_ms:
        return UNKNOWN_DELAY_MS
    return delays_ms[min(number, len(delays_ms)) - 1]


def walk(
    data, Py_ssize_t start, Py_ssize_t stop, base, tuple delays_ms not None, *, bint check_crc
):
    """Walk over the records of `data` from `start` to `stop`; see plain/walk.py."""
    cdef Py_buffer buffer
    cdef _Walk found = _Walk()
    cdef int n
    cdef Queue *queue
    cdef list queues = []
    cdef bint is_open
    cdef long long first = 0 if base is None else base
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= stop <= buffer.len:
            raise ValueError("a begin or an end outside the data")
        start = found.run(
            <Bytes>buffer.buf, start, stop, base is not None, first, delays_ms, check_crc
        )
        for n in range(found.queue_count):
            queue = &found.queues[n]
            topic = PyUnicode_DecodeUTF8(
                <const char *>queue.topic, queue.topic_bytes, b"replace"
            )
            queues.append((topic, queue.queue_id, bool(queue.is_listed)))
        is_open = found.queue_count == QUEUES_MAX and _goes_on(
            <Bytes>buffer.buf, start, stop, base is not None, first, check_crc
        )
    finally:
        PyBuffer_Release(&buffer)
    # NamedTuple's own constructor is Python.
    return tuple.__new__(Walked, (
        PyBytes_FromStringAndSize(<const char *>found.rows, found.count * sizeof(WalkedRow)),
        PyBytes_FromStringAndSize(
            <const char *>found.hashes, found.hashed * sizeof(unsigned int)
        ),
        queues, start, is_open,
    ))


cdef bint _goes_on(
    Bytes begin, Py_ssize_t at, Py_ssize_t stop, bint has_base, long long base, bint check_crc
) noexcept nogil:
    """Return whether a record starts where a walk stopped because of too many queues."""
    cdef WalkedRow row
    return _look(
        begin + at, stop - at, has_base,
        <long long>(<unsigned long long>base + <unsigned long long>at), check_crc, &row,
    )


def check_records(data, Py_ssize_t start, Py_ssize_t stop, base):
    """Return the position where a walk that checks CRCs stops; see plain/walk.py."""
    cdef Py_buffer buffer
    cdef WalkedRow row
    cdef bint has_base = base is not None
    cdef long long first = base if has_base else 0
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= stop <= buffer.len:
            raise ValueError("a begin or an end outside the data")
        while _look(
            <Bytes>buffer.buf + start, stop - start, has_base,
            <long long>(<unsigned long long>first + <unsigned long long>start), True, &row,
        ):
            start += row.size
    finally:
        PyBuffer_Release(&buffer)
    return start
