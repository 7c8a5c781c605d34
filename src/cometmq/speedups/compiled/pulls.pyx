# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Reads of a consume queue: from its entries to the verified bytes of their records.

Compiled; plain/pulls.py is the definition. Entries and records are not trusted: `choose` keeps each
record between two offsets that lie within the log's buffer, and `is_record_of` reads nothing
outside the record's size.
"""

from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from libc.stdlib cimport malloc, free
from libc.string cimport memcpy

from cometmq.speedups.compiled.octets cimport Bytes, be64
from cometmq.speedups.compiled.records cimport (
    ENTRY_BYTES, GAP_BYTES, SPAN_BYTES, Held, Taken, hold, is_record_of, let_go, read_entry,
)

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    object PyMemoryView_FromObject(object)

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define fetch_soon(p) __builtin_prefetch(p)
    #else
    #define fetch_soon(p) ((void)(p))
    #endif
    """
    void fetch_soon(const void *) nogil

cdef enum:
    # Number of records to prefetch ahead, and the maximum number of bytes of each.
    AHEAD = 4
    AHEAD_BYTES = 512
    LINE_BYTES = 64


def is_record(data, Py_ssize_t at, tuple entry, int queue_id, bytes topic_tail):
    """Return whether a record is the one that a queue entry names; see plain/pulls.py."""
    cdef Py_buffer view
    cdef Taken wanted
    wanted.offset, wanted.place, wanted.size = entry
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if at < 0 or at > view.len:
            return False
        return bool(is_record_of(
            <Bytes>view.buf + at, view.len - at, &wanted, queue_id,
            <Bytes>PyBytes_AsString(topic_tail), PyBytes_Size(topic_tail),
        ))
    finally:
        PyBuffer_Release(&view)


cdef class Reading:
    """One read; see pulls.pxd."""

    def __cinit__(self):
        self.taken = self.few
        self.count = self.looked_at = 0
        self.total = self.base = 0

    def __dealloc__(self):
        if self.taken != self.few:
            free(self.taken)
        let_go(&self.held)

    cdef void make_room(self, Py_ssize_t count) except *:
        if count > TAKEN_AT_FIRST:
            self.taken = <Taken *>malloc(count * sizeof(Taken))
            if self.taken == NULL:
                self.taken = self.few
                raise MemoryError

    cdef bint wants(self, long long code, codes) except -1:
        cdef Py_ssize_t n
        if codes is None:
            return True
        if self.code_count < 0:
            return code in codes
        for n in range(self.code_count):
            if self.codes[n] == code:
                return True
        return False

    cdef bint choose(
        self, long long offset, codes, Py_ssize_t count_max, long long bytes_max, long long low,
        long long high,
    ) except -1:
        """Take entries; False if one of them is not plain."""
        cdef Py_ssize_t n, entry_count = self.held.entries.len // ENTRY_BYTES
        cdef Bytes p = <Bytes>self.held.entries.buf
        cdef long long stop = low
        cdef Taken row
        if codes is not None:
            self.code_count = len(codes)
            if self.code_count > CODES_MAX:
                self.code_count = -1
            else:
                n = 0
                for code in codes:
                    if n == self.code_count:
                        raise ValueError("the codes changed")
                    self.codes[n] = code
                    n += 1
        if count_max < 1:
            count_max = 1
        self.make_room(min(count_max, entry_count))
        for n in range(entry_count):
            if self.wants(be64(p + 12), codes):
                if not read_entry(p, stop, high, &row):
                    return False
                if self.count and (self.total + row.size > bytes_max or self.count >= count_max):
                    break
                row.offset = offset + self.looked_at
                self.taken[self.count] = row
                self.count += 1
                self.total += row.size
                stop = row.place + row.size
            self.looked_at += 1
            p += ENTRY_BYTES
        return True

    cdef bint are_at_once(self, long long sure, has_at_once) except -1:
        """Return whether all records can be read without blocking."""
        cdef long long begin = -1, stop = -1
        cdef Py_ssize_t n
        cdef Taken *row
        for n in range(self.count):
            row = &self.taken[n]
            if row.place >= sure:
                break
            if stop >= 0 and (
                row.place - stop > GAP_BYTES or row.place + row.size - begin > SPAN_BYTES
            ):
                if not has_at_once(begin, stop):
                    return False
                stop = -1
            if stop < 0:
                begin = row.place
            stop = row.place + row.size
        return stop < 0 or bool(has_at_once(begin, stop))

    cdef bint proves(self, long long high, int queue_id, bytes tail) except -1:
        """Return whether each record is the one that its entry names."""
        cdef Py_ssize_t n
        cdef Taken *row
        cdef Bytes p = <Bytes>self.held.data.buf
        cdef Bytes topic = <Bytes>PyBytes_AsString(tail)
        cdef Py_ssize_t topic_bytes = PyBytes_Size(tail)
        for n in range(self.count):
            self.ask_ahead(n + AHEAD)
            row = &self.taken[n]
            if not is_record_of(
                p + (row.place - self.base), high - row.place, row, queue_id, topic, topic_bytes
            ):
                return False
        return True

    cdef bint take(
        self, entries, data, long long offset, codes, Py_ssize_t count_max, long long bytes_max,
        long long base, long long low, long long high, long long sure, tuple queue, has_at_once,
    ) except -1:
        """Take records; False if one of them is not plain. See plain/pulls.py.

        It can be called once per object.
        """
        cdef int queue_id
        hold(&self.held, entries, data)
        self.base = base
        if base < 0 or low < base or high < 0 or high - base > self.held.data.len:
            raise ValueError("records between offsets that are not in the bytes of the log")
        if not self.choose(offset, codes, count_max, bytes_max, low, high):
            return False
        if not self.are_at_once(sure, has_at_once):
            return False
        if queue is not None:
            queue_id, topic_tail = queue
            return self.proves(high, queue_id, topic_tail)
        return True

    cdef void ask_ahead(self, Py_ssize_t n) noexcept nogil:
        """Prefetch the bytes of taken record `n`, if there is one."""
        cdef Bytes p
        cdef Py_ssize_t at = 0
        if n < self.count:
            p = <Bytes>self.held.data.buf + (self.taken[n].place - self.base)
            while at < AHEAD_BYTES and at < self.taken[n].size:
                fetch_soon(p + at)
                at += LINE_BYTES

    cdef bint is_in_one(self) noexcept:
        """Return whether the records are contiguous."""
        cdef Taken *last = &self.taken[self.count - 1]
        return last.place + last.size - self.taken[0].place == self.total

    cdef void gather(self, unsigned char *out) noexcept nogil:
        """Copy the records to `out`, which has room for all of them."""
        cdef Bytes p = <Bytes>self.held.data.buf
        cdef Py_ssize_t n
        cdef Taken *row
        for n in range(self.count):
            self.ask_ahead(n + AHEAD)
            row = &self.taken[n]
            memcpy(out, p + (row.place - self.base), row.size)
            out += row.size


def take_records(
    entries, long long offset, codes, tuple most, tuple log, tuple queue, has_at_once
):
    """Return the records that queue entries name; see plain/pulls.py."""
    cdef Reading reading = Reading.__new__(Reading)
    cdef Py_ssize_t count_max, first
    cdef long long bytes_max, base, low, high, sure
    count_max, bytes_max = most
    data, base, low, high, sure = log
    if not reading.take(
        entries, data, offset, codes, count_max, bytes_max, base, low, high, sure, queue,
        has_at_once,
    ):
        return None
    if not reading.count:
        return reading.looked_at, 0, 0, data[:0]
    if reading.is_in_one():
        first = reading.taken[0].place - base
        return reading.looked_at, reading.count, reading.total, data[first:first + reading.total]
    gathered = PyBytes_FromStringAndSize(NULL, reading.total)
    reading.gather(<unsigned char *>PyBytes_AsString(gathered))
    return reading.looked_at, reading.count, reading.total, PyMemoryView_FromObject(gathered)
