# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Prepared sends and ends of transactions in the write batch of plain sends.

Compiled; plain/transactions.py is the definition. Records in the log are not trusted: `_find_half`
keeps all reads of a record within the passed part of the log, and checks its parts before they are
used.
"""

from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from cometmq.speedups.compiled.access cimport AccessCache
from cometmq.speedups.compiled.checksums cimport (
    look_at_processor, make_crc_tables, stored_crc,
)
from cometmq.speedups.compiled.octets cimport (
    DIGITS_MAX, Bytes, be32, be64, put16, put32, put64, put_decimal,
)
from cometmq.speedups.compiled.properties cimport (
    PROPERTIES_MAX_BYTES, Named, find_named, forget, mentions_timer,
)
from cometmq.speedups.compiled.records cimport (
    COMMIT, HEAD_BYTES, HOST_BITS, MAGIC_V1, TRANSACTION_MASK, Parts, has_topic, is_whole,
)
from cometmq.speedups.compiled.sends cimport (
    END_GROUP, END_HALF_OFFSET, END_KIND, END_PLACE, ENDING, ONEWAY, PREPARED, QUEUE_ID, SYS_FLAG, TOPIC,
    Send, SendBatch, Taking, find_queue,
)
from cometmq.speedups.compiled.texts cimport Span, is_text
from cometmq.speedups.compiled.writebatch cimport HALF, OP, KnownQueues, QueueState, Row

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    void *PyDict_GetItemWithError(object, object) except? NULL

make_crc_tables()
look_at_processor()

cdef enum:
    #: Maximum number of digits of a half message's queue id.
    QUEUE_DIGITS_MAX = 9
    OP_PROPERTIES_BYTES = 6


cdef class Half:
    """An open transaction; see plain/transactions.py."""

    cdef public long long physical_offset
    cdef public str group
    cdef public long long stored_ms
    cdef public long long immunity_ms
    cdef public long long checks
    cdef public long long due_ms
    cdef public bint ending

    def __init__(
        self, long long physical_offset, str group not None, long long stored_ms,
        long long immunity_ms, long long checks=0,
    ):
        self.physical_offset = physical_offset
        self.group = group
        self.stored_ms = stored_ms
        self.immunity_ms = immunity_ms
        self.checks = checks
        self.due_ms = 0
        self.ending = False


cdef class OpenTransactions:
    """Open transactions and their queues; see plain/transactions.py."""

    cdef readonly dict halves
    cdef public QueueState half_queue
    cdef public QueueState op_queue
    cdef public long long immunity_ms
    cdef public long long due_ms
    cdef public long long planned_end

    def __init__(self):
        self.halves = {}
        self.half_queue = self.op_queue = None
        self.immunity_ms = self.due_ms = self.planned_end = 0


cdef struct Found:
    # A half message in the log, and the values in its properties.
    Bytes at
    Parts parts
    Named named
    Span topic
    long long queue_id


cdef class TransactionBatch(SendBatch):
    """A write batch that also accepts transactions; see plain/transactions.py."""

    cdef OpenTransactions open
    cdef bint admits
    cdef str last_group
    cdef Py_buffer log
    cdef long long log_base
    cdef long long log_begin
    cdef long long log_end
    cdef unsigned char *more
    cdef Py_ssize_t more_capacity
    cdef readonly Py_ssize_t end_count

    def __cinit__(self):
        self.more = NULL
        self.more_capacity = 0
        self.end_count = 0
        self.log_begin = self.log_end = 0
        self.admits = False

    def __dealloc__(self):
        free(self.more)

    def append_all(
        self, bytes data not None, Py_ssize_t at, KnownQueues known not None, bytes born_host not None,
        bytes suffix not None, Py_ssize_t body_max_bytes, long long position, long long limit,
        long long store_ms, Py_ssize_t rows_max, Py_ssize_t bytes_max,
        OpenTransactions transactions, tuple log, AccessCache access=None,
    ):
        """Append plain sends and transactions; see plain/transactions.py."""
        cdef long long base = 0, begin = 0, end = 0
        cdef bint is_seen = transactions is not None and log is not None
        if transactions is not None:
            if self.open is not None and self.open is not transactions:
                raise ValueError("the transactions of another broker")
            self.open = transactions
        self.log_begin = self.log_end = 0
        if is_seen:
            view, base, begin, end = log
            PyObject_GetBuffer(view, &self.log, PyBUF_SIMPLE)
            self.log_base = base
            self.log_begin = max(begin, base)
            self.log_end = min(end, base + self.log.len)
        self.admits = transactions is not None
        try:
            return self._append(
                data, at, known, born_host, suffix, body_max_bytes, position, limit, store_ms,
                rows_max, bytes_max, access,
            )
        finally:
            self.admits = False
            self.log_begin = self.log_end = 0
            if is_seen:
                PyBuffer_Release(&self.log)

    cdef bint _is_for_others(self, int reading) noexcept:
        return self.admits and (reading == PREPARED or reading == ENDING)

    cdef Py_ssize_t _take_other(self, int reading, Send *send, Taking *taking) except -2:
        if not self.admits:
            return 0
        if reading == PREPARED:
            return self._prepare(send, taking)
        return self._end(send, taking)

    cdef Py_ssize_t _prepare(self, Send *send, Taking *taking) except -2:
        """Append a prepared send to the half topic.

        Returns the size of its record, 0 if it is odd, -1 if the log file is full.
        """
        cdef void *found
        cdef QueueState target, queue = self.open.half_queue
        cdef Half half
        cdef Row *row
        cdef Span *topic = &send.header.texts[TOPIC]
        cdef Py_ssize_t more_bytes
        cdef long long size
        cdef int fits
        if queue is None or not find_queue(
            taking, topic.at, topic.size, send.header.numbers[QUEUE_ID], &found
        ):
            return 0
        target = <QueueState?><object>found
        more_bytes = self._place_of(send, taking)
        if send.kept_bytes + 1 + more_bytes > PROPERTIES_MAX_BYTES:
            return 0
        size = (
            HEAD_BYTES + send.body_bytes + PyBytes_Size(queue.topic_tail) + 2
            + send.kept_bytes + 1 + more_bytes
        )
        fits = self._fits(taking, size)
        if fits <= 0:
            return fits
        half = Half.__new__(Half)
        half.physical_offset = taking.position
        half.group = self._group_of(send)
        half.stored_ms = taking.store_ms
        half.immunity_ms = self.open.immunity_ms
        half.checks = 0
        half.due_ms = self.open.due_ms
        half.ending = False
        send.header.numbers[SYS_FLAG] &= ~TRANSACTION_MASK
        row = self._pack(queue, taking, send, size, self.more, more_bytes)
        row.queue_id = <int>target.queue_id
        self.open.halves[row.queue_offset] = half
        row.role = HALF
        if row.queue_offset < self.open.planned_end:
            self.open.planned_end = row.queue_offset
        return size

    cdef str _group_of(self, Send *send):
        """Return the group of a prepared send; consecutive sends of one group share one string."""
        if not send.group.size:
            return ""
        if self.last_group is None or not _is_group(self.last_group, &send.group):
            self.last_group = PyUnicode_DecodeUTF8(
                <const char *>send.group.at, send.group.size, NULL
            )
        return self.last_group

    cdef Py_ssize_t _place_of(self, Send *send, Taking *taking) except -1:
        """Write the properties that are added to a prepared send into `more`; return their size."""
        cdef Span *topic = &send.header.texts[TOPIC]
        cdef Py_ssize_t wanted = 11 + topic.size + 10 + DIGITS_MAX + 1 + taking.suffix_bytes
        cdef unsigned char *p
        cdef void *found
        if wanted > self.more_capacity:
            found = realloc(self.more, wanted)
            if found == NULL:
                raise MemoryError
            self.more = <unsigned char *>found
            self.more_capacity = wanted
        p = self.more
        memcpy(p, b"REAL_TOPIC\x01", 11)
        memcpy(p + 11, topic.at, topic.size)
        p += 11 + topic.size
        memcpy(p, b"\x02REAL_QID\x01", 10)
        p = put_decimal(p + 10, send.header.numbers[QUEUE_ID])
        if taking.suffix_bytes:
            p[0] = 2
            memcpy(p + 1, taking.suffix, taking.suffix_bytes)
            p += 1 + taking.suffix_bytes
        return p - self.more

    cdef Py_ssize_t _end(self, Send *send, Taking *taking) except -2:
        """Append the copy of the half message, for a commit, and the op message.

        Returns the size of their records, 0 if the end is odd, -1 if the log file is full.
        """
        cdef void *entry
        cdef void *found = NULL
        cdef Half half
        cdef Found record
        cdef QueueState ops = self.open.op_queue
        cdef QueueState target = None
        cdef unsigned char digits[DIGITS_MAX]
        cdef Py_ssize_t digit_count, op_bytes, copy_bytes = 0
        cdef long long half_offset = send.header.numbers[END_HALF_OFFSET]
        cdef Span *group = &send.header.texts[END_GROUP]
        cdef int fits
        if ops is None or self.open.half_queue is None or send.body_bytes:
            return 0
        entry = PyDict_GetItemWithError(self.open.halves, half_offset)
        if entry == NULL:
            return 0
        half = <Half?><object>entry
        if (half.ending or half.physical_offset != send.header.numbers[END_PLACE]
                or not _is_group(half.group, group)
                or not self._find_half(half, half_offset, &record)):
            return 0
        digit_count = put_decimal(digits, half_offset) - digits
        op_bytes = (
            HEAD_BYTES + digit_count + PyBytes_Size(ops.topic_tail) + 2 + OP_PROPERTIES_BYTES
        )
        if send.header.numbers[END_KIND] == COMMIT:
            if not _read_half(&record):
                return 0
            if not find_queue(taking, record.topic.at, record.topic.size, record.queue_id, &found):
                return 0
            target = <QueueState?><object>found
            if target.delay_ms:
                return 0
            copy_bytes = (
                be32(record.at) - (record.parts.topic_end - record.parts.body_end)
                + PyBytes_Size(target.topic_tail)
            )
            fits = self._fits(taking, copy_bytes)
            if fits <= 0:
                return fits
        fits = self._fits(taking, copy_bytes + op_bytes)
        if fits <= 0:
            # The copy fits into this file, but the op message would start the next one.
            return 0 if copy_bytes else fits
        if target is not None:
            self._copy(&record, target, taking, copy_bytes)
        self._op(ops, digits, digit_count, send, taking, copy_bytes, op_bytes, half_offset)
        half.ending = True
        self.end_count += 1
        return copy_bytes + op_bytes

    cdef bint _find_half(self, Half half, long long half_offset, Found *found):
        """Find the record of a half message; False unless it is in memory and valid."""
        cdef long long place = half.physical_offset
        cdef Bytes p
        cdef Parts *parts = &found.parts
        cdef bytes tail = self.open.half_queue.topic_tail
        if place < self.log_begin or place >= self.log_end:
            return False
        p = <Bytes>self.log.buf + (place - self.log_base)
        found.at = p
        return (
            is_whole(p, self.log_end - place, parts)
            and be32(p + 4) == MAGIC_V1 and not be32(p + 36) & HOST_BITS
            and be64(p + 20) == half_offset and be64(p + 28) == place
            and has_topic(p, parts, <Bytes>PyBytes_AsString(tail), PyBytes_Size(tail))
            and be32(p) - parts.topic_end - 2 <= PROPERTIES_MAX_BYTES
            and be32(p + 8) == stored_crc(p + parts.body, parts.body_end - parts.body)
        )

    cdef int _copy(
        self, Found *found, QueueState target, Taking *taking, Py_ssize_t size
    ) except -1:
        """Append the copy of a half message for consumers."""
        cdef Row *row
        cdef unsigned char *out = self._add(target, taking, &found.named, size, &row)
        cdef Py_ssize_t tail_bytes = PyBytes_Size(target.topic_tail)
        cdef unsigned int flags = be32(found.at + 36)
        memcpy(out, found.at, found.parts.body_end)
        put32(out, row.size)
        put32(out + 12, row.queue_id)
        put64(out + 20, row.queue_offset)
        put64(out + 28, row.place)
        put32(out + 36, flags & ~<unsigned int>TRANSACTION_MASK | COMMIT)
        put64(out + 56, row.store_ms)
        memcpy(out + 64, PyBytes_AsString(self.store_host), 8)
        put64(out + 76, be64(found.at + 28))
        out += found.parts.body_end
        memcpy(out, PyBytes_AsString(target.topic_tail), tail_bytes)
        # The properties with their length before them.
        memcpy(
            out + tail_bytes, found.at + found.parts.topic_end,
            be32(found.at) - found.parts.topic_end,
        )
        return 0

    cdef int _op(
        self, QueueState ops, Bytes digits, Py_ssize_t digit_count, Send *send, Taking *taking,
        Py_ssize_t before, Py_ssize_t size, long long half_offset,
    ) except -1:
        """Append the op message of an end; `before` is the size of the copy before it."""
        cdef Row *row
        cdef Named named
        cdef unsigned char *out
        cdef Py_ssize_t tail_bytes = PyBytes_Size(ops.topic_tail)
        cdef Taking here = taking[0]
        here.position += before
        here.used += before
        forget(&named)
        named.tag.at = <Bytes>b"d"
        named.tag.size = 1
        out = self._add(ops, &here, &named, size, &row)
        row.opaque = <unsigned int>send.header.opaque
        row.oneway = send.header.flag & ONEWAY
        row.role = OP
        row.half_offset = half_offset
        memset(out, 0, HEAD_BYTES)
        put32(out, row.size)
        put32(out + 4, MAGIC_V1)
        put32(out + 8, stored_crc(digits, digit_count))
        put32(out + 12, row.queue_id)
        put64(out + 20, row.queue_offset)
        put64(out + 28, row.place)
        put64(out + 40, row.store_ms)
        memcpy(out + 48, PyBytes_AsString(self.store_host), 8)
        put64(out + 56, row.store_ms)
        memcpy(out + 64, PyBytes_AsString(self.store_host), 8)
        put32(out + 84, <unsigned int>digit_count)
        out += HEAD_BYTES
        memcpy(out, digits, digit_count)
        out += digit_count
        memcpy(out, PyBytes_AsString(ops.topic_tail), tail_bytes)
        out += tail_bytes
        put16(out, OP_PROPERTIES_BYTES)
        memcpy(out + 2, b"TAGS\x01d", OP_PROPERTIES_BYTES)
        return 0

    cdef int let_go(self, Row *row) except -1:
        """Undo the effect of a half message or an op message on its transaction."""
        cdef void *entry
        cdef Half half
        cdef long long half_offset = row.queue_offset if row.role == HALF else row.half_offset
        entry = PyDict_GetItemWithError(self.open.halves, half_offset)
        if entry == NULL:
            return 0
        half = <Half?><object>entry
        if row.role == OP:
            half.ending = False
        elif half.physical_offset == row.place:
            del self.open.halves[half_offset]
        return 0

    def settle(self, Py_ssize_t first, Py_ssize_t stop, bint stored):
        """Close or reopen the transactions that rows end; see plain/transactions.py."""
        cdef Py_ssize_t n
        cdef Row *row
        cdef void *entry
        cdef list found = []
        cdef long long op_offset = -1
        if first < 0 or stop > self.count or first > stop:
            raise IndexError("no such rows")
        for n in range(first, stop):
            row = &self.rows[n]
            if row.role != OP:
                continue
            half_offset = row.half_offset
            if op_offset < 0:
                op_offset = row.queue_offset
            found.append(half_offset)
            entry = PyDict_GetItemWithError(self.open.halves, half_offset)
            if entry == NULL:
                continue
            if stored:
                del self.open.halves[half_offset]
            else:
                (<Half?><object>entry).ending = False
        return op_offset, found


cdef bint _is_group(str name, Span *group):
    cdef Py_ssize_t size
    cdef const char *text = PyUnicode_AsUTF8AndSize(name, &size)
    return is_text(group, text, size)


cdef bint _read_half(Found *found) noexcept nogil:
    """Read the real topic and queue id, the keys and the tag of a half message.

    Returns False if the half message is odd.
    """
    cdef Bytes p = found.at + found.parts.topic_end + 2
    cdef Bytes end = found.at + be32(found.at)
    cdef Bytes stop
    cdef Bytes digit
    cdef Py_ssize_t n
    if mentions_timer(p, end):
        return False
    found.topic.size = found.queue_id = 0
    forget(&found.named)
    find_named(p, end, &found.named)
    while p < end:
        stop = <Bytes>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if stop - p > 11 and memcmp(p, b"REAL_TOPIC\x01", 11) == 0:
            found.topic.at = p + 11
            found.topic.size = stop - p - 11
        elif stop - p > 9 and memcmp(p, b"REAL_QID\x01", 9) == 0:
            digit = p + 9
            if stop - digit > QUEUE_DIGITS_MAX:
                return False
            found.queue_id = 0
            for n in range(stop - digit):
                if not c'0' <= digit[n] <= c'9':
                    return False
                found.queue_id = found.queue_id * 10 + (digit[n] - c'0')
        p = stop + 1
    return found.topic.size > 0
