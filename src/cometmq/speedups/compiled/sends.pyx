# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends, single ones and batches: from the frames of clients to records, and their answers.

Compiled; plain/sends.py is the definition. Untrusted bytes are read by headers.pxd and
properties.pxd, and here by `_unescape` and `_scan_properties`; each stays within the two pointers
that it is passed.
"""

from libc.stdlib cimport malloc, realloc, free
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

from cometmq.speedups.compiled.access cimport AccessCache, Claims, write_content
from cometmq.speedups.compiled.batches cimport Batch, look_at_messages, pack_messages
from cometmq.speedups.compiled.checksums cimport (
    look_at_processor, make_crc_tables, stored_crc,
)
from cometmq.speedups.compiled.headers cimport (
    ASCII, ESCAPED, ESCAPED_TEXT, FALSE, LONG_NUMBER, NUMBER, ODD_MAX, TEXT, TRUTH, WIDE_TEXT,
    Field, Form, Header, form_of, make_fields, read_header,
)
from cometmq.speedups.compiled.octets cimport Bytes, be32, put16, put32, put64
from cometmq.speedups.compiled.prefetching cimport prefetch
from cometmq.speedups.compiled.properties cimport (
    PROPERTIES_MAX_BYTES, Named, count_keys, find_named, forget, mentions_timer,
)
from cometmq.speedups.compiled.records cimport (
    BLANK_BYTES, COMMIT, HEAD_BYTES, MAGIC_V1, PREPARED_BIT,
)
from cometmq.speedups.compiled.texts cimport Span, is_text, is_utf8
from cometmq.speedups.compiled.writebatch cimport (
    NO_ROLE, KnownQueues, QueueState, Row, WriteBatch, add_named, add_row,
)

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    Py_ssize_t PyList_Size(object) except -1
    Py_ssize_t PY_SSIZE_T_MAX

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/socket.h>
    /* Return the bytes that the socket accepted; 0 if it accepts none now, or if it failed. The
       transport reports the failure. */
    static Py_ssize_t send_now(int handle, const char *data, Py_ssize_t size) {
        ssize_t sent = send(handle, data, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
        return sent > 0 ? (Py_ssize_t)sent : 0;
    }
    #else
    static Py_ssize_t send_now(int handle, const char *data, Py_ssize_t size) { return 0; }
    #endif
    """
    Py_ssize_t send_now(int handle, const char *data, Py_ssize_t size) nogil

make_crc_tables()
look_at_processor()

cdef enum:
    #: Maximum size of a plain property text in a header.
    TEXT_MAX_BYTES = 65536
    KEYS_MAX = 64
    #: Frames that are parsed before the first of them is appended; at most CLAIMS_MAX.
    AHEAD = 16
    SEND_V1 = 10
    SEND_V2 = 310
    SEND_BATCH = 320
    END_TRANSACTION = 37
    ROLLBACK = 12
    #: Bits of sysFlag that make a send odd: ended transactions and IPv6 hosts.
    ODD_FLAGS = 0x38
    #: A batch with a longer body, or with records that take more, is odd.
    BATCH_BODY_MAX_BYTES = 1 << 18
    BATCH_MAX_BYTES = 1 << 20
    #: Size of the part that the records of a batch share, up to the length of the body.
    MIDDLE_BYTES = 48
    SEND_FIELDS = 14
    SEND_REQUIRED = 0xFF
    END_FIELDS = 6
    END_REQUIRED = 0x1F

cdef tuple SEND_NAMED = (
    (b"producerGroup", TEXT), (b"topic", WIDE_TEXT), (b"defaultTopic", TEXT),
    (b"defaultTopicQueueNums", NUMBER), (b"queueId", NUMBER), (b"sysFlag", NUMBER),
    (b"bornTimestamp", LONG_NUMBER), (b"flag", NUMBER), (b"properties", ESCAPED_TEXT),
    (b"reconsumeTimes", NUMBER), (b"unitMode", TRUTH), (b"maxReconsumeTimes", NUMBER),
    (b"batch", FALSE), (b"bname", TEXT),
)
cdef tuple BATCH_NAMED = (*SEND_NAMED[:12], (b"batch", TRUTH), SEND_NAMED[13])
cdef tuple END_NAMED = (
    (b"producerGroup", TEXT), (b"tranStateTableOffset", LONG_NUMBER),
    (b"commitLogOffset", LONG_NUMBER), (b"commitOrRollback", NUMBER), (b"msgId", TEXT),
    (b"fromTransactionCheck", TRUTH),
)
cdef Field SENT[SEND_FIELDS]
cdef Field BATCH_SENT[SEND_FIELDS]
cdef Field ENDED[END_FIELDS]
make_fields(SENT, SEND_NAMED)
make_fields(BATCH_SENT, BATCH_NAMED)
make_fields(ENDED, END_NAMED)
cdef Form FORMS[4]
FORMS[0] = form_of(SEND_V2, SENT, SEND_FIELDS, SEND_REQUIRED, True)
FORMS[1] = form_of(SEND_V1, SENT, SEND_FIELDS, SEND_REQUIRED)
FORMS[2] = form_of(END_TRANSACTION, ENDED, END_FIELDS, END_REQUIRED)
FORMS[3] = form_of(SEND_BATCH, BATCH_SENT, SEND_FIELDS, SEND_REQUIRED, True)


cdef inline int _hex(unsigned char c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    c |= 0x20
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    return -1


cdef Py_ssize_t _unescape(Span *text, unsigned char *out) noexcept nogil:
    """Write a JSON string as UTF-8 and return its size; -1 if it is odd.

    The output is never longer than the input.
    """
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


cdef int _scan_properties(unsigned char *text, Py_ssize_t size, Send *send) noexcept nogil:
    """Parse a property text and compact the stored pairs in place; 0 if it is not plain."""
    cdef Bytes p = text
    cdef Bytes end = text + size
    cdef Bytes stop
    cdef Bytes parted
    cdef unsigned char *out = text
    cdef Span name, value
    cdef bint waits = False
    forget(&send.named)
    send.group.size = 0
    send.is_prepared = send.is_bound = send.is_fifo = False
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
        if is_text(&name, b"WAIT", 4):
            if waits or not is_text(&value, b"true", 4):
                return 0
            waits = True
        else:
            if out != text:
                out[0] = 2
                out += 1
            if out != p:
                memmove(out, p, stop - p)
                name.at = out
                value.at -= p - out
            if is_text(&name, b"TAGS", 4):
                if send.named.tag.size:
                    return 0
                send.named.tag = value
            elif is_text(&name, b"KEYS", 4):
                if send.named.keys.size:
                    return 0
                send.named.keys = value
            elif is_text(&name, b"UNIQ_KEY", 8):
                if send.named.unique.size:
                    return 0
                send.named.unique = value
            elif is_text(&name, b"TRAN_MSG", 8):
                if send.is_prepared or not is_text(&value, b"true", 4):
                    return 0
                send.is_prepared = True
            elif is_text(&name, b"PGROUP", 6):
                send.is_bound |= send.group.size > 0
                send.group = value
            elif is_text(&name, b"DELAY", 5):
                return 0
            elif (is_text(&name, b"REAL_TOPIC", 10) or is_text(&name, b"REAL_QID", 8)
                    or is_text(&name, b"CHECK_IMMUNITY_TIME_IN_SECONDS", 30)):
                send.is_bound = True
            elif is_text(&name, b"__SHARDINGKEY", 13):
                send.is_fifo = True
            out += stop - p
        p = stop + 1
    send.kept_bytes = out - text
    return 1


cdef Reading _read(
    Bytes header, Bytes stop, Send *send, unsigned char *scratch, Py_ssize_t suffix_bytes,
    Claims *claims, int row,
) noexcept nogil:
    """Parse a frame without looking up its topic; `scratch` receives the properties of a send.

    With `claims`, what the frame signed is written for its row.
    """
    cdef Py_ssize_t text_bytes = 0
    cdef long long flags
    cdef Header *said = &send.header
    cdef Span *text = &said.texts[PROPERTIES]
    cdef Span whole
    cdef int kind
    if not read_header(
        header, stop, FORMS, 4, said, NULL if claims == NULL else &claims.fields
    ):
        return ODD
    if said.code == END_TRANSACTION:
        if claims != NULL:
            write_content(claims, row, NULL, send.body, send.body_bytes)
        flags = said.numbers[END_KIND]
        if not said.texts[END_GROUP].size or not said.texts[END_MESSAGE_ID].size:
            return ODD
        return ENDING if not said.flag & 1 and (flags == COMMIT or flags == ROLLBACK) else ODD
    if not said.fields & 1 << RECONSUME_TIMES:
        said.numbers[RECONSUME_TIMES] = 0
    flags = said.numbers[SYS_FLAG]
    if said.flag & 1 or flags & ODD_FLAGS or not said.texts[TOPIC].size:
        return ODD
    kind = ASCII
    if said.fields & 1 << PROPERTIES:
        kind = said.kinds[PROPERTIES]
        text_bytes = text.size
        if text_bytes > TEXT_MAX_BYTES:
            return ODD
        if kind == ESCAPED:
            text_bytes = _unescape(text, scratch)
            if text_bytes < 0:
                return ODD
        elif text_bytes:
            memcpy(scratch, text.at, text_bytes)
    if kind != ASCII and not is_utf8(scratch, scratch + text_bytes):
        return ODD
    if claims != NULL:
        whole.at = scratch
        whole.size = text_bytes
        write_content(claims, row, &whole, send.body, send.body_bytes)
    if not _scan_properties(scratch, text_bytes, send):
        return ODD
    if send.kept_bytes + suffix_bytes + (send.kept_bytes > 0) > PROPERTIES_MAX_BYTES:
        return ODD
    if count_keys(&send.named) > KEYS_MAX:
        return ODD
    if said.code == SEND_BATCH:
        if send.is_prepared or flags & PREPARED_BIT or said.texts[TOPIC].at[0] == c'%':
            return ODD
        return BATCHED
    if send.is_prepared:
        return ODD if send.is_bound else PREPARED
    return ODD if flags & PREPARED_BIT else PLAIN


cdef bint _has_own_keys(Bytes p, Py_ssize_t size) noexcept nogil:
    """Return whether the messages of a batch have unique keys; only the first is examined."""
    cdef Bytes end
    if size < 4:
        return False
    end = p + min(<unsigned long long>be32(p), <unsigned long long>size)
    while end - p >= 9:
        p = <Bytes>memchr(p, c'U', end - p - 8)
        if p == NULL:
            return False
        if memcmp(p, b"UNIQ_KEY\x01", 9) == 0:
            return True
        p += 1
    return False


cdef void _drop_unique(Send *send, unsigned char *text) noexcept nogil:
    """Remove the unique key from the stored pairs."""
    cdef Py_ssize_t at = send.named.unique.at - text - 9
    cdef Py_ssize_t stop = at + 9 + send.named.unique.size
    if stop < send.kept_bytes:
        stop += 1
    elif at:
        at -= 1
    memmove(text + at, text + stop, send.kept_bytes - stop)
    send.kept_bytes -= stop - at


cdef class SendBatch(WriteBatch):
    """A write batch that accepts plain sends; see plain/sends.py."""

    def __cinit__(self):
        self.scratch = <unsigned char *>malloc(2 * TEXT_MAX_BYTES)
        if self.scratch == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.out)
        free(self.scratch)

    def __init__(self, bytes store_host not None, Py_ssize_t file_bytes):
        self.store_host = store_host
        self.file_bytes = file_bytes

    def append(
        self, bytes data not None, Py_ssize_t at, KnownQueues known not None, bytes born_host not None,
        bytes suffix not None, Py_ssize_t body_max_bytes, long long position, long long limit,
        long long store_ms, Py_ssize_t rows_max, Py_ssize_t bytes_max, AccessCache access=None,
    ):
        """Append the plain sends in `data`, starting at `at`; see plain/sends.py."""
        return self._append(
            data, at, known, born_host, suffix, body_max_bytes, position, limit, store_ms,
            rows_max, bytes_max, access,
        )

    cdef _append(
        self, bytes data, Py_ssize_t at, KnownQueues known, bytes born_host, bytes suffix,
        Py_ssize_t body_max_bytes, long long position, long long limit, long long store_ms,
        Py_ssize_t rows_max, Py_ssize_t bytes_max, AccessCache access,
    ):
        cdef Py_ssize_t count = self.count, hashed = self.hashed, owned = len(self.queues)
        cdef Taking taking
        if PyBytes_Size(born_host) != 8 or PyBytes_Size(self.store_host) != 8:
            raise ValueError("a host that has not 8 bytes")
        taking.known = <void *>known
        taking.access = NULL if access is None else <void *>access
        taking.born_host = <Bytes>PyBytes_AsString(born_host)
        taking.suffix = <Bytes>PyBytes_AsString(suffix)
        taking.suffix_bytes = PyBytes_Size(suffix)
        taking.position = position
        taking.limit = limit
        taking.store_ms = store_ms
        taking.used = 0
        try:
            return self._take_frames(data, at, &taking, body_max_bytes, rows_max, bytes_max)
        except BaseException:
            self._undo(count, hashed, owned)
            raise

    cdef _undo(self, Py_ssize_t count, Py_ssize_t hashed, Py_ssize_t owned):
        """Remove the rows from `count` on, after their call failed."""
        cdef Row *row
        while self.count > count:
            self.count -= 1
            row = &self.rows[self.count]
            (<QueueState>row.queue).next_offset = row.queue_offset
            if row.role != NO_ROLE:
                self.let_go(row)
        self.hashed = hashed
        del self.queues[owned:]

    cdef _take_frames(
        self, bytes data, Py_ssize_t at, Taking *taking, Py_ssize_t body_max_bytes,
        Py_ssize_t rows_max, Py_ssize_t bytes_max,
    ):
        cdef Bytes begin = <Bytes>PyBytes_AsString(data)
        cdef Bytes end = begin + PyBytes_Size(data)
        cdef Bytes p
        cdef Send sends[AHEAD]
        cdef Send *send
        cdef Py_ssize_t taken = 0, size
        cdef int state = 0, n, count
        if at < 0 or at > end - begin:
            raise ValueError("a begin outside the data")
        p = begin + at
        while not state:
            count = self._read_ahead(
                p, end, sends, taking, body_max_bytes, rows_max - taken, bytes_max
            )
            if not count:
                break
            if taking.access != NULL:
                count = self._admit(<AccessCache>taking.access, sends, count)
            for n in range(count):
                send = &sends[n]
                if send.stop != NULL and taking.used >= bytes_max:
                    break
                if send.reading == PLAIN:
                    size = self._take_plain(send, taking)
                elif send.reading == BATCHED:
                    size = self._take_batch(send, taking)
                elif send.reading == ODD:
                    size = 0
                else:
                    size = self._take_other(send.reading, send, taking)
                if size <= 0:
                    state = -1 if size < 0 else 1
                    break
                taken += 1
                taking.used += size
                taking.position += size
                p = send.stop
        if state == 1:
            state = self._odd_frames(p, end, taking.suffix_bytes)
        packed = PyBytes_FromStringAndSize(<const char *>self.out, taking.used)
        self.size_bytes += taking.used
        return taken, p - begin, state, packed

    cdef int _admit(self, AccessCache access, Send *sends, int count) except -1:
        """Make the first frame odd that is not certainly allowed; return the number up to it."""
        cdef Span *topic
        cdef Span nothing
        cdef Header *said
        cdef int n
        nothing.at = <Bytes>b""
        nothing.size = 0
        # Only the last frame can be odd.
        access.prove(count - (sends[count - 1].reading == ODD))
        for n in range(count):
            if sends[n].reading == ODD:
                return n + 1
            said = &sends[n].header
            topic = &nothing if sends[n].reading == ENDING else &said.texts[TOPIC]
            if not access.claims.rows[n].is_right or not access.is_allowed(
                &access.claims.rows[n], said.code, topic, &nothing
            ):
                sends[n].reading = ODD
                return n + 1
        return count

    cdef int _read_ahead(
        self, Bytes p, Bytes end, Send *sends, Taking *taking, Py_ssize_t body_max_bytes,
        Py_ssize_t rows_left, Py_ssize_t bytes_max,
    ) noexcept:
        """Parse the next frames, up to the first odd one, and return their number.

        With very many queues, what appending them reads is in no CPU cache. So it is prefetched for
        all of them, in three steps: slots, queues, topics.
        """
        cdef KnownQueues known = <KnownQueues>taking.known
        cdef Claims *claims = NULL
        cdef unsigned long long total, header_bytes
        cdef Py_ssize_t used = 0
        cdef Send *send
        cdef void *queues[AHEAD]
        cdef int n, count = 0
        if taking.access != NULL:
            claims = (<AccessCache>taking.access).claims
            claims.used = 0
        while count < AHEAD and end - p >= 8 and used <= TEXT_MAX_BYTES:
            total = be32(p)
            header_bytes = be32(p + 4)
            send = &sends[count]
            send.reading = ODD
            # A binary header or an invalid length is left to the general frame reader.
            if header_bytes >> 24 or total < 4 + header_bytes:
                send.stop = NULL
                count += 1
                break
            if <unsigned long long>(end - p) < total + 4:
                break
            if count >= rows_left or taking.used >= bytes_max:
                break
            send.stop = p + 4 + total
            send.body = p + 8 + header_bytes
            send.body_bytes = send.stop - send.body
            send.text = self.scratch + used
            if send.body_bytes <= body_max_bytes:
                send.reading = _read(
                    p + 8, send.body, send, send.text, taking.suffix_bytes, claims, count
                )
            if send.reading == BATCHED and count:
                break  # the properties of a batch need the scratch memory alone
            count += 1
            if send.reading == ODD or send.reading == BATCHED:
                break
            p = send.stop
            if send.reading != ENDING:
                used += send.kept_bytes
                send.hash = known.hash_of(
                    send.header.texts[TOPIC].at, send.header.texts[TOPIC].size,
                    send.header.numbers[QUEUE_ID],
                )
                known.ask_slot(send.hash)
        if count < 2:
            return count
        for n in range(count):
            queues[n] = NULL
            if sends[n].reading == PLAIN:
                queues[n] = known.peek(sends[n].hash)
                prefetch(queues[n])
                prefetch(<char *>queues[n] + 64)
        for n in range(count):
            if queues[n] != NULL:
                prefetch(<void *>(<QueueState>queues[n]).topic_tail)
                prefetch(<void *>(<QueueState>queues[n]).tail)
        return count

    cdef Py_ssize_t _take_plain(self, Send *send, Taking *taking) except -2:
        """Append a send.

        Returns the size of its record, 0 if it is odd, -1 if the log file is full.
        """
        cdef void *found
        cdef QueueState queue
        cdef Span *topic = &send.header.texts[TOPIC]
        cdef long long size
        cdef int fits
        found = (<KnownQueues>taking.known).find(
            send.hash, topic.at, topic.size, send.header.numbers[QUEUE_ID]
        )
        if found == NULL:
            return 0
        queue = <QueueState>found
        size = (
            HEAD_BYTES + send.body_bytes + PyBytes_Size(queue.topic_tail) + 2
            + send.kept_bytes + taking.suffix_bytes + (send.kept_bytes > 0)
        )
        fits = self._fits(taking, size)
        if fits <= 0:
            return fits
        self._pack(queue, taking, send, size, taking.suffix, taking.suffix_bytes)
        if send.is_fifo:
            queue.fifo_count += 1
            queue.fifo_bytes += size
        return size

    cdef Py_ssize_t _take_batch(self, Send *send, Taking *taking) except -2:
        """Append the messages of a batch; the result is that of `_take_plain`."""
        cdef void *found
        cdef QueueState queue
        cdef Header *said = &send.header
        cdef Span *topic = &said.texts[TOPIC]
        cdef unsigned char middle[MIDDLE_BYTES]
        cdef Batch batch
        cdef Py_ssize_t first = self.count
        cdef int fits
        if send.body_bytes > BATCH_BODY_MAX_BYTES:
            return 0
        if not find_queue(taking, topic.at, topic.size, said.numbers[QUEUE_ID], &found):
            return 0
        queue = <QueueState>found
        if send.named.unique.size and _has_own_keys(send.body, send.body_bytes):
            _drop_unique(send, self.scratch)
        # The properties of the batch, and behind them those of the broker: there is room for both.
        if send.kept_bytes:
            self.scratch[send.kept_bytes] = 2
            send.kept_bytes += 1
        memcpy(self.scratch + send.kept_bytes, taking.suffix, taking.suffix_bytes)
        put32(middle, <unsigned int>said.numbers[SYS_FLAG])
        put64(middle + 4, said.numbers[BORN_MS])
        memcpy(middle + 12, taking.born_host, 8)
        put64(middle + 20, taking.store_ms)
        memcpy(middle + 28, PyBytes_AsString(self.store_host), 8)
        put32(middle + 36, <unsigned int>said.numbers[RECONSUME_TIMES])
        memset(middle + 40, 0, 8)
        batch.begin = batch.at = send.body
        batch.end = send.body + send.body_bytes
        batch.middle = middle
        batch.middle_bytes = MIDDLE_BYTES
        batch.more = self.scratch
        batch.more_bytes = send.kept_bytes + taking.suffix_bytes
        batch.tail = <Bytes>PyBytes_AsString(queue.topic_tail)
        batch.tail_bytes = PyBytes_Size(queue.topic_tail)
        batch.topic_hash = queue.topic_hash
        batch.queue_id = <int>queue.queue_id
        forget(&batch.named)
        find_named(batch.more, batch.more + batch.more_bytes, &batch.named)
        if (look_at_messages(&batch, PY_SSIZE_T_MAX) or not batch.count
                or batch.longest > PROPERTIES_MAX_BYTES or batch.total > BATCH_MAX_BYTES):
            return 0
        fits = self._fits(taking, batch.total)
        if fits <= 0:
            return fits
        self._make_out(taking, batch.total)
        self.queues.append(queue)
        if not pack_messages(
            &batch, self, <void *>queue, queue.next_offset, taking.position, taking.store_ms,
            self.out + taking.used,
        ):
            raise MemoryError
        self.rows[first].opaque = <unsigned int>said.opaque
        self.rows[first].oneway = said.flag & ONEWAY
        self.rows[first].members = <unsigned int>batch.count
        queue.next_offset += batch.count
        return batch.total

    cdef int _make_out(self, Taking *taking, Py_ssize_t size) except -1:
        """Make room for `size` bytes after the records that are already packed."""
        cdef Py_ssize_t wanted
        cdef void *found
        if taking.used + size > self.out_capacity:
            wanted = self.out_capacity * 2 + size
            found = realloc(self.out, wanted)
            if found == NULL:
                raise MemoryError
            self.out = <unsigned char *>found
            self.out_capacity = wanted
        return 0

    cdef int _fits(self, Taking *taking, long long size) noexcept:
        """Decide whether a record fits into the log file.

        Returns 1 if it fits, -1 if the file is full, 0 if no file can hold it.
        """
        if taking.position + size + BLANK_BYTES <= taking.limit:
            return 1
        return 0 if size + BLANK_BYTES > self.file_bytes else -1

    cdef unsigned char *_add(
        self, QueueState queue, Taking *taking, Named *named, Py_ssize_t size, Row **added
    ) except NULL:
        """Add the row of a record of `size` bytes.

        Returns where to write the record, after those that are already packed.
        """
        self.make_room(1, count_keys(named))
        self._make_out(taking, size)
        self.queues.append(queue)
        added[0] = add_row(
            self, <void *>queue, <int>queue.queue_id, queue.next_offset, taking.position, size,
            taking.store_ms,
        )
        add_named(self, added[0], named, queue.topic_hash)
        queue.next_offset += 1
        return self.out + taking.used

    cdef Row *_pack(
        self, QueueState queue, Taking *taking, Send *send, Py_ssize_t size, Bytes suffix,
        Py_ssize_t suffix_bytes,
    ) except NULL:
        """Add the row of a send and write its record; `suffix` follows the stored properties."""
        cdef Row *row
        cdef unsigned char *out = self._add(queue, taking, &send.named, size, &row)
        cdef Header *said = &send.header
        cdef Py_ssize_t tail_bytes = PyBytes_Size(queue.topic_tail)
        row.opaque = <unsigned int>said.opaque
        row.oneway = said.flag & ONEWAY
        put32(out, row.size)
        put32(out + 4, MAGIC_V1)
        put32(out + 8, stored_crc(send.body, send.body_bytes))
        put32(out + 12, row.queue_id)
        put32(out + 16, <unsigned int>said.numbers[FLAG])
        put64(out + 20, row.queue_offset)
        put64(out + 28, row.place)
        put32(out + 36, <unsigned int>said.numbers[SYS_FLAG])
        put64(out + 40, said.numbers[BORN_MS])
        memcpy(out + 48, taking.born_host, 8)
        put64(out + 56, row.store_ms)
        memcpy(out + 64, PyBytes_AsString(self.store_host), 8)
        put32(out + 72, <unsigned int>said.numbers[RECONSUME_TIMES])
        memset(out + 76, 0, 8)
        put32(out + 84, <unsigned int>send.body_bytes)
        out += HEAD_BYTES
        memcpy(out, send.body, send.body_bytes)
        out += send.body_bytes
        memcpy(out, PyBytes_AsString(queue.topic_tail), tail_bytes)
        out += tail_bytes
        put16(out, <unsigned int>(send.kept_bytes + suffix_bytes + (send.kept_bytes > 0)))
        out += 2
        memcpy(out, send.text, send.kept_bytes)
        out += send.kept_bytes
        if send.kept_bytes:
            out[0] = 2
            out += 1
        memcpy(out, suffix, suffix_bytes)
        return row

    cdef Py_ssize_t _take_other(self, int reading, Send *send, Taking *taking) except -2:
        """Append a prepared send or an end of a transaction, as _take_plain does.

        Subclasses override this; the base class takes none.
        """
        return 0

    cdef bint _is_for_others(self, int reading) noexcept:
        """Return whether _take_other accepts such a frame."""
        return False

    cdef int _odd_frames(self, Bytes p, Bytes end, Py_ssize_t suffix_bytes) noexcept:
        """Return how many consecutive frames are certainly odd, at least 1."""
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
                reading = _read(
                    p + 8, p + 8 + header_bytes, &send, self.scratch, suffix_bytes, NULL, 0
                )
                if reading == PLAIN or reading == BATCHED or self._is_for_others(reading):
                    break
            count += 1
            p += total + 4
        return count if count else 1


cdef bint find_queue(
    Taking *taking, Bytes topic, Py_ssize_t topic_bytes, long long queue_id, void **found
) noexcept:
    """Find a known queue; False if there is none."""
    cdef KnownQueues known = <KnownQueues>taking.known
    found[0] = known.find(
        known.hash_of(topic, topic_bytes, queue_id), topic, topic_bytes, queue_id
    )
    return found[0] != NULL


cdef class Outlet:
    """The socket of a connection; see plain/sends.py."""

    cdef public int handle
    cdef public list queued
    cdef public object unsent_bytes

    def __init__(self, int handle, list queued not None, unsent_bytes):
        self.handle = handle
        self.queued = queued
        self.unsent_bytes = unsent_bytes

    cdef Py_ssize_t send(self, bytes data) except -1:
        """Send without blocking and return the number of bytes sent."""
        if self.handle < 0 or PyList_Size(self.queued):
            return 0
        try:
            if self.unsent_bytes():
                return 0
        except RuntimeError:
            # The transport released its socket, and the descriptor may belong to another one
            # already.
            self.handle = -1
            return 0
        return send_now(self.handle, PyBytes_AsString(data), PyBytes_Size(data))


def send_answers(list rows not None, tuple pieces not None):
    """Send the answers of rows that were stored; see plain/sends.py."""
    cdef dict found = {}
    cdef list left = []
    cdef WriteBatch batch
    cdef Py_ssize_t first, stop, sent
    cdef bytes data
    for owner, batch, first, stop in rows:
        data = batch.answers(first, stop, pieces)
        before = found.get(owner)
        found[owner] = data if before is None else before + data
    for owner, data in found.items():
        outlet = owner.outlet
        sent = 0 if outlet is None else (<Outlet?>outlet).send(data)
        if sent < PyBytes_Size(data):
            left.append((owner, data[sent:]))
    return left
