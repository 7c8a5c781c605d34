# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain pulls off a connection, and answers that begin with a text and some numbers.

Compiled; plain/pullframes.py is the definition. Bytes of strangers are read by headers.pxd.
"""

from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from libc.string cimport memcpy

from cometmq.speedups.compiled.headers cimport (
    LONG_NUMBER, NUMBER, ODD_MAX, SHORT_HEADER_MAX_BYTES, TEXT, Field, Form, Header, form_of,
    make_fields, read_header,
)
from cometmq.speedups.compiled.octets cimport DIGITS_MAX, Bytes, be32, put32, put_decimal

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    object PyUnicode_FromStringAndSize(const char *, Py_ssize_t)

cdef enum:
    ODD_FLAGS = 3
    PULL = 11
    LITE_PULL = 361
    REQUIRED = 0x1FF
    NUMBERS_MAX = 16

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


def read_pull(bytes data, Py_ssize_t at):
    """The plain pull whose frame begins at a place, or how many frames are odd; see
    plain/pullframes.py."""
    cdef Header pull
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
            and read_header(p + 8, p + 4 + total, FORMS, 2, &pull)
            and not pull.flag & ODD_FLAGS
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


def answer_frame(tuple pieces, tuple numbers, chunks):
    """The frame of an answer; see plain/pullframes.py."""
    cdef unsigned char digits[NUMBERS_MAX][DIGITS_MAX]
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
        digit_counts[n] = put_decimal(digits[n], numbers[n]) - digits[n]
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
