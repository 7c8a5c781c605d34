# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Messages of a pull response: all records are checked at once, each message is built on demand.

Compiled; plain/messages.py is the definition. `is_whole` checks all lengths of a record, and the
code that reads its bytes stays within them.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
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
    #: Number of words of a record that are compared with those of the previous record.
    KEPT = 24


cdef class _Words:
    """Cache of the words of a record by position; consecutive records often repeat them."""

    cdef Span spans[KEPT]
    cdef list texts

    def __cinit__(self):
        cdef int n
        self.texts = [None] * KEPT
        for n in range(KEPT):
            self.spans[n].at = NULL
            self.spans[n].size = -1

    cdef object text(self, int place, Bytes at, Py_ssize_t size):
        """Return a UTF-8 text; invalid bytes are replaced by U+FFFD."""
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
    """Return the pairs of a property text."""
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


cdef class Records:
    """Sequence of the records in a pull response; see plain/messages.py."""

    cdef bytes _data
    cdef object _make
    cdef str _broker_name
    #: Start of each record, followed by the end of the last one.
    cdef unsigned int *_starts
    cdef Py_ssize_t _count
    #: Messages built so far; None before the first.
    cdef list _made
    cdef _Words _words

    def __dealloc__(self):
        PyMem_Free(self._starts)

    def __len__(self):
        return self._count

    def __iter__(self):
        cdef Py_ssize_t at
        return iter([self._message(at) for at in range(self._count)])

    def __getitem__(self, Py_ssize_t at):
        self._check(at, self._count)
        return self._message(at)

    def offset_at(self, Py_ssize_t at):
        """Return the queue offset of the record at index ``at``."""
        self._check(at, self._count)
        return be64(<Bytes>PyBytes_AsString(self._data) + self._starts[at] + 20)

    def bytes_of(self, Py_ssize_t begin, Py_ssize_t end):
        """Return the total size in bytes of the records ``begin`` to ``end`` (exclusive)."""
        self._check(begin, self._count + 1)
        self._check(end, self._count + 1)
        return <long long>self._starts[end] - self._starts[begin]

    cdef int _check(self, Py_ssize_t at, Py_ssize_t end) except -1:
        if not 0 <= at < end:
            raise IndexError("no such record")
        return 0

    cdef object _message(self, Py_ssize_t at):
        if self._made is None:
            self._made = [None] * self._count
            self._words = _Words()
        found = self._made[at]
        if found is None:
            found = self._made[at] = self._cut(
                <Bytes>PyBytes_AsString(self._data) + self._starts[at]
            )
        return found

    cdef object _cut(self, Bytes p):
        cdef _Words words = self._words
        cdef Parts parts
        cdef Span born, stored, properties
        cdef Bytes after
        cdef int sys_flag = <int>be32(p + 36)
        # cut_records has checked every record, and bytes objects do not change.
        if not is_whole(p, be32(p), &parts):
            raise AssertionError("a record changed")
        born.at = p + BORN_HOST_AT
        born.size = 20 if sys_flag & BORN_V6 else 8
        stored.at = born.at + born.size + 8
        stored.size = 20 if sys_flag & STORE_V6 else 8
        after = stored.at + stored.size
        properties.at = p + parts.topic_end + 2
        properties.size = be32(p) - parts.topic_end - 2
        return self._make(
            words.text(0, p + parts.topic, parts.topic_end - parts.topic), <int>be32(p + 12),
            be64(p + 20), be64(p + 28),
            PyBytes_FromStringAndSize(<const char *>p + parts.body, parts.body_end - parts.body),
            _pairs(words, &properties), <int>be32(p + 16), sys_flag, be64(p + 40),
            words.raw(1, &born), be64(stored.at - 8), words.raw(2, &stored),
            <int>be32(after), be64(after + 4), be32(p), self._broker_name,
        )


def cut_records(bytes data, make, str broker_name):
    """Check and return the records of a pull response; see plain/messages.py."""
    cdef Bytes begin = <Bytes>PyBytes_AsString(data)
    cdef Bytes end = begin + PyBytes_Size(data)
    cdef Bytes p = begin
    cdef Parts parts
    cdef unsigned int crc
    cdef Py_ssize_t count = 0, at
    cdef Records found
    while p < end:
        if not is_whole(p, end - p, &parts) or be32(p + 4) != <unsigned int>MAGIC_V1:
            return None
        crc = be32(p + 8)
        if be32(p + 36) & COMPRESSED or (
            crc and stored_crc(p + parts.body, parts.body_end - parts.body) != crc
        ):
            return None
        count += 1
        p += be32(p)
    if end - begin > <Py_ssize_t>0xFFFFFFFF:
        return None
    found = Records.__new__(Records)
    found._starts = <unsigned int *>PyMem_Malloc((count + 1) * sizeof(unsigned int))
    if found._starts == NULL:
        raise MemoryError
    found._data = data
    found._make = make
    found._broker_name = broker_name
    found._count = count
    p = begin
    for at in range(count):
        found._starts[at] = <unsigned int>(p - begin)
        p += be32(p)
    found._starts[count] = <unsigned int>(p - begin)
    return found
