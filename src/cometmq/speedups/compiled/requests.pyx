# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A client's plain sends: the frame of one, and the answers to those that wait.

Compiled; plain/requests.py is the definition. Bytes of strangers are read by `_string` and
`_digits` alone, within the two pointers that they are given, and by what looks at one byte before
the end.
"""

from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    object PyUnicode_FromStringAndSize(const char *, Py_ssize_t)
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL

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
    PIECES = 5
    PLAIN_PARTS = 4
    NUMBER_MAX_BYTES = 20
    FIELDS = 6
    REQUIRED = 0x7
    MESSAGE_ID = 0
    QUEUE_ID = 1
    QUEUE_OFFSET = 2
    TRANSACTION_ID = 3
    REGION = 4
    TRACE_ON = 5

cdef const char *NAMES[6]
NAMES[:] = [b"msgId", b"queueId", b"queueOffset", b"transactionId", b"MSG_REGION", b"TRACE_ON"]
cdef int NAME_BYTES[6]
NAME_BYTES[:] = [5, 7, 11, 13, 10, 8]
#: The largest of each number; texts have none.
cdef long long LIMITS[6]
LIMITS[:] = [0, 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF, 0, 0, 0]
#: The letter that stands behind a backslash for a control character; others are written as \u00XX.
cdef unsigned char LETTERS[32]
LETTERS[:] = [0] * 32
LETTERS[8] = c'b'
LETTERS[9] = c't'
LETTERS[10] = c'n'
LETTERS[12] = c'f'
LETTERS[13] = c'r'


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


cdef inline Py_ssize_t _escaped_bytes(Bytes text, Py_ssize_t size) noexcept nogil:
    """How long a text is as a string of JSON."""
    cdef Py_ssize_t n, found = size
    for n in range(size):
        if text[n] < 0x20:
            found += 1 if LETTERS[text[n]] else 5
        elif text[n] == c'"' or text[n] == c'\\':
            found += 1
    return found


cdef inline unsigned char *_escape(unsigned char *out, Bytes text, Py_ssize_t size) noexcept nogil:
    """Write a text as a string of JSON; gives where it ends."""
    cdef Py_ssize_t n
    cdef unsigned char mark
    cdef const char *hexadecimal = b"0123456789abcdef"
    for n in range(size):
        mark = text[n]
        if mark < 0x20:
            out[0] = c'\\'
            if LETTERS[mark]:
                out[1] = LETTERS[mark]
                out += 2
            else:
                memcpy(out + 1, b"u00", 3)
                out[4] = hexadecimal[mark >> 4]
                out[5] = hexadecimal[mark & 15]
                out += 6
            continue
        if mark == c'"' or mark == c'\\':
            out[0] = c'\\'
            out += 1
        out[0] = mark
        out += 1
    return out


def send_frame(
    tuple pieces, long long queue_id, long long born_ms, str properties, long long opaque,
    bytes body,
):
    """The frame of a send; see plain/requests.py."""
    cdef unsigned char digits[3][NUMBER_MAX_BYTES]
    cdef Py_ssize_t digit_counts[3]
    cdef Py_ssize_t sizes[PIECES]
    cdef Bytes texts[PIECES]
    cdef Py_ssize_t n, text_bytes = 0, body_bytes, head_bytes
    cdef Bytes text
    cdef unsigned char *out
    cdef bytes piece
    if len(pieces) != PIECES:
        raise ValueError("a header has five pieces round four values")
    digit_counts[0] = _decimal(digits[0], queue_id)
    digit_counts[1] = _decimal(digits[1], born_ms)
    digit_counts[2] = _decimal(digits[2], opaque)
    text = <Bytes>PyUnicode_AsUTF8AndSize(properties, &text_bytes)
    head_bytes = _escaped_bytes(text, text_bytes)
    for n in range(3):
        head_bytes += digit_counts[n]
    for n in range(PIECES):
        piece = pieces[n]
        texts[n] = <Bytes>PyBytes_AsString(piece)
        sizes[n] = PyBytes_Size(piece)
        head_bytes += sizes[n]
    body_bytes = PyBytes_Size(body)
    frame = PyBytes_FromStringAndSize(NULL, 8 + head_bytes + body_bytes)
    out = <unsigned char *>PyBytes_AsString(frame)
    put32(out, <unsigned int>(4 + head_bytes + body_bytes))
    put32(out + 4, <unsigned int>head_bytes)
    out += 8
    for n in range(PIECES):
        memcpy(out, texts[n], sizes[n])
        out += sizes[n]
        if n < 2:
            memcpy(out, digits[n], digit_counts[n])
            out += digit_counts[n]
        elif n == 2:
            out = _escape(out, text, text_bytes)
        elif n == 3:
            memcpy(out, digits[2], digit_counts[2])
            out += digit_counts[2]
    memcpy(out, PyBytes_AsString(body), body_bytes)
    return frame


cdef struct Span:
    Bytes at
    Py_ssize_t size


cdef struct Answer:
    long long opaque
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


cdef bint _fields(Bytes *cursor, Bytes end, Answer *answer) noexcept nogil:
    """The fields of an answer, with the cursor at the brace."""
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
                break
        else:
            return False
        if answer.seen & 1 << number:
            return False
        answer.seen |= 1 << number
        answer.texts[number] = value
        if LIMITS[number]:
            at = value.at
            if not _digits(
                &at, value.at + value.size, LIMITS[number], &answer.numbers[number]
            ) or at != value.at + value.size:
                return False
        if _mark(cursor, end, c'}'):
            return True
        if not _mark(cursor, end, c','):
            return False


cdef bint _parse(Bytes p, Bytes end, Answer *answer) noexcept nogil:
    """Whether a header is that of a plain answer."""
    cdef Span name, text
    cdef long long code = -1, flag = -1, version
    cdef int seen = 0, bit
    answer.seen = 0
    answer.opaque = -1
    if not _mark(&p, end, c'{'):
        return False
    while True:
        if not (_string(&p, end, &name) and _mark(&p, end, c':')):
            return False
        if _is(&name, b"code", 4):
            bit = 1
            if not _digits(&p, end, 0x7FFFFFFF, &code):
                return False
        elif _is(&name, b"extFields", 9):
            bit = 2
            if not _fields(&p, end, answer):
                return False
        elif _is(&name, b"flag", 4):
            bit = 4
            if not _digits(&p, end, 0x7FFFFFFF, &flag):
                return False
        elif _is(&name, b"opaque", 6):
            bit = 8
            if not _digits(&p, end, 0x7FFFFFFF, &answer.opaque):
                return False
        elif _is(&name, b"version", 7):
            bit = 16
            if not _digits(&p, end, 0x7FFFFFFF, &version):
                return False
        elif _is(&name, b"language", 8):
            bit = 32
            if not _string(&p, end, &text):
                return False
        elif _is(&name, b"serializeTypeCurrentRPC", 23):
            bit = 64
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
        p == end and code == 0 and flag == 1 and answer.opaque >= 0
        and answer.seen & REQUIRED == REQUIRED
    )


cdef inline str _text(Answer *answer, int number):
    if not answer.seen & 1 << number:
        return ""
    return PyUnicode_FromStringAndSize(
        <const char *>answer.texts[number].at, answer.texts[number].size
    )


cdef str _region(Answer *answer, str last):
    """The region of an answer; most have that of the one before."""
    cdef Py_ssize_t size = 0
    cdef const char *text
    if not answer.seen & 1 << REGION or (
        answer.seen & 1 << TRACE_ON and _is(&answer.texts[TRACE_ON], b"false", 5)
    ):
        return ""
    text = PyUnicode_AsUTF8AndSize(last, &size)
    if _is(&answer.texts[REGION], text, size):
        return last
    return _text(answer, REGION)


def settle_sends(bytes data, Py_ssize_t at, dict waiting):
    """Give plain sends that wait their results; see plain/requests.py."""
    cdef Bytes base = <Bytes>PyBytes_AsString(data)
    cdef Py_ssize_t end = PyBytes_Size(data)
    cdef Py_ssize_t begin = at
    cdef unsigned int total, word
    cdef int odd = 0
    cdef Answer answer
    cdef tuple known, place
    cdef str region = ""
    if not 0 <= at <= end:
        raise ValueError("a begin outside the data")
    while odd < ODD_MAX and end - at >= 8:
        total = be32(base + at)
        word = be32(base + at + 4)
        if <unsigned long long>total < 4 + <unsigned long long>(word & 0xFFFFFF):
            return begin, odd + 1
        if <Py_ssize_t>total > end - at - 4:
            break
        known = None
        if word == total - 4 and word <= HEADER_MAX_BYTES:
            if _parse(base + at + 8, base + at + 8 + word, &answer):
                opaque = answer.opaque
                known = waiting.get(opaque)
        if known is None or len(known) != PLAIN_PARTS:
            odd += 1
        else:
            place = known[3]
            if <long long>place[3] != answer.numbers[QUEUE_ID]:
                odd += 1
            elif odd:
                break
            else:
                region = _region(&answer, region)
                waiter = known[1]
                found = place[0](
                    place[1], known[2], _text(&answer, MESSAGE_ID), place[2],
                    answer.numbers[QUEUE_OFFSET], _text(&answer, TRANSACTION_ID), region,
                )
                del waiting[opaque]
                if not waiter.done():
                    waiter.set_result(found)
                begin = at + 4 + <Py_ssize_t>total
        at += 4 + <Py_ssize_t>total
    return begin, odd
