# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends and pulls of a client: request frames of sends, bodies of batches, and results.

Compiled; plain/requests.py is the definition. Untrusted bytes are read by headers.pxd.
"""

from libc.string cimport memchr, memcpy

from cometmq.speedups.compiled.headers cimport (
    LONG_NUMBER, NUMBER, ODD_MAX, REMARK, SHORT_HEADER_MAX_BYTES, TEXT, Field, Form, Header,
    form_of, make_fields, read_header,
)
from cometmq.speedups.compiled.octets cimport (
    DIGITS_MAX, Bytes, be32, put16, put32, put_decimal,
)
from cometmq.speedups.compiled.properties cimport PROPERTIES_MAX_BYTES
from cometmq.speedups.compiled.texts cimport is_text

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    object PyUnicode_FromStringAndSize(const char *, Py_ssize_t)
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL

cdef enum:
    PIECES = 5
    SEND_PARTS = 4
    PULL_PARTS = 3
    SUCCESS = 0
    # Bits of the required and of all fields of a send's answer, and of the fields of a pull's.
    SEND_REQUIRED = 0x7
    SEND_FIELDS = 0x3F
    PULL_FIELDS = 0x3C0
    MESSAGE_ID = 0
    QUEUE_ID = 1
    QUEUE_OFFSET = 2
    TRANSACTION_ID = 3
    REGION = 4
    TRACE_ON = 5
    SUGGESTED = 6
    NEXT = 7
    LOWEST = 8
    HIGHEST = 9
    # Fields of a batch's entry before its body, and with the length of its properties.
    ENTRY_HEAD_BYTES = 20
    ENTRY_FIXED_BYTES = 22
    # "UNIQ_KEY" with the sign after it.
    KEY_NAME_BYTES = 9
    COUNTER_DIGITS = 4
    INT_MAX = 0x7FFFFFFF

cdef tuple NAMED = (
    (b"msgId", TEXT), (b"queueId", NUMBER), (b"queueOffset", LONG_NUMBER), (b"transactionId", TEXT),
    (b"MSG_REGION", TEXT), (b"TRACE_ON", TEXT), (b"suggestWhichBrokerId", LONG_NUMBER),
    (b"nextBeginOffset", LONG_NUMBER), (b"minOffset", LONG_NUMBER), (b"maxOffset", LONG_NUMBER),
)
cdef Field FIELDS[10]
make_fields(FIELDS, NAMED)
cdef Form ANSWER = form_of(SUCCESS, FIELDS, 10, 0, False, False)
#: Letter of the short escape of a control character; others are escaped as \u00XX.
cdef unsigned char LETTERS[32]
LETTERS[:] = [0] * 32
LETTERS[8] = c'b'
LETTERS[9] = c't'
LETTERS[10] = c'n'
LETTERS[12] = c'f'
LETTERS[13] = c'r'


cdef inline Py_ssize_t _escaped_bytes(Bytes text, Py_ssize_t size) noexcept nogil:
    """Return the length of a text as a JSON string."""
    cdef Py_ssize_t n, found = size
    for n in range(size):
        if text[n] < 0x20:
            found += 1 if LETTERS[text[n]] else 5
        elif text[n] == c'"' or text[n] == c'\\':
            found += 1
    return found


cdef inline unsigned char *_escape(unsigned char *out, Bytes text, Py_ssize_t size) noexcept nogil:
    """Write a text as a JSON string and return its end."""
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
    """Return the request frame of a send; see plain/requests.py."""
    cdef unsigned char digits[3][DIGITS_MAX]
    cdef Py_ssize_t digit_counts[3]
    cdef Py_ssize_t sizes[PIECES]
    cdef Bytes texts[PIECES]
    cdef Py_ssize_t n, text_bytes = 0, body_bytes, head_bytes
    cdef Bytes text
    cdef unsigned char *out
    cdef bytes piece
    if len(pieces) != PIECES:
        raise ValueError("a header has five pieces round four values")
    digit_counts[0] = put_decimal(digits[0], queue_id) - digits[0]
    digit_counts[1] = put_decimal(digits[1], born_ms) - digits[1]
    digit_counts[2] = put_decimal(digits[2], opaque) - digits[2]
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


def unique_keys(str stem not None, long long first, Py_ssize_t count):
    """Return unique keys; see plain/requests.py."""
    cdef unsigned char made[256]
    cdef const char *hexadecimal = b"0123456789ABCDEF"
    cdef Py_ssize_t size = 0, n
    cdef const char *text = PyUnicode_AsUTF8AndSize(stem, &size)
    cdef long long number
    cdef list found = []
    if size > <Py_ssize_t>sizeof(made) - COUNTER_DIGITS:
        raise ValueError("the stem of a unique key is too long")
    memcpy(made, text, size)
    for n in range(count):
        number = first + n
        made[size] = hexadecimal[number >> 12 & 15]
        made[size + 1] = hexadecimal[number >> 8 & 15]
        made[size + 2] = hexadecimal[number >> 4 & 15]
        made[size + 3] = hexadecimal[number & 15]
        found.append(PyUnicode_FromStringAndSize(<const char *>made, size + COUNTER_DIGITS))
    return found


def batch_body(
    list bodies not None, list texts not None, list keys not None, list flags not None
):
    """Return the body of a batch send; see plain/requests.py."""
    cdef Py_ssize_t count = len(bodies), n, body_bytes, own_bytes, text_bytes = 0, key_bytes = 0
    cdef long long total = 0
    cdef bytes body
    cdef str text, key
    cdef Bytes source
    cdef unsigned char *out
    if len(texts) != count or len(keys) != count or flags and len(flags) != count:
        raise ValueError("lists of different lengths")
    for n in range(count):
        body, text, key = bodies[n], texts[n], keys[n]
        PyUnicode_AsUTF8AndSize(text, &text_bytes)
        PyUnicode_AsUTF8AndSize(key, &key_bytes)
        own_bytes = text_bytes + (text_bytes > 0) + KEY_NAME_BYTES + key_bytes
        if own_bytes > PROPERTIES_MAX_BYTES:
            raise ValueError(f"properties have {own_bytes} bytes; the limit is 32767")
        total += ENTRY_FIXED_BYTES + PyBytes_Size(body) + own_bytes
    if total > INT_MAX:
        raise ValueError("a batch larger than 2 GiB")
    packed = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    out = <unsigned char *>PyBytes_AsString(packed)
    for n in range(count):
        body, text, key = bodies[n], texts[n], keys[n]
        body_bytes = PyBytes_Size(body)
        source = <Bytes>PyUnicode_AsUTF8AndSize(text, &text_bytes)
        PyUnicode_AsUTF8AndSize(key, &key_bytes)
        own_bytes = text_bytes + (text_bytes > 0) + KEY_NAME_BYTES + key_bytes
        put32(out, <unsigned int>(ENTRY_FIXED_BYTES + body_bytes + own_bytes))
        put32(out + 4, 0)
        put32(out + 8, 0)
        put32(out + 12, <unsigned int><int>flags[n] if flags else 0)
        put32(out + 16, <unsigned int>body_bytes)
        memcpy(out + ENTRY_HEAD_BYTES, PyBytes_AsString(body), body_bytes)
        out += ENTRY_HEAD_BYTES + body_bytes
        put16(out, <unsigned int>own_bytes)
        out += 2
        if text_bytes:
            memcpy(out, source, text_bytes)
            out[text_bytes] = 2
            out += text_bytes + 1
        memcpy(out, b"UNIQ_KEY\x01", KEY_NAME_BYTES)
        memcpy(out + KEY_NAME_BYTES, PyUnicode_AsUTF8AndSize(key, &key_bytes), key_bytes)
        out += KEY_NAME_BYTES + key_bytes
    return packed


def batch_results(
    make, status, list keys not None, str ids not None, queue, long long offset, str region
):
    """Return the results of a batch; see plain/requests.py."""
    cdef Py_ssize_t size = 0, n, count = len(keys), commas = 0
    cdef const char *at = PyUnicode_AsUTF8AndSize(ids, &size)
    cdef const char *end = at + size
    cdef const char *stop = at
    cdef list found = []
    while True:
        stop = <const char *>memchr(stop, c',', end - stop)
        if stop == NULL:
            break
        commas += 1
        stop += 1
    if commas + 1 != count:
        raise ValueError(f"{commas + 1} ids for {count} messages")
    for n in range(count):
        stop = <const char *>memchr(at, c',', end - at)
        if stop == NULL:
            stop = end
        found.append(make(
            status, keys[n], PyUnicode_FromStringAndSize(at, stop - at), queue, offset + n, "",
            region,
        ))
        at = stop + 1
    return found


cdef inline str _text(Header *answer, int number):
    if not answer.fields & 1 << number:
        return ""
    return PyUnicode_FromStringAndSize(
        <const char *>answer.texts[number].at, answer.texts[number].size
    )


cdef str _region(Header *answer, str last):
    """Return the region of an answer; most answers repeat that of the previous one."""
    cdef Py_ssize_t size = 0
    cdef const char *text
    if not answer.fields & 1 << REGION or (
        answer.fields & 1 << TRACE_ON and is_text(&answer.texts[TRACE_ON], b"false", 5)
    ):
        return ""
    text = PyUnicode_AsUTF8AndSize(last, &size)
    if is_text(&answer.texts[REGION], text, size):
        return last
    return _text(answer, REGION)


cdef object _send_result(Header *answer, tuple known, str region):
    cdef tuple place = known[3]
    return place[0](
        place[1], known[2], _text(answer, MESSAGE_ID), place[2], answer.numbers[QUEUE_OFFSET],
        _text(answer, TRANSACTION_ID), region,
    )


cdef object _pull_result(Header *answer, tuple known, Bytes body, Py_ssize_t body_bytes):
    return known[2](
        PyBytes_FromStringAndSize(<const char *>body, body_bytes), answer.numbers[SUGGESTED],
        answer.numbers[NEXT], answer.numbers[LOWEST], answer.numbers[HIGHEST],
    )


cdef inline bint _fits(Header *answer, tuple known, bint has_body) except -1:
    """Return whether an answer is plain for its pending request."""
    if len(known) == PULL_PARTS:
        return answer.fields == PULL_FIELDS
    return (
        len(known) == SEND_PARTS and not has_body and not answer.fields & ~SEND_FIELDS
        and answer.fields & SEND_REQUIRED == SEND_REQUIRED
        and <long long>(<tuple>known[3])[3] == answer.numbers[QUEUE_ID]
    )


def settle_plain(bytes data, Py_ssize_t at, dict waiting):
    """Complete pending plain requests; see plain/requests.py."""
    cdef Bytes base = <Bytes>PyBytes_AsString(data)
    cdef Py_ssize_t end = PyBytes_Size(data)
    cdef Py_ssize_t begin = at, stop, body_at
    cdef unsigned int total, word
    cdef int odd = 0
    cdef Header answer
    cdef tuple known
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
        stop = at + 4 + <Py_ssize_t>total
        body_at = at + 8 + <Py_ssize_t>word
        known = None
        if (
            word <= SHORT_HEADER_MAX_BYTES
            and read_header(base + at + 8, base + body_at, &ANSWER, 1, &answer)
            and answer.flag == 1 and not answer.seen & REMARK
        ):
            opaque = answer.opaque
            known = waiting.get(opaque)
        if known is None or not _fits(&answer, known, body_at != stop):
            odd += 1
        # Stop at a plain frame after odd ones, so that the caller handles those first.
        elif odd:
            break
        else:
            if len(known) == PULL_PARTS:
                found = _pull_result(&answer, known, base + body_at, stop - body_at)
            else:
                region = _region(&answer, region)
                found = _send_result(&answer, known, region)
            waiter = known[1]
            del waiting[opaque]
            if not waiter.done():
                waiter.set_result(found)
            begin = stop
        at = stop
    return begin, odd
