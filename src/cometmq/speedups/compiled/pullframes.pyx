# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain pulls off a connection, and answers that begin with a text and some numbers.

Compiled; plain/pullframes.py is the definition. Bytes of strangers are read by `_string` and
`_digits` alone, within the two pointers that they are given, and by what looks at one byte before
the end.
"""

from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from libc.string cimport memcpy, memcmp

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    object PyUnicode_FromStringAndSize(const char *, Py_ssize_t)

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint32_t be32(const unsigned char *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline void put32(unsigned char *p, uint32_t v) {
        p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v;
    }
    """
    unsigned int be32(const unsigned char *) nogil
    void put32(unsigned char *, unsigned int) nogil

ctypedef const unsigned char *Bytes

cdef enum:
    HEADER_MAX_BYTES = 1023
    ODD_MAX = 32
    ODD_FLAGS = 3
    PULL = 11
    LITE_PULL = 361
    FIELDS = 11
    REQUIRED = 0x1FF
    NUMBER_MAX_BYTES = 20
    NUMBERS_MAX = 16

cdef const char *NAMES[11]
NAMES[:] = [
    b"consumerGroup", b"topic", b"queueId", b"queueOffset", b"maxMsgNums", b"sysFlag",
    b"commitOffset", b"suspendTimeoutMillis", b"subVersion", b"subscription", b"expressionType",
]
cdef int NAME_BYTES[11]
NAME_BYTES[:] = [13, 5, 7, 11, 10, 7, 12, 20, 10, 12, 14]
#: The largest of each number; texts have none.
cdef long long LIMITS[11]
LIMITS[:] = [
    0, 0, 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF,
    0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0, 0,
]


cdef struct Span:
    Bytes at
    Py_ssize_t size


cdef struct Pull:
    long long code
    long long opaque
    long long flag
    int seen
    Span texts[FIELDS]
    long long numbers[FIELDS]


cdef inline bint _string(Bytes *cursor, Bytes end, Span *found) noexcept nogil:
    """A string of JSON in ASCII without escapes, with the cursor at its quote."""
    cdef Bytes p = cursor[0]
    if p >= end or p[0] != c'"':
        return False
    p += 1
    found.at = p
    while p < end and p[0] != c'"':
        if p[0] < 0x20 or p[0] >= 0x80 or p[0] == c'\\':
            return False
        p += 1
    if p >= end:
        return False
    found.size = p - found.at
    cursor[0] = p + 1
    return True


cdef inline bint _digits(Bytes *cursor, Bytes end, long long limit, long long *found) noexcept nogil:
    """A whole number up to a limit, without sign or leading zeros."""
    cdef Bytes p = cursor[0]
    cdef unsigned long long value = 0
    cdef int count = 0
    while p < end and c'0' <= p[0] <= c'9' and count < 19:
        value = value * 10 + (p[0] - c'0')
        p += 1
        count += 1
    if count == 0 or (count > 1 and cursor[0][0] == c'0'):
        return False
    if p < end and c'0' <= p[0] <= c'9':
        return False
    if value > <unsigned long long>limit:
        return False
    cursor[0] = p
    found[0] = <long long>value
    return True


cdef inline bint _mark(Bytes *cursor, Bytes end, unsigned char mark) noexcept nogil:
    if cursor[0] >= end or cursor[0][0] != mark:
        return False
    cursor[0] += 1
    return True


cdef inline bint _is(Span *name, const char *text, Py_ssize_t size) noexcept nogil:
    return name.size == size and memcmp(name.at, text, size) == 0


cdef bint _fields(Bytes *cursor, Bytes end, Pull *pull) noexcept nogil:
    """The fields of a pull, with the cursor at the brace."""
    cdef Span name, value
    cdef Bytes at
    cdef int number
    if not _mark(cursor, end, c'{'):
        return False
    while True:
        if not (
            _string(cursor, end, &name) and _mark(cursor, end, c':')
            and _string(cursor, end, &value)
        ):
            return False
        for number in range(FIELDS):
            if _is(&name, NAMES[number], NAME_BYTES[number]):
                if pull.seen & 1 << number:
                    return False
                pull.seen |= 1 << number
                pull.texts[number] = value
                if LIMITS[number]:
                    at = value.at
                    if not _digits(
                        &at, value.at + value.size, LIMITS[number], &pull.numbers[number]
                    ) or at != value.at + value.size:
                        return False
                break
        if _mark(cursor, end, c'}'):
            return True
        if not _mark(cursor, end, c','):
            return False


cdef bint _parse(Bytes p, Bytes end, Pull *pull) noexcept nogil:
    """The header of a plain pull."""
    cdef Span name, text
    cdef long long number
    cdef int seen = 0, bit
    pull.code = -1
    pull.flag = 0
    pull.seen = 0
    if not _mark(&p, end, c'{'):
        return False
    while True:
        if not _string(&p, end, &name) or not _mark(&p, end, c':'):
            return False
        if _is(&name, b"extFields", 9):
            bit = 1
            # Once only: else the second would meet what the first one said.
            if seen & 1 or not _fields(&p, end, pull):
                return False
        elif _is(&name, b"opaque", 6):
            bit = 2
            if not _digits(&p, end, 0x7FFFFFFF, &pull.opaque):
                return False
        elif _is(&name, b"code", 4):
            bit = 4
            if not _digits(&p, end, 0x7FFFFFFF, &pull.code):
                return False
        elif _is(&name, b"flag", 4):
            bit = 8
            if not _digits(&p, end, 0x7FFFFFFF, &pull.flag):
                return False
        elif _is(&name, b"version", 7):
            bit = 16
            if not _digits(&p, end, 0x7FFFFFFF, &number):
                return False
        elif _is(&name, b"language", 8):
            bit = 32
            if not _string(&p, end, &text):
                return False
        elif _is(&name, b"serializeTypeCurrentRPC", 23):
            bit = 64
            if not _string(&p, end, &text):
                return False
        elif _is(&name, b"remark", 6):
            bit = 128
            if not _string(&p, end, &text):
                return False
        else:
            return False
        if seen & bit:
            return False
        seen |= bit
        if _mark(&p, end, c'}'):
            break
        if not _mark(&p, end, c','):
            return False
    return (
        p == end
        and seen & 7 == 7
        and (pull.code == PULL or pull.code == LITE_PULL)
        and not pull.flag & ODD_FLAGS
        and pull.seen & REQUIRED == REQUIRED
    )


cdef inline object _text(Pull *pull, int number):
    if not pull.seen & 1 << number:
        return None
    return PyUnicode_FromStringAndSize(<const char *>pull.texts[number].at, pull.texts[number].size)


def read_pull(bytes data, Py_ssize_t at):
    """The plain pull whose frame begins at a place, or how many frames are odd; see
    plain/pullframes.py."""
    cdef Pull pull
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
            and header_bytes <= HEADER_MAX_BYTES
            and _parse(p + 8, p + 4 + total, &pull)
        ):
            if odd:
                return odd
            return (
                (
                    _text(&pull, 0), _text(&pull, 1), pull.numbers[2], pull.numbers[3],
                    pull.numbers[4], pull.numbers[5], pull.numbers[6], pull.numbers[7],
                    pull.numbers[8], _text(&pull, 9), _text(&pull, 10),
                ),
                pull.opaque,
                <Py_ssize_t>(p + 4 + total - begin),
            )
        odd += 1
        p += 4 + total
        left -= 4 + total
    return odd


cdef inline Py_ssize_t _decimal(unsigned char *out, long long number) noexcept nogil:
    """Write a number; gives how many bytes it took, at most 20."""
    cdef unsigned char digits[20]
    cdef unsigned long long value = number
    cdef int count = 0
    cdef Py_ssize_t used = 0
    if number < 0:
        out[0] = c'-'
        used = 1
        value = -value
    while True:
        digits[count] = c'0' + value % 10
        value //= 10
        count += 1
        if not value:
            break
    while count:
        count -= 1
        out[used] = digits[count]
        used += 1
    return used


def answer_frame(tuple pieces, tuple numbers, chunks):
    """The frame of an answer; see plain/pullframes.py."""
    cdef unsigned char digits[NUMBERS_MAX][NUMBER_MAX_BYTES]
    cdef Py_ssize_t digit_counts[NUMBERS_MAX]
    cdef Py_ssize_t n, count = len(numbers), head_bytes = 0, body_bytes = 0, size
    cdef unsigned char *out
    cdef unsigned char *end
    cdef Py_buffer view
    cdef bytes piece
    if len(pieces) != count + 1:
        raise ValueError("a piece of the header stands before each number, and one at the end")
    if count > NUMBERS_MAX:
        raise ValueError("too many numbers")
    for n in range(count):
        digit_counts[n] = _decimal(digits[n], numbers[n])
        head_bytes += digit_counts[n]
    for piece in pieces:
        head_bytes += PyBytes_Size(piece)
    for chunk in chunks:
        body_bytes += len(chunk)
    frame = PyBytes_FromStringAndSize(NULL, 8 + head_bytes + body_bytes)
    out = <unsigned char *>PyBytes_AsString(frame)
    end = out + 8 + head_bytes + body_bytes
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
