# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The messages of a pull: all records of its body at once.

Compiled; plain/messages.py is the definition. `_measure` checks all lengths of a record, and what
reads its bytes does so within them.
"""

from libc.string cimport memchr, memcmp
from zlib import crc32

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)
    int PyDict_SetItem(object, object, object) except -1

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint32_t be32(const unsigned char *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline int64_t be64(const unsigned char *p) {
        return (int64_t)((uint64_t)be32(p) << 32 | be32(p + 4));
    }
    """
    unsigned int be32(const unsigned char *) nogil
    long long be64(const unsigned char *) nogil

ctypedef const unsigned char *Bytes

cdef enum:
    MAGIC = 0xDAA320A7
    CRC_MASK = 0x7FFFFFFF
    COMPRESSED = 0x1
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    HEAD_BYTES = 48
    LEAST_BYTES = 91
    #: So many words of a record are compared with those of the one before.
    KEPT = 24


cdef struct Span:
    Bytes at
    Py_ssize_t size


cdef struct Record:
    Py_ssize_t size
    unsigned int crc
    int sys_flag
    int attempts
    long long prepared_offset
    long long store_ms
    Span born_host
    Span store_host
    Span body
    Span topic
    Span properties


cdef bint _measure(Bytes p, Py_ssize_t left, Record *record) noexcept nogil:
    """Whether a plain record begins here, of which no more than `left` bytes are there."""
    cdef Py_ssize_t at = HEAD_BYTES, body_bytes
    if left < LEAST_BYTES:
        return False
    record.size = be32(p)
    record.sys_flag = <int>be32(p + 36)
    if be32(p + 4) != <unsigned int>MAGIC or record.sys_flag & COMPRESSED or record.size > left:
        return False
    record.crc = be32(p + 8)
    record.born_host.at = p + at
    record.born_host.size = 20 if record.sys_flag & BORN_HOST_V6 else 8
    record.store_host.size = 20 if record.sys_flag & STORE_HOST_V6 else 8
    at += record.born_host.size
    # The store time, the store host, the numbers before the body, and three lengths behind it.
    if at + 8 + record.store_host.size + 16 + 3 > record.size:
        return False
    record.store_ms = be64(p + at)
    record.store_host.at = p + at + 8
    at += 8 + record.store_host.size
    record.attempts = <int>be32(p + at)
    record.prepared_offset = be64(p + at + 4)
    body_bytes = <int>be32(p + at + 12)
    at += 16
    if body_bytes < 0 or body_bytes > record.size - at - 3:
        return False
    record.body.at = p + at
    record.body.size = body_bytes
    at += body_bytes
    record.topic.at = p + at + 1
    record.topic.size = p[at]
    at += 1 + record.topic.size
    if at + 2 > record.size:
        return False
    record.properties.at = p + at + 2
    record.properties.size = p[at] << 8 | p[at + 1]
    return at + 2 + record.properties.size == record.size


cdef class _Words:
    """The words of a record by their places in it, for many say what the one before said."""

    cdef Span spans[KEPT]
    cdef list texts

    def __cinit__(self):
        cdef int n
        self.texts = [None] * KEPT
        for n in range(KEPT):
            self.spans[n].at = NULL
            self.spans[n].size = -1

    cdef object text(self, int place, Bytes at, Py_ssize_t size):
        """A text in UTF-8; what is broken in it becomes U+FFFD."""
        cdef Span *span
        if place >= KEPT:
            return PyUnicode_DecodeUTF8(<const char *>at, size, b"replace")
        span = &self.spans[place]
        if span.size == size and memcmp(span.at, at, size) == 0:
            return self.texts[place]
        found = PyUnicode_DecodeUTF8(<const char *>at, size, b"replace")
        self.texts[place] = found
        span.at = at
        span.size = size
        return found

    cdef object raw(self, int place, Span *raw):
        cdef Span *span = &self.spans[place]
        if span.size == raw.size and memcmp(span.at, raw.at, raw.size) == 0:
            return self.texts[place]
        found = PyBytes_FromStringAndSize(<const char *>raw.at, raw.size)
        self.texts[place] = found
        span[0] = raw[0]
        return found


cdef dict _pairs(_Words words, Span *raw):
    """The pairs of a property text."""
    cdef dict found = {}
    cdef Bytes p = raw.at
    cdef Bytes end = raw.at + raw.size
    cdef Bytes stop
    cdef Bytes mark
    cdef int place = 3
    while p < end:
        stop = <Bytes>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if stop > p:
            mark = <Bytes>memchr(p, 1, stop - p)
            if mark != NULL and mark > p and mark + 1 < stop:
                PyDict_SetItem(
                    found,
                    words.text(place, p, mark - p),
                    words.text(place + 1, mark + 1, stop - mark - 1),
                )
        place += 2
        p = stop + 1
    return found


def cut_records(bytes data, make, str broker_name):
    """What `make` makes of each record; see plain/messages.py."""
    cdef Bytes p = <Bytes>PyBytes_AsString(data)
    cdef Py_ssize_t left = PyBytes_Size(data)
    cdef Record record
    cdef _Words words = _Words()
    cdef list found = []
    while left > 0:
        if not _measure(p, left, &record):
            return None
        body = PyBytes_FromStringAndSize(<const char *>record.body.at, record.body.size)
        if record.crc and <unsigned int>crc32(body) & <unsigned int>CRC_MASK != record.crc:
            return None
        found.append(
            make(
                words.text(0, record.topic.at, record.topic.size), <int>be32(p + 12),
                be64(p + 20), be64(p + 28), body, _pairs(words, &record.properties),
                <int>be32(p + 16), record.sys_flag, be64(p + 40),
                words.raw(1, &record.born_host), record.store_ms,
                words.raw(2, &record.store_host), record.attempts, record.prepared_offset,
                record.size, broker_name,
            )
        )
        p += record.size
        left -= record.size
    return found
