# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The messages of a pull: all records of its body at once.

Compiled; plain/messages.py is the definition. `is_whole` checks all lengths of a record, and what
reads its bytes does so within them.
"""

from libc.string cimport memchr, memcmp

from cometmq.speedups.compiled.checksums cimport (
    look_at_processor, make_crc_tables, stored_crc,
)
from cometmq.speedups.compiled.octets cimport Bytes, be32, be64
from cometmq.speedups.compiled.records cimport (
    BORN_V6, COMPRESSED, MAGIC_V1, STORE_V6, Parts, is_whole,
)
from cometmq.speedups.compiled.texts cimport Span

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)
    int PyDict_SetItem(object, object, object) except -1

make_crc_tables()
look_at_processor()

cdef enum:
    BORN_HOST_AT = 48
    #: So many words of a record are compared with those of the one before.
    KEPT = 24


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
    cdef Bytes end = p + PyBytes_Size(data)
    cdef Bytes after
    cdef Parts parts
    cdef Span born, stored, properties
    cdef unsigned int crc
    cdef int sys_flag
    cdef _Words words = _Words()
    cdef list found = []
    cdef Py_ssize_t body_bytes
    while p < end:
        if not is_whole(p, end - p, &parts) or be32(p + 4) != <unsigned int>MAGIC_V1:
            return None
        sys_flag = <int>be32(p + 36)
        crc = be32(p + 8)
        body_bytes = parts.body_end - parts.body
        if sys_flag & COMPRESSED or (
            crc and stored_crc(p + parts.body, body_bytes) != crc
        ):
            return None
        born.at = p + BORN_HOST_AT
        born.size = 20 if sys_flag & BORN_V6 else 8
        stored.at = born.at + born.size + 8
        stored.size = 20 if sys_flag & STORE_V6 else 8
        after = stored.at + stored.size
        properties.at = p + parts.topic_end + 2
        properties.size = be32(p) - parts.topic_end - 2
        found.append(
            make(
                words.text(0, p + parts.topic, parts.topic_end - parts.topic), <int>be32(p + 12),
                be64(p + 20), be64(p + 28),
                PyBytes_FromStringAndSize(<const char *>p + parts.body, body_bytes),
                _pairs(words, &properties), <int>be32(p + 16), sys_flag, be64(p + 40),
                words.raw(1, &born), be64(stored.at - 8), words.raw(2, &stored),
                <int>be32(after), be64(after + 4), be32(p), broker_name,
            )
        )
        p += be32(p)
    return found
