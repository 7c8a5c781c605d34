# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain single sends and batches, from bytes of clients to records, queue entries and answers.

Compiled; plain/sends.py is the definition. Bytes of strangers are read here by few functions alone:
`_parse_header`, `_scan_properties`, `_batch_entry` and `scan_values`; each reads within the two
pointers that it was given.
"""

from libc.stdlib cimport malloc, realloc, free
from libc.string cimport memcpy, memcmp, memchr, memset

from cometmq.speedups.compiled.octets cimport (
    Bytes, be16, be32, crc32_of, look_at_processor, make_crc_tables, put16, put32, put64, text_hash,
)

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    char *PyByteArray_AsString(object) except NULL
    Py_ssize_t PyByteArray_Size(object) except -1
    int PyByteArray_Resize(object, Py_ssize_t) except -1
    void *PyDict_GetItemWithError(object, object) except? NULL
    void *PyList_GetItem(object, Py_ssize_t) except NULL
    Py_ssize_t PyList_Size(object) except -1

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* What a byte is within a JSON string: 0 itself, 1 the closing quote, 2 a backslash,
       3 a control byte, 4 part of a character beyond ASCII. */
    static unsigned char kinds[256];
    /* How many bytes from p on, by eights, are part of a string themselves. */
    static inline size_t plain_bytes(const unsigned char *p, const unsigned char *end) {
        const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
        const unsigned char *begin = p;
        for (; end - p >= 8; p += 8) {
            uint64_t w, quote, slash;
            memcpy(&w, p, 8);
            quote = w ^ ones * '"';
            slash = w ^ ones * '\\\\';
            if ((w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & tops) break;
        }
        return p - begin;
    }
    static void make_kinds(void) {
        for (int n = 0; n < 256; n++)
            kinds[n] = n < 0x20 ? 3 : n == '"' ? 1 : n == '\\\\' ? 2 : n >= 0x80 ? 4 : 0;
    }
    """
    size_t plain_bytes(const unsigned char *, const unsigned char *) nogil
    const unsigned char *kinds
    void make_kinds()

make_crc_tables()
look_at_processor()
make_kinds()

cdef enum:
    #: Of the record of a batch, before what all records of the batch have in common.
    FRONT_BYTES = 36
    ENTRY_BYTES = 20
    JOURNAL_ROW_BYTES = 36
    #: Of a message in the body of a batch: before its body, and with the length of its properties.
    BATCH_HEAD_BYTES = 20
    BATCH_FIXED_BYTES = 22
    #: Longer header texts are no plain ones.
    TEXT_MAX_BYTES = 65536
    KEYS_MAX = 64
    ODD_MAX = 32
    SEND_V1 = 10
    SEND_V2 = 310
    END_TRANSACTION = 37
    COMMIT = 8
    ROLLBACK = 12

# What a string of the header is: plain ASCII; anything but an escape; with escapes.
cdef enum:
    ASCII = 0
    WIDE = 1
    ESCAPED = 2

cdef const char *LONG_NAMES[14]
LONG_NAMES[:] = [
    b"producerGroup", b"topic", b"defaultTopic", b"defaultTopicQueueNums", b"queueId", b"sysFlag",
    b"bornTimestamp", b"flag", b"properties", b"reconsumeTimes", b"unitMode", b"maxReconsumeTimes",
    b"batch", b"bname",
]
cdef int LONG_BYTES[14]
LONG_BYTES[:] = [13, 5, 12, 21, 7, 7, 13, 4, 10, 14, 8, 17, 5, 5]
cdef const char *END_NAMES[4]
END_NAMES[:] = [b"producerGroup", b"tranStateTableOffset", b"commitLogOffset", b"commitOrRollback"]
cdef int END_BYTES[4]
END_BYTES[:] = [13, 20, 15, 16]


# A row of a walk: see plain/walk.py.
cdef struct WalkedRow:
    long long position
    long long size
    long long queue
    long long queue_offset
    long long tag_code
    long long store_ms
    long long sys_flag
    long long first_hash
    long long hashes
    long long odd
    long long places[4]


cdef class QueueState:
    """What every send touches of a consume queue; see plain/sends.py."""

    pass


# ---------------------------------------------------------------------------------- bytes of clients


cdef inline int _string(Bytes *cursor, Bytes end, Span *found) noexcept nogil:
    """A string of JSON, with the cursor at its quote; 0 when it is none or is not closed."""
    cdef Bytes p = cursor[0]
    cdef int kind, worst = ASCII
    if p >= end or p[0] != c'"':
        return 0
    p += 1
    found.at = p
    p += plain_bytes(p, end)
    while p < end:
        kind = kinds[p[0]]
        if kind == 0:
            p += 1
            continue
        if kind == 1:
            found.size = p - found.at
            found.kind = worst
            cursor[0] = p + 1
            return 1
        if kind == 3:
            return 0
        if kind == 2:
            worst = ESCAPED
            p += 1
            if p >= end or kinds[p[0]] >= 3:
                return 0
        elif worst == ASCII:
            worst = WIDE
        p += 1
        if kind == 2:
            p += plain_bytes(p, end)
    return 0


cdef inline int _digits(Bytes *cursor, Bytes end, long long limit, long long *found) noexcept nogil:
    """A whole number up to a limit, without sign or leading zeros; 0 when it is none."""
    cdef Bytes p = cursor[0]
    cdef unsigned long long value = 0
    cdef int count = 0
    while p < end and c'0' <= p[0] <= c'9' and count < 19:
        value = value * 10 + (p[0] - c'0')
        p += 1
        count += 1
    if count == 0 or (count > 1 and cursor[0][0] == c'0'):
        return 0
    if p < end and c'0' <= p[0] <= c'9':
        return 0
    if value > <unsigned long long>limit:
        return 0
    cursor[0] = p
    found[0] = <long long>value
    return 1


cdef inline int _field_of(Span *name, long long code) noexcept nogil:
    """The number of a field by its name; -1 for one that nobody reads."""
    cdef int number
    if code == SEND_V2:
        if name.size == 1 and c'a' <= name.at[0] <= c'n':
            return name.at[0] - c'a'
        return -1
    for number in range(FIELDS):
        if name.size == LONG_BYTES[number]:
            if memcmp(name.at, LONG_NAMES[number], name.size) == 0:
                return number
    return -1


cdef int _fields(Bytes *cursor, Bytes end, Send *send) noexcept nogil:
    """The fields of a send, with the cursor behind the brace; 0 when they are not plain."""
    cdef Bytes p = cursor[0]
    cdef Bytes at
    cdef Span name, value
    cdef int number, seen = 0
    cdef long long limit
    if p < end and p[0] == c'}':
        return 0
    while True:
        if not _string(&p, end, &name) or name.kind != ASCII:
            return 0
        if p >= end or p[0] != c':':
            return 0
        p += 1
        if not _string(&p, end, &value):
            return 0
        number = _field_of(&name, send.code)
        if number >= 0:
            if seen & (1 << number):
                return 0
            seen |= 1 << number
            if number == PROPERTIES:
                send.text = value
            elif number == TOPIC:
                if value.kind == ESCAPED:
                    return 0
                send.topic = value
            elif value.kind != ASCII:
                return 0
            elif number == BATCH:
                if value.size != 5 or memcmp(value.at, b"false", 5) != 0:
                    return 0
            elif number == UNIT_MODE:
                if not _is_truth(&value):
                    return 0
            elif 3 <= number <= 7 or number == RECONSUME_TIMES or number == 11:
                limit = 0x7FFFFFFFFFFFFFFF if number == BORN_MS else 0x7FFFFFFF
                at = value.at
                if not _digits(&at, value.at + value.size, limit, &send.numbers[number]):
                    return 0
                if at != value.at + value.size:
                    return 0
        elif value.kind != ASCII:
            return 0
        if p >= end:
            return 0
        p += 1
        if (p - 1)[0] == c'}':
            break
        if (p - 1)[0] != c',':
            return 0
    if seen & REQUIRED != REQUIRED:
        return 0
    cursor[0] = p
    return 1


cdef int _end_fields(Bytes *cursor, Bytes end, Send *send) noexcept nogil:
    """The fields of the end of a transaction, with the cursor behind the brace; 0 when they are not
    plain."""
    cdef Bytes p = cursor[0]
    cdef Bytes at
    cdef Span name, value
    cdef int number, seen = 0
    cdef long long limit
    while True:
        if not _string(&p, end, &name) or name.kind != ASCII or p >= end or p[0] != c':':
            return 0
        p += 1
        if not _string(&p, end, &value) or value.kind != ASCII:
            return 0
        for number in range(END_FIELDS):
            if _is(&name, END_NAMES[number], END_BYTES[number]):
                break
        else:
            number = END_FIELDS
            if _is(&name, b"msgId", 5) and not value.size:
                return 0
            if _is(&name, b"msgId", 5):
                number = END_FIELDS + 1
            elif _is(&name, b"fromTransactionCheck", 20) and not _is_truth(&value):
                return 0
        if number != END_FIELDS:
            if seen & (1 << number):
                return 0
            seen |= 1 << number
        if number == END_GROUP:
            send.group = value
        elif number < END_FIELDS:
            limit = 0x7FFFFFFF if number == END_KIND else 0x7FFFFFFFFFFFFFFF
            at = value.at
            if not _digits(&at, value.at + value.size, limit, &send.numbers[number]):
                return 0
            if at != value.at + value.size:
                return 0
        if p >= end:
            return 0
        p += 1
        if (p - 1)[0] == c'}':
            break
        if (p - 1)[0] != c',':
            return 0
    if seen != END_REQUIRED | 1 << END_FIELDS + 1 or not send.group.size:
        return 0
    cursor[0] = p
    return send.numbers[END_KIND] == COMMIT or send.numbers[END_KIND] == ROLLBACK


cdef inline bint _is_truth(Span *value) noexcept nogil:
    return _is(value, b"false", 5) or _is(value, b"true", 4)


cdef inline bint _is(Span *name, const char *text, Py_ssize_t size) noexcept nogil:
    return name.size == size and memcmp(name.at, text, size) == 0


cdef int _parse_header(Bytes p, Bytes end, Send *send) noexcept nogil:
    """The header of a send or of the end of a transaction; 0 when it is not plain."""
    cdef Span name, text
    cdef long long number = 0
    cdef int seen = 0, bit
    send.code = -1
    send.frame_flag = 0
    send.text.at = NULL
    send.text.size = 0
    send.text.kind = ASCII
    send.numbers[RECONSUME_TIMES] = 0
    if p >= end or p[0] != c'{':
        return 0
    p += 1
    while True:
        if not _string(&p, end, &name) or name.kind != ASCII or p >= end or p[0] != c':':
            return 0
        p += 1
        if _is(&name, b"code", 4):
            bit = 1
            if not _digits(&p, end, 0x7FFFFFFF, &send.code):
                return 0
            if send.code != SEND_V1 and send.code != SEND_V2 and send.code != END_TRANSACTION:
                return 0
        elif _is(&name, b"extFields", 9):
            bit = 2
            if send.code < 0 or p >= end or p[0] != c'{':
                return 0
            p += 1
            if send.code == END_TRANSACTION:
                if not _end_fields(&p, end, send):
                    return 0
            elif not _fields(&p, end, send):
                return 0
        elif _is(&name, b"flag", 4):
            bit = 4
            if not _digits(&p, end, 0x7FFFFFFF, &send.frame_flag):
                return 0
            if send.frame_flag & 1:
                return 0
        elif _is(&name, b"opaque", 6):
            bit = 8
            if not _digits(&p, end, 0x7FFFFFFF, &send.opaque):
                return 0
        elif _is(&name, b"version", 7):
            bit = 16
            if not _digits(&p, end, 0x7FFFFFFF, &number):
                return 0
        elif _is(&name, b"language", 8):
            bit = 32
            if not _string(&p, end, &text) or text.kind != ASCII:
                return 0
        elif _is(&name, b"serializeTypeCurrentRPC", 23):
            bit = 64
            if not _string(&p, end, &text) or text.kind != ASCII:
                return 0
        elif _is(&name, b"remark", 6):
            bit = 128
            if not _string(&p, end, &text) or text.kind != ASCII:
                return 0
        else:
            return 0
        if seen & bit:
            return 0
        seen |= bit
        if p >= end:
            return 0
        p += 1
        if (p - 1)[0] == c'}':
            break
        if (p - 1)[0] != c',':
            return 0
    return p == end and seen & 11 == 11


cdef inline int _hex(unsigned char c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    c |= 0x20
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    return -1


cdef Py_ssize_t _unescape(Span *text, unsigned char *out) noexcept nogil:
    """The text of a JSON string in UTF-8, never longer than it stands there; -1 when it is odd."""
    cdef Bytes p = text.at
    cdef Bytes end = p + text.size
    cdef unsigned char *begin = out
    cdef unsigned char c
    cdef int unit, n, digit
    while p < end:
        c = p[0]
        p += 1
        if c != c'\\':
            out[0] = c
            out += 1
            continue
        c = p[0]
        p += 1
        if c == c'u':
            if end - p < 4:
                return -1
            unit = 0
            for n in range(4):
                digit = _hex(p[n])
                if digit < 0:
                    return -1
                unit = unit << 4 | digit
            p += 4
            if unit < 0x80:
                out[0] = unit
                out += 1
            elif unit < 0x800:
                out[0] = 0xC0 | unit >> 6
                out[1] = 0x80 | unit & 0x3F
                out += 2
            elif 0xD800 <= unit < 0xE000:
                return -1
            else:
                out[0] = 0xE0 | unit >> 12
                out[1] = 0x80 | unit >> 6 & 0x3F
                out[2] = 0x80 | unit & 0x3F
                out += 3
            continue
        if c == c'n':
            c = c'\n'
        elif c == c't':
            c = c'\t'
        elif c == c'r':
            c = c'\r'
        elif c == c'b':
            c = 8
        elif c == c'f':
            c = 12
        elif c != c'"' and c != c'\\' and c != c'/':
            return -1
        out[0] = c
        out += 1
    return out - begin


cdef int _is_utf8(Bytes p, Bytes end) noexcept nogil:
    """Whether bytes are well-formed UTF-8, without surrogates."""
    cdef unsigned char c
    cdef unsigned int point
    while p < end:
        c = p[0]
        if c < 0x80:
            p += 1
        elif c < 0xC2:
            return 0
        elif c < 0xE0:
            if end - p < 2 or p[1] & 0xC0 != 0x80:
                return 0
            p += 2
        elif c < 0xF0:
            if end - p < 3 or p[1] & 0xC0 != 0x80 or p[2] & 0xC0 != 0x80:
                return 0
            point = (c & 0x0F) << 12 | (p[1] & 0x3F) << 6
            if point < 0x800 or 0xD800 <= point < 0xE000:
                return 0
            p += 3
        elif c < 0xF5:
            if (end - p < 4 or p[1] & 0xC0 != 0x80 or p[2] & 0xC0 != 0x80
                    or p[3] & 0xC0 != 0x80):
                return 0
            point = (c & 0x07) << 18 | (p[1] & 0x3F) << 12
            if point < 0x10000 or point > 0x10FFFF:
                return 0
            p += 4
        else:
            return 0
    return 1


cdef bint mentions_timer(Bytes p, Bytes end) noexcept nogil:
    """Whether TIMER_DE stands anywhere in a text."""
    while end - p >= 8:
        p = <Bytes>memchr(p, c'T', end - p - 7)
        if p == NULL:
            return False
        if memcmp(p, b"TIMER_DE", 8) == 0:
            return True
        p += 1
    return False


cdef int _scan_properties(unsigned char *text, Py_ssize_t size, Send *send) noexcept nogil:
    """Look through a property text and close up what is kept of it; 0 when it is not plain."""
    cdef Bytes p = text
    cdef Bytes end = text + size
    cdef Bytes stop
    cdef Bytes parted
    cdef unsigned char *out = text
    cdef Span name, value
    cdef bint waits = False
    send.unique.size = send.keys.size = send.tag.size = send.group.size = 0
    send.is_prepared = send.is_bound = False
    if p < end and (end - 1)[0] == 2:
        end -= 1
    if size and p == end:
        return 0
    if mentions_timer(p, end):
        return 0
    while p < end:
        stop = <Bytes>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        elif stop + 1 == end:
            return 0
        parted = <Bytes>memchr(p, 1, stop - p)
        if parted == NULL or parted == p or parted + 1 == stop:
            return 0
        if memchr(parted + 1, 1, stop - parted - 1) != NULL:
            return 0
        name.at = p
        name.size = parted - p
        value.at = parted + 1
        value.size = stop - parted - 1
        if name.size == 4 and memcmp(p, b"WAIT", 4) == 0:
            if waits or value.size != 4 or memcmp(value.at, b"true", 4) != 0:
                return 0
            waits = True
        else:
            if out != text:
                out[0] = 2
                out += 1
            if out != p:
                # Closing up goes to the left, byte for byte: both may lie upon each other.
                _move(out, p, stop - p)
                value.at -= p - out
            if name.size == 4 and memcmp(out, b"TAGS", 4) == 0:
                if send.tag.size:
                    return 0
                send.tag = value
            elif name.size == 4 and memcmp(out, b"KEYS", 4) == 0:
                if send.keys.size:
                    return 0
                send.keys = value
            elif name.size == 5 and memcmp(out, b"DELAY", 5) == 0:
                return 0
            elif name.size == 6 and memcmp(out, b"PGROUP", 6) == 0:
                send.is_bound |= send.group.size > 0
                send.group = value
            elif name.size == 10 and memcmp(out, b"REAL_TOPIC", 10) == 0:
                send.is_bound = True
            elif name.size == 30 and memcmp(out, b"CHECK_IMMUNITY_TIME_IN_SECONDS", 30) == 0:
                send.is_bound = True
            elif name.size == 8:
                if memcmp(out, b"TRAN_MSG", 8) == 0:
                    if send.is_prepared or not _is(&value, b"true", 4):
                        return 0
                    send.is_prepared = True
                elif memcmp(out, b"REAL_QID", 8) == 0:
                    send.is_bound = True
                elif memcmp(out, b"UNIQ_KEY", 8) == 0:
                    if send.unique.size:
                        return 0
                    send.unique = value
            out += stop - p
        p = stop + 1
    send.kept_bytes = out - text
    return 1


cdef inline void _move(unsigned char *out, Bytes p, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(size):
        out[n] = p[n]


cdef int _read(
    Bytes header, Bytes stop, Send *send, unsigned char *scratch, Py_ssize_t suffix_bytes
) noexcept nogil:
    """What a frame is, but for its topic; the properties of a send are in `scratch`."""
    cdef Py_ssize_t text_bytes
    cdef long long flags
    if not _parse_header(header, stop, send):
        return ODD
    if send.code == END_TRANSACTION:
        return ENDING
    flags = send.numbers[SYS_FLAG]
    if flags & 0x38 or not send.topic.size or send.text.size > TEXT_MAX_BYTES:
        return ODD
    if send.text.kind == ESCAPED:
        text_bytes = _unescape(&send.text, scratch)
        if text_bytes < 0:
            return ODD
    else:
        text_bytes = send.text.size
        if text_bytes:
            memcpy(scratch, send.text.at, text_bytes)
    if send.text.kind != ASCII and not _is_utf8(scratch, scratch + text_bytes):
        return ODD
    if not _scan_properties(scratch, text_bytes, send):
        return ODD
    if send.kept_bytes + suffix_bytes + (send.kept_bytes > 0) > PROPERTIES_MAX_BYTES:
        return ODD
    if count_keys(send) > KEYS_MAX:
        return ODD
    if send.is_prepared:
        return ODD if send.is_bound else PREPARED
    return ODD if flags & 4 else PLAIN


cdef struct Message:
    unsigned int flag
    Bytes body
    Py_ssize_t body_bytes
    Bytes own
    Py_ssize_t own_bytes


cdef inline int _batch_entry(Bytes p, Bytes end, Message *message) noexcept nogil:
    """A message in the body of a batch; 0 when it is whole, else what is wrong with it."""
    cdef long long size, body_bytes
    if end - p < BATCH_FIXED_BYTES:
        return 1
    size = <int>be32(p)
    body_bytes = <int>be32(p + 16)
    if body_bytes < 0 or size > end - p or BATCH_FIXED_BYTES + body_bytes > size:
        return 2
    message.flag = be32(p + 12)
    message.body = p + BATCH_HEAD_BYTES
    message.body_bytes = body_bytes
    message.own = p + BATCH_FIXED_BYTES + body_bytes
    message.own_bytes = be16(message.own - 2)
    return 0 if BATCH_FIXED_BYTES + body_bytes + message.own_bytes == size else 3


cdef object _batch_problem(int what, Bytes begin, Bytes p, Bytes end):
    """What :func:`_batch_entry` found, in words."""
    at, left = p - begin, end - p
    if what == 1:
        return f"batch body: {left} bytes left at {at}, an entry has at least 22"
    size, body_bytes = <int>be32(p), <int>be32(p + 16)
    if what == 2:
        return f"batch body: entry at {at} of size {size}, its body {body_bytes}, {left} left"
    return f"batch body: entry at {at} of size {size} is not the sum of its parts"


cdef void scan_values(Bytes p, Bytes end, Send *send) noexcept nogil:
    """Find the unique key, the keys and the tag in properties: of each the last that is not empty.
    What was found before stays where there is none."""
    cdef Bytes stop
    cdef Span *found
    cdef Py_ssize_t name_bytes
    while p < end:
        stop = <Bytes>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        found = NULL
        if stop - p > 5:
            name_bytes = 5
            if p[4] == 1:
                if memcmp(p, b"TAGS", 4) == 0:
                    found = &send.tag
                elif memcmp(p, b"KEYS", 4) == 0:
                    found = &send.keys
            elif stop - p > 9 and memcmp(p, b"UNIQ_KEY\x01", 9) == 0:
                name_bytes = 9
                found = &send.unique
            if found != NULL:
                found.at = p + name_bytes
                found.size = stop - found.at
        p = stop + 1


# -------------------------------------------------------------------------------------------- rows


cdef class WriteBatch:
    """Plain sends and batches of one turn; see plain/sends.py."""

    def __cinit__(self):
        self.rows = NULL
        self.hashes = NULL
        self.out = NULL
        self.scratch = <unsigned char *>malloc(TEXT_MAX_BYTES)
        if self.scratch == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.rows)
        free(self.hashes)
        free(self.out)
        free(self.scratch)

    def __init__(self, bytes store_host not None, Py_ssize_t file_bytes):
        self.store_host = store_host
        self.file_bytes = file_bytes
        self.queues = []
        self.count = self.dispatched = self.hashed = self.size_bytes = 0

    def __len__(self):
        return self.count

    cdef int _make_room_for_rows(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t wanted
        cdef void *found
        if self.count + count > self.capacity:
            wanted = self.capacity * 2 + count + 63
            found = realloc(self.rows, wanted * sizeof(Row))
            if found == NULL:
                raise MemoryError
            self.rows = <Row *>found
            self.capacity = wanted
        return 0

    cdef int _make_room_for_keys(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t wanted
        cdef void *found
        if self.hashed + count > self.hash_capacity:
            wanted = self.hash_capacity * 2 + count + 64
            found = realloc(self.hashes, wanted * sizeof(unsigned int))
            if found == NULL:
                raise MemoryError
            self.hashes = <unsigned int *>found
            self.hash_capacity = wanted
        return 0

    cdef int _make_room(self, Py_ssize_t keys, Py_ssize_t record_bytes, Py_ssize_t used) except -1:
        """Room for one row more, its keys, and its record behind what was packed already."""
        cdef Py_ssize_t wanted
        cdef void *found
        self._make_room_for_rows(1)
        self._make_room_for_keys(keys)
        if used + record_bytes > self.out_capacity:
            wanted = self.out_capacity * 2 + record_bytes
            found = realloc(self.out, wanted)
            if found == NULL:
                raise MemoryError
            self.out = <unsigned char *>found
            self.out_capacity = wanted
        return 0

    def append(
        self, bytes data not None, Py_ssize_t at, dict known not None, bytes born_host not None,
        bytes suffix not None, Py_ssize_t body_max_bytes, long long position, long long limit,
        long long store_ms, Py_ssize_t rows_max, Py_ssize_t bytes_max,
    ):
        """Take the plain sends at the begin of `data`; see plain/sends.py."""
        cdef Py_ssize_t count = self.count, hashed = self.hashed, owned = len(self.queues)
        try:
            return self._append(
                data, at, known, born_host, suffix, body_max_bytes, position, limit, store_ms,
                rows_max, bytes_max,
            )
        except BaseException:
            self._undo(count, hashed, owned)
            raise

    cdef _undo(self, Py_ssize_t count, Py_ssize_t hashed, Py_ssize_t owned):
        """Let go of the rows from `count` on, whose records nobody gets."""
        cdef Row *row
        while self.count > count:
            self.count -= 1
            row = &self.rows[self.count]
            (<QueueState>row.queue).next_offset = row.queue_offset
            if row.role != NO_ROLE:
                self._let_go(row)
        self.hashed = hashed
        del self.queues[owned:]

    cdef _append(
        self, bytes data, Py_ssize_t at, dict known, bytes born_host, bytes suffix,
        Py_ssize_t body_max_bytes, long long position, long long limit, long long store_ms,
        Py_ssize_t rows_max, Py_ssize_t bytes_max,
    ):
        cdef Bytes begin = <Bytes>PyBytes_AsString(data)
        cdef Bytes end = begin + PyBytes_Size(data)
        cdef Bytes p
        cdef Bytes stop
        cdef Send send
        cdef Taking taking
        cdef unsigned long long total, header_bytes
        cdef Py_ssize_t taken = 0, size
        cdef int state = 0, reading
        if (at < 0 or at > end - begin or PyBytes_Size(born_host) != 8
                or PyBytes_Size(self.store_host) != 8):
            raise ValueError("a begin outside the data, or a host that has not 8 bytes")
        taking.known = <void *>known
        taking.last_topic = NULL
        taking.last_topic_bytes = -1
        taking.last_queues = NULL
        taking.born_host = <Bytes>PyBytes_AsString(born_host)
        taking.suffix = <Bytes>PyBytes_AsString(suffix)
        taking.suffix_bytes = PyBytes_Size(suffix)
        taking.position = position
        taking.limit = limit
        taking.store_ms = store_ms
        taking.used = 0
        p = begin + at
        while end - p >= 8:
            total = be32(p)
            header_bytes = be32(p + 4)
            if header_bytes >> 24 or total < 4 + header_bytes:
                state = 1
                break
            if <unsigned long long>(end - p) < total + 4:
                break
            if taken == rows_max or taking.used >= bytes_max:
                break
            stop = p + 4 + total
            send.body = p + 8 + header_bytes
            send.body_bytes = stop - send.body
            reading = ODD
            if send.body_bytes <= body_max_bytes:
                reading = _read(p + 8, send.body, &send, self.scratch, taking.suffix_bytes)
            if reading == PLAIN:
                size = self._take_plain(&send, &taking)
            elif reading == ODD:
                size = 0
            else:
                size = self._take_other(reading, &send, &taking)
            if size <= 0:
                state = -1 if size < 0 else 1
                break
            taken += 1
            taking.used += size
            taking.position += size
            p = stop
        if state == 1:
            state = self._odd_frames(p, end, taking.suffix_bytes)
        self.size_bytes += taking.used
        return (
            taken, p - begin, state,
            PyBytes_FromStringAndSize(<const char *>self.out, taking.used),
        )

    cdef Py_ssize_t _take_plain(self, Send *send, Taking *taking) except -2:
        """Take a send; the bytes of its record, 0 when it is odd, -1 when the file is full."""
        cdef void *found
        cdef QueueState queue
        cdef Row *row
        cdef Py_ssize_t tail_bytes
        cdef long long size
        if not find_queue(
            taking, send.topic.at, send.topic.size, send.numbers[QUEUE_ID], &found
        ):
            return 0
        queue = <QueueState?><object>found
        tail_bytes = PyBytes_Size(queue.topic_tail)
        size = (
            HEAD_BYTES + send.body_bytes + tail_bytes + 2
            + send.kept_bytes + taking.suffix_bytes + (send.kept_bytes > 0)
        )
        if taking.position + size + BLANK_BYTES > taking.limit:
            return 0 if size + BLANK_BYTES > self.file_bytes else -1
        row = self._add_row(queue, taking, send, size, count_keys(send))
        pack_send(
            self.out + taking.used, row, send, taking.born_host,
            <Bytes>PyBytes_AsString(self.store_host),
            <Bytes>PyBytes_AsString(queue.topic_tail), tail_bytes,
            self.scratch, taking.suffix, taking.suffix_bytes,
        )
        return size

    cdef Row *_add_row(
        self, QueueState queue, Taking *taking, Send *send, Py_ssize_t size, Py_ssize_t keys
    ) except NULL:
        """Add the row of a record of a size, which begins behind what was packed already, and make
        room for it there."""
        cdef Row *row
        self._make_room(keys, size, taking.used)
        self.queues.append(queue)
        row = &self.rows[self.count]
        row.place = taking.position
        row.queue_offset = queue.next_offset
        row.store_ms = taking.store_ms
        row.half_offset = 0
        row.size = <unsigned int>size
        row.queue_id = <int>queue.queue_id
        row.opaque = <unsigned int>send.opaque
        row.role = NO_ROLE
        row.oneway = send.frame_flag & 2
        row.queue = <void *>queue
        row.tag_code = 0
        if send.tag.size:
            row.tag_code = <int>text_hash(0, send.tag.at, send.tag.size)
        row.first_hash = self.hashed
        row.hash_count = keys
        self._hash_keys(send, queue.topic_hash)
        queue.next_offset += 1
        self.count += 1
        return row

    cdef Py_ssize_t _take_other(self, int reading, Send *send, Taking *taking) except -2:
        """Take what is no plain send, as _take_plain does; for modules that know how."""
        return 0

    cdef bint _is_for_others(self, int reading) noexcept:
        """Whether _take_other may take such a frame."""
        return False

    cdef int _let_go(self, Row *row) except -1:
        """A row that has a role is taken back; for modules that give one."""
        return 0

    cdef int _odd_frames(self, Bytes p, Bytes end, Py_ssize_t suffix_bytes) noexcept:
        """How many of the next frames are surely not taken; the first counts as one."""
        cdef int count = 0, reading
        cdef unsigned long long total, header_bytes
        cdef unsigned int word
        cdef Send send
        while count < ODD_MAX and end - p >= 8:
            total = be32(p)
            word = be32(p + 4)
            header_bytes = word & 0xFFFFFF
            if total < 4 + header_bytes or <unsigned long long>(end - p) < total + 4:
                break
            if count and word >> 24 == 0:
                reading = _read(p + 8, p + 8 + header_bytes, &send, self.scratch, suffix_bytes)
                if reading == PLAIN or self._is_for_others(reading):
                    break
            count += 1
            p += total + 4
        return count if count else 1

    def append_batch(
        self, bytes body not None, QueueState queue not None, bytes middle not None,
        bytes properties not None, long long position, long long limit, long long store_ms,
    ):
        """Take all messages of a batch body; see plain/sends.py."""
        cdef Bytes begin = <Bytes>PyBytes_AsString(body)
        cdef Bytes end = begin + PyBytes_Size(body)
        cdef Bytes p = begin
        cdef Bytes more = <Bytes>PyBytes_AsString(properties)
        cdef Bytes shared = <Bytes>PyBytes_AsString(middle)
        cdef Bytes tail = <Bytes>PyBytes_AsString(queue.topic_tail)
        cdef Py_ssize_t more_bytes = PyBytes_Size(properties)
        cdef Py_ssize_t middle_bytes = PyBytes_Size(middle)
        cdef Py_ssize_t tail_bytes = PyBytes_Size(queue.topic_tail)
        cdef Py_ssize_t fixed_bytes = FRONT_BYTES + middle_bytes + 4 + tail_bytes + 2
        cdef Py_ssize_t count = 0, longest = 0, text_bytes, keys, n
        cdef Py_ssize_t hashed = self.hashed
        cdef long long total = 0, offset = queue.next_offset
        cdef Message message
        cdef Send of_all, send
        cdef Row *row
        cdef unsigned char *out
        cdef int problem
        while p < end:
            problem = _batch_entry(p, end, &message)
            if problem:
                raise ValueError(_batch_problem(problem, begin, p, end))
            text_bytes = message.own_bytes + more_bytes + _is_parted(&message, more_bytes)
            if text_bytes > longest:
                longest = text_bytes
            total += fixed_bytes + message.body_bytes + text_bytes
            count += 1
            p = message.own + message.own_bytes
        if not count:
            raise ValueError("the batch holds no message")
        if longest > PROPERTIES_MAX_BYTES:
            raise ValueError(
                f"properties of a message with those of its batch are {longest} bytes long, the "
                f"limit is {PROPERTIES_MAX_BYTES}"
            )
        if position + total + BLANK_BYTES > limit:
            return total, b""
        packed = PyBytes_FromStringAndSize(NULL, total)
        out = <unsigned char *>PyBytes_AsString(packed)
        self._make_room_for_rows(count)
        self.queues.append(queue)
        of_all.unique.size = of_all.keys.size = of_all.tag.size = 0
        scan_values(more, more + more_bytes, &of_all)
        # Only room for keys may fail from here on; until the end nothing counts as taken.
        p = begin
        for n in range(count):
            _batch_entry(p, end, &message)
            p = message.own + message.own_bytes
            send.unique.size = send.keys.size = send.tag.size = 0
            scan_values(message.own, p, &send)
            if of_all.unique.size:
                send.unique = of_all.unique
            if of_all.keys.size:
                send.keys = of_all.keys
            if of_all.tag.size:
                send.tag = of_all.tag
            keys = count_keys(&send)
            try:
                self._make_room_for_keys(keys)
            except MemoryError:
                self.hashed = hashed
                raise
            row = &self.rows[self.count + n]
            row.place = position
            row.queue_offset = offset + n
            row.store_ms = store_ms
            row.queue_id = <int>queue.queue_id
            row.half_offset = 0
            row.opaque = 0
            row.role = NO_ROLE
            row.oneway = True
            row.queue = <void *>queue
            row.tag_code = 0
            if queue.delay_ms:
                row.tag_code = store_ms + queue.delay_ms
            elif send.tag.size:
                row.tag_code = <int>text_hash(0, send.tag.at, send.tag.size)
            row.first_hash = self.hashed
            row.hash_count = keys
            self._hash_keys(&send, queue.topic_hash)
            text_bytes = message.own_bytes + more_bytes + _is_parted(&message, more_bytes)
            row.size = <unsigned int>(fixed_bytes + message.body_bytes + text_bytes)
            put32(out, row.size)
            put32(out + 4, MAGIC_V1)
            put32(out + 8, crc32_of(message.body, message.body_bytes) & 0x7FFFFFFF)
            put32(out + 12, row.queue_id)
            put32(out + 16, message.flag)
            put64(out + 20, row.queue_offset)
            put64(out + 28, row.place)
            out += FRONT_BYTES
            memcpy(out, shared, middle_bytes)
            out += middle_bytes
            put32(out, <unsigned int>message.body_bytes)
            memcpy(out + 4, message.body, message.body_bytes)
            out += 4 + message.body_bytes
            memcpy(out, tail, tail_bytes)
            out += tail_bytes
            put16(out, <unsigned int>text_bytes)
            memcpy(out + 2, message.own, message.own_bytes)
            out += 2 + message.own_bytes
            if _is_parted(&message, more_bytes):
                out[0] = 2
                out += 1
            memcpy(out, more, more_bytes)
            out += more_bytes
            position += row.size
        self.count += count
        self.size_bytes += total
        queue.next_offset = offset + count
        return total, packed

    cdef void _hash_keys(self, Send *send, unsigned int topic_hash) noexcept:
        cdef Bytes p
        cdef Bytes end
        cdef Bytes stop
        if send.unique.size:
            self._add_hash(text_hash(topic_hash, send.unique.at, send.unique.size))
        p = send.keys.at
        end = p + send.keys.size
        while send.keys.size and p < end:
            stop = <Bytes>memchr(p, c' ', end - p)
            if stop == NULL:
                stop = end
            if stop > p:
                self._add_hash(text_hash(topic_hash, p, stop - p))
            p = stop + 1

    cdef inline void _add_hash(self, unsigned int value) noexcept:
        if value & 0x80000000:
            value = -value & 0x7FFFFFFF
        self.hashes[self.hashed] = value
        self.hashed += 1

    def adopt(
        self, bytes rows not None, bytes hashes not None, list queues not None, long long base,
        Py_ssize_t first=0, long long limit=0x7FFFFFFFFFFFFFFF, *, bint with_keys=True,
        list begins=None, bint in_order=False,
    ):
        """Take rows of a walk, whose records are in the log already; see plain/sends.py."""
        cdef Py_ssize_t count = PyBytes_Size(rows) // sizeof(WalkedRow), hashed
        cdef const WalkedRow *found = <const WalkedRow *>PyBytes_AsString(rows)
        cdef Py_ssize_t most = PyBytes_Size(hashes) // sizeof(unsigned int)
        cdef const unsigned int *all_hashes = <const unsigned int *>PyBytes_AsString(hashes)
        cdef Py_ssize_t queue_count = PyList_Size(queues), n, k
        cdef long long place, slot, keys
        cdef QueueState queue
        cdef Row *row
        if begins is not None and PyList_Size(begins) != queue_count:
            raise ValueError("not as many begins as queues")
        for n in range(queue_count):
            if queues[n] is not None and not isinstance(queues[n], QueueState):
                raise TypeError("a queue that is none")
            if begins is not None:
                place = begins[n]
        # All that may fail comes first.
        first = min(max(first, 0), count)
        for n in range(count):
            if (not 0 <= found[n].queue < queue_count or found[n].first_hash < 0
                    or not 0 <= found[n].hashes <= most - found[n].first_hash):
                raise ValueError("a row of another walk")
        self._make_room_for_rows(count - first)
        self._make_room_for_keys(most)
        # Rows borrow them.
        self.queues.append(list(queues))
        for n in range(first, count):
            place = base + found[n].position
            if place >= limit or (in_order and found[n].odd):
                return n
            slot = -1 if found[n].sys_flag & 4 else found[n].queue_offset
            if PyList_GetItem(queues, found[n].queue) == <void *>None:
                continue
            queue = <QueueState>PyList_GetItem(queues, found[n].queue)
            if slot >= 0 and begins is not None and place < <long long>begins[found[n].queue]:
                if in_order and slot > queue.next_offset and queue.next_offset:
                    return n
                slot = -1
            elif slot >= 0 and in_order:
                if slot > queue.next_offset:
                    return n
                if slot == queue.next_offset:
                    queue.next_offset = slot + 1
            keys = found[n].hashes if with_keys else 0
            if begins is not None and slot < 0 and not keys:
                continue
            row = &self.rows[self.count]
            row.place = place
            row.queue_offset = slot
            row.tag_code = found[n].tag_code
            row.store_ms = found[n].store_ms
            row.size = <unsigned int>found[n].size
            row.half_offset = 0
            row.role = NO_ROLE
            row.queue_id = <int>queue.queue_id
            row.opaque = 0
            row.oneway = True
            row.queue = <void *>queue
            row.first_hash = self.hashed
            row.hash_count = keys
            for k in range(keys):
                self.hashes[self.hashed + k] = all_hashes[found[n].first_hash + k]
            self.hashed += keys
            self.size_bytes += row.size
            self.count += 1
        return count

    def pass_row(self):
        """The row that dispatch stopped at, which counts as dispatched; see plain/sends.py."""
        cdef Row *row
        if self.dispatched >= self.count:
            raise IndexError("all rows were dispatched")
        row = &self.rows[self.dispatched]
        self.dispatched += 1
        if row.queue == NULL:
            return None
        return (
            <object>row.queue, row.queue_offset, row.place, row.size, row.tag_code, row.store_ms,
            (),
        )

    def dispatch(self):
        """Put the entries of rows into their queues; see plain/sends.py."""
        cdef Row *row
        cdef QueueState queue
        cdef Py_ssize_t n, size
        cdef unsigned char *entry
        cdef list touched = []
        cdef list soiled = []
        cdef bint in_order = True
        try:
            while self.dispatched < self.count:
                row = &self.rows[self.dispatched]
                if row.queue == NULL:
                    self.dispatched += 1
                    continue
                queue = <QueueState>row.queue
                if row.queue_offset >= 0:
                    if row.queue_offset != queue.max_offset:
                        in_order = False
                        break
                    size = PyByteArray_Size(queue.tail)
                    PyByteArray_Resize(queue.tail, size + ENTRY_BYTES)
                    entry = <unsigned char *>PyByteArray_AsString(queue.tail) + size
                    put64(entry, row.place)
                    put32(entry + 8, row.size)
                    put64(entry + 12, row.tag_code)
                    queue.max_offset += 1
                if not queue.grown_count:
                    touched.append(queue)
                queue.grown_count += 1
                queue.grown_bytes += row.size
                if row.queue_offset >= 0 and not queue.is_dirty:
                    queue.is_dirty = True
                    soiled.append(queue)
                self.dispatched += 1
        finally:
            grown = {}
            for queue in touched:
                grown[queue] = queue.grown_count, queue.grown_bytes
                queue.grown_count = queue.grown_bytes = 0
        return grown, soiled, in_order

    def rows_from(self, Py_ssize_t first):
        """Rows as the dispatcher knows them, without keys; see plain/sends.py."""
        cdef list found = []
        cdef Py_ssize_t n
        cdef Row *row
        for n in range(first if first > 0 else 0, self.count):
            row = &self.rows[n]
            if row.queue != NULL:
                found.append((
                    <object>row.queue, row.queue_offset, row.place, row.size, row.tag_code,
                    row.store_ms, (),
                ))
        return found

    def entry_queues(self):
        """The queues that rows belong to, each once; see plain/sends.py."""
        cdef Py_ssize_t n
        cdef void *last = NULL
        cdef dict found = {}
        for n in range(self.count):
            if (self.rows[n].queue != NULL and self.rows[n].queue != last
                    and self.rows[n].queue_offset >= 0):
                last = self.rows[n].queue
                found[<object>last] = None
        return list(found)

    def entry_rows(self):
        """The rows of the journal; see plain/sends.py."""
        cdef Py_ssize_t n, count = 0
        cdef Row *row
        cdef unsigned char *out
        for n in range(self.count):
            count += self.rows[n].queue != NULL and self.rows[n].queue_offset >= 0
        found = PyBytes_FromStringAndSize(NULL, count * JOURNAL_ROW_BYTES)
        out = <unsigned char *>PyBytes_AsString(found)
        for n in range(self.count):
            row = &self.rows[n]
            if row.queue == NULL or row.queue_offset < 0:
                continue
            put64(out, (<QueueState>row.queue).number)
            put64(out + 8, row.queue_offset)
            put64(out + 16, row.place)
            put32(out + 24, row.size)
            put64(out + 28, row.tag_code)
            out += JOURNAL_ROW_BYTES
        return found

    @property
    def dispatched_count(self):
        """Rows that :meth:`dispatch` is done with."""
        return self.dispatched

    @property
    def end(self):
        """The physical offset behind the last record; 0 without one."""
        cdef Row *row
        if not self.count:
            return 0
        row = &self.rows[self.count - 1]
        return row.place + row.size

    @property
    def last_ms(self):
        """The store time of the last row; 0 without one."""
        return self.rows[self.count - 1].store_ms if self.count else 0

    def index_columns(self):
        """Hashes, places and times of all keys, as native int64; see plain/sends.py."""
        cdef Py_ssize_t n, k, at = 0
        cdef Row *row
        cdef long long *column
        cdef long long *places
        cdef long long *times
        found = PyBytes_FromStringAndSize(NULL, self.hashed * 24)
        column = <long long *>PyBytes_AsString(found)
        places = column + self.hashed
        times = places + self.hashed
        for n in range(self.count):
            row = &self.rows[n]
            if row.queue == NULL:
                continue
            for k in range(row.hash_count):
                column[at] = self.hashes[row.first_hash + k]
                places[at] = row.place
                times[at] = row.store_ms
                at += 1
        size = at * 8
        skipped = self.hashed * 8
        return (
            found[:size], found[skipped:skipped + size], found[2 * skipped:2 * skipped + size]
        )

    def drop(self, queues):
        """Forget the rows of queues that go away; see plain/sends.py."""
        cdef Py_ssize_t n
        for n in range(self.count):
            if self.rows[n].queue != NULL and <object>self.rows[n].queue in queues:
                self.rows[n].queue = NULL

    def take_back(self):
        """Nothing was stored: queue offsets are given again; see plain/sends.py."""
        cdef Py_ssize_t n
        for n in range(self.count - 1, -1, -1):
            if self.rows[n].queue != NULL:
                (<QueueState>self.rows[n].queue).next_offset = self.rows[n].queue_offset
                if self.rows[n].role != NO_ROLE:
                    self._let_go(&self.rows[n])
                self.rows[n].queue = NULL

    def answers(self, Py_ssize_t first, Py_ssize_t stop, tuple pieces):
        """The answers of rows that were stored; see plain/sends.py."""
        cdef bytes head = pieces[0], queue_id = pieces[1], offset = pieces[2]
        cdef bytes opaque = pieces[3], tail = pieces[4], done = pieces[5]
        cdef Py_ssize_t fixed = (
            PyBytes_Size(head) + PyBytes_Size(queue_id) + PyBytes_Size(offset)
            + PyBytes_Size(opaque) + PyBytes_Size(tail) + PyBytes_Size(done)
        )
        cdef unsigned char *out
        cdef unsigned char *p
        cdef unsigned char *begin
        cdef Py_ssize_t n
        cdef Row *row
        if first < 0 or stop > self.count or first > stop:
            raise IndexError("no such rows")
        # A place takes 16 digits, the three numbers at most 10, 19 and 10.
        out = <unsigned char *>malloc((stop - first) * (8 + fixed + 16 + 10 + 19 + 10) + 1)
        if out == NULL:
            raise MemoryError
        try:
            p = out
            for n in range(first, stop):
                row = &self.rows[n]
                if row.oneway:
                    continue
                begin = p
                p += 8
                if row.role == OP:
                    p = _copy(p, done)
                else:
                    p = _copy(p, head)
                    p = _upper_hex(p, row.place)
                    p = _copy(p, queue_id)
                    p = _decimal(p, row.queue_id)
                    p = _copy(p, offset)
                    p = _decimal(p, row.queue_offset)
                    p = _copy(p, opaque)
                p = _decimal(p, row.opaque)
                p = _copy(p, tail)
                put32(begin, <unsigned int>(p - begin - 4))
                put32(begin + 4, <unsigned int>(p - begin - 8))
            return PyBytes_FromStringAndSize(<const char *>out, p - out)
        finally:
            free(out)

    def opaques(self, Py_ssize_t first, Py_ssize_t stop):
        """What identifies the requests of rows, and whether they want an answer."""
        if first < 0 or stop > self.count or first > stop:
            raise IndexError("no such rows")
        return [
            (self.rows[n].opaque, bool(self.rows[n].oneway), self.rows[n].queue_id,
             self.rows[n].queue_offset, self.rows[n].place, self.rows[n].role == OP)
            for n in range(first, stop)
        ]


    def places(self, Py_ssize_t first, Py_ssize_t stop):
        """The physical offsets of rows."""
        if first < 0 or stop > self.count or first > stop:
            raise IndexError("no such rows")
        return [self.rows[n].place for n in range(first, stop)]

    def message_ids(self, Py_ssize_t first, Py_ssize_t stop, bytes host not None):
        """The ids of the messages of rows, joined by commas; see plain/sends.py."""
        cdef Py_ssize_t n, size, host_bytes = PyBytes_Size(host)
        cdef Bytes prefix = <Bytes>PyBytes_AsString(host)
        cdef unsigned char *out
        if first < 0 or stop > self.count or first > stop:
            raise IndexError("no such rows")
        size = (stop - first) * (host_bytes + 17)
        found = PyBytes_FromStringAndSize(NULL, size - 1 if size else 0)
        out = <unsigned char *>PyBytes_AsString(found)
        for n in range(first, stop):
            if n > first:
                out[0] = c','
                out += 1
            memcpy(out, prefix, host_bytes)
            out = _upper_hex(out + host_bytes, self.rows[n].place)
        return found


cdef inline bint _is_parted(Message *message, Py_ssize_t more_bytes) noexcept nogil:
    """Whether a separator comes between the properties of a message and those of its batch."""
    return (
        more_bytes > 0 and message.own_bytes > 0 and message.own[message.own_bytes - 1] != 2
    )


cdef int find_queue(
    Taking *taking, Bytes topic, Py_ssize_t topic_bytes, long long queue_id, void **found
) except -1:
    """Find a known queue; 0 when there is none. `topic` stays what it is until the call ends."""
    cdef void *queues
    if (topic_bytes != taking.last_topic_bytes
            or memcmp(topic, taking.last_topic, topic_bytes) != 0):
        queues = PyDict_GetItemWithError(
            <object>taking.known, PyBytes_FromStringAndSize(<const char *>topic, topic_bytes)
        )
        if queues != NULL:
            <list?><object>queues
        taking.last_queues = queues
        taking.last_topic = topic
        taking.last_topic_bytes = topic_bytes
    if taking.last_queues == NULL or queue_id >= PyList_Size(<object>taking.last_queues):
        return 0
    found[0] = PyList_GetItem(<object>taking.last_queues, queue_id)
    return found[0] != <void *>None


cdef unsigned int crc_of(Bytes p, Py_ssize_t size) noexcept nogil:
    """The checksum of bytes as a record has it."""
    return crc32_of(p, size) & 0x7FFFFFFF


cdef Py_ssize_t count_keys(Send *send) noexcept nogil:
    cdef Py_ssize_t count = 1 if send.unique.size else 0
    cdef Py_ssize_t n
    cdef bint inside = False
    for n in range(send.keys.size):
        if send.keys.at[n] == c' ':
            inside = False
        elif not inside:
            inside = True
            count += 1
    return count


cdef void pack_send(
    unsigned char *out, Row *row, Send *send, Bytes born_host, Bytes store_host, Bytes topic_tail,
    Py_ssize_t tail_bytes, Bytes properties, Bytes suffix, Py_ssize_t suffix_bytes,
) noexcept nogil:
    """Write the record of a row; there is room for its size."""
    put32(out, row.size)
    put32(out + 4, MAGIC_V1)
    put32(out + 8, crc32_of(send.body, send.body_bytes) & 0x7FFFFFFF)
    put32(out + 12, row.queue_id)
    put32(out + 16, <unsigned int>send.numbers[FLAG])
    put64(out + 20, row.queue_offset)
    put64(out + 28, row.place)
    put32(out + 36, <unsigned int>send.numbers[SYS_FLAG])
    put64(out + 40, send.numbers[BORN_MS])
    memcpy(out + 48, born_host, 8)
    put64(out + 56, row.store_ms)
    memcpy(out + 64, store_host, 8)
    put32(out + 72, <unsigned int>send.numbers[RECONSUME_TIMES])
    memset(out + 76, 0, 8)
    put32(out + 84, <unsigned int>send.body_bytes)
    out += HEAD_BYTES
    memcpy(out, send.body, send.body_bytes)
    out += send.body_bytes
    memcpy(out, topic_tail, tail_bytes)
    out += tail_bytes
    put16(out, <unsigned int>(send.kept_bytes + suffix_bytes + (send.kept_bytes > 0)))
    out += 2
    memcpy(out, properties, send.kept_bytes)
    out += send.kept_bytes
    if send.kept_bytes:
        out[0] = 2
        out += 1
    memcpy(out, suffix, suffix_bytes)


cdef inline unsigned char *_copy(unsigned char *p, bytes text) except NULL:
    cdef Py_ssize_t size = PyBytes_Size(text)
    memcpy(p, PyBytes_AsString(text), size)
    return p + size


cdef inline unsigned char *_upper_hex(unsigned char *p, unsigned long long value) noexcept nogil:
    cdef int n
    for n in range(15, -1, -1):
        p[n] = b"0123456789ABCDEF"[value & 15]
        value >>= 4
    return p + 16


cdef inline unsigned char *_decimal(unsigned char *p, unsigned long long value) noexcept nogil:
    cdef unsigned char digits[20]
    cdef int count = 0
    while True:
        digits[count] = c'0' + value % 10
        value //= 10
        count += 1
        if not value:
            break
    while count:
        count -= 1
        p[0] = digits[count]
        p += 1
    return p


# ------------------------------------------------------------------------------------------- index


def put_keys(slots, hashes, places, times_ms, long long begin_ms, int first):
    """Entries of keys for an index file, and how many slots are used by then; see
    plain/sends.py."""
    cdef int[::1] table = slots
    cdef const long long[::1] keys = hashes
    cdef const long long[::1] where = places
    cdef const long long[::1] when = times_ms
    cdef long long seconds
    cdef Py_ssize_t n, count = keys.shape[0], slot_count = table.shape[0]
    cdef Py_ssize_t slot
    cdef int used = 0
    cdef unsigned char *out
    if where.shape[0] != count or when.shape[0] != count or not slot_count:
        raise ValueError("columns of different lengths, or no slots")
    found = PyBytes_FromStringAndSize(NULL, count * 20)
    out = <unsigned char *>PyBytes_AsString(found)
    for n in range(count):
        slot = (keys[n] & 0x7FFFFFFF) % slot_count
        put32(out, <unsigned int>keys[n])
        put64(out + 4, where[n])
        seconds = (when[n] - begin_ms) // 1000 if when[n] > begin_ms else 0
        put32(out + 12, 0x7FFFFFFF if seconds > 0x7FFFFFFF else <unsigned int>seconds)
        put32(out + 16, table[slot])
        used += not table[slot]
        table[slot] = first + <int>n
        out += 20
    return found, used
