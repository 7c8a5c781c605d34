# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Batch sends: the messages of one body as records and rows of a write batch.

Compiled; plain/batches.py is the definition. Untrusted bytes are read by `_read_entry`, within the
two pointers that it is passed, and by properties.pxd.
"""

from libc.string cimport memcpy

from cometmq.speedups.compiled.checksums cimport (
    look_at_processor, make_crc_tables, stored_crc,
)
from cometmq.speedups.compiled.octets cimport Bytes, be16, be32, put16, put32, put64
from cometmq.speedups.compiled.properties cimport (
    PROPERTIES_MAX_BYTES, Named, count_keys, find_named, forget,
)
from cometmq.speedups.compiled.records cimport BLANK_BYTES, MAGIC_V1
from cometmq.speedups.compiled.writebatch cimport (
    QueueState, Row, WriteBatch, add_named, add_row,
)

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    object PyByteArray_FromStringAndSize(const char *, Py_ssize_t)
    char *PyByteArray_AsString(object) except NULL
    Py_ssize_t PyByteArray_Size(object) except -1
    Py_ssize_t PY_SSIZE_T_MAX

make_crc_tables()
look_at_processor()

cdef enum:
    #: Size of a record up to the middle, the part that all records of the batch share.
    FRONT_BYTES = 36
    QUEUE_OFFSET_AT = 20
    #: Size of a message in a body up to its own body, and with the length of its properties.
    ENTRY_HEAD_BYTES = 20
    ENTRY_FIXED_BYTES = 22


cdef struct Message:
    unsigned int flag
    Bytes body
    Py_ssize_t body_bytes
    Bytes own
    Py_ssize_t own_bytes


cdef inline int _read_entry(Bytes p, Bytes end, Message *message) noexcept nogil:
    """Read a message in a batch body; return 0 if it is valid, else the number of its problem."""
    cdef long long size, body_bytes
    if end - p < ENTRY_FIXED_BYTES:
        return 1
    size = <int>be32(p)
    body_bytes = <int>be32(p + 16)
    if body_bytes < 0 or size > end - p or ENTRY_FIXED_BYTES + body_bytes > size:
        return 2
    message.flag = be32(p + 12)
    message.body = p + ENTRY_HEAD_BYTES
    message.body_bytes = body_bytes
    message.own = p + ENTRY_FIXED_BYTES + body_bytes
    message.own_bytes = be16(message.own - 2)
    return 0 if ENTRY_FIXED_BYTES + body_bytes + message.own_bytes == size else 3


cdef object _problem(int what, Bytes begin, Bytes p, Bytes end):
    """Return the error message for a problem that `_read_entry` found."""
    at, left = p - begin, end - p
    if what == 1:
        return f"batch body: {left} bytes left at {at}, an entry has at least 22"
    size, body_bytes = <int>be32(p), <int>be32(p + 16)
    if what == 2:
        return f"batch body: entry at {at} of size {size}, its body {body_bytes}, {left} left"
    return f"batch body: entry at {at} of size {size} is not the sum of its parts"


cdef inline bint _is_parted(Message *message, Py_ssize_t more_bytes) noexcept nogil:
    """Return whether a separator is needed between the properties of a message and of its batch."""
    return (
        more_bytes > 0 and message.own_bytes > 0 and message.own[message.own_bytes - 1] != 2
    )


cdef int look_at_messages(Batch *batch, Py_ssize_t most) noexcept nogil:
    """Examine at most `most` messages; return 0 if all are valid.

    Otherwise `at` is the invalid message, and the number of its problem is returned.
    """
    cdef Bytes p = batch.at
    cdef Message message
    cdef Py_ssize_t text_bytes
    cdef Py_ssize_t fixed_bytes = FRONT_BYTES + batch.middle_bytes + 4 + batch.tail_bytes + 2
    cdef int problem
    batch.count = batch.longest = 0
    batch.total = 0
    while p < batch.end and batch.count < most:
        problem = _read_entry(p, batch.end, &message)
        if problem:
            batch.at = p
            return problem
        text_bytes = message.own_bytes + batch.more_bytes + _is_parted(&message, batch.more_bytes)
        if text_bytes > batch.longest:
            batch.longest = text_bytes
        batch.total += fixed_bytes + message.body_bytes + text_bytes
        batch.count += 1
        p = message.own + message.own_bytes
    return 0


cdef int _prepare(
    Batch *batch, bytes body, QueueState queue, bytes middle, bytes properties, bint unlocked
) except -1:
    """Examine a body and the common parts of its records. Raises ValueError."""
    cdef int problem
    batch.begin = batch.at = <Bytes>PyBytes_AsString(body)
    batch.end = batch.begin + PyBytes_Size(body)
    batch.middle = <Bytes>PyBytes_AsString(middle)
    batch.middle_bytes = PyBytes_Size(middle)
    batch.more = <Bytes>PyBytes_AsString(properties)
    batch.more_bytes = PyBytes_Size(properties)
    batch.tail = <Bytes>PyBytes_AsString(queue.topic_tail)
    batch.tail_bytes = PyBytes_Size(queue.topic_tail)
    batch.topic_hash = queue.topic_hash
    batch.queue_id = <int>queue.queue_id
    forget(&batch.named)
    find_named(batch.more, batch.more + batch.more_bytes, &batch.named)
    if unlocked:
        with nogil:
            problem = look_at_messages(batch, PY_SSIZE_T_MAX)
    else:
        problem = look_at_messages(batch, PY_SSIZE_T_MAX)
    if problem:
        raise ValueError(_problem(problem, batch.begin, batch.at, batch.end))
    if not batch.count:
        raise ValueError("the batch holds no message")
    if batch.longest > PROPERTIES_MAX_BYTES:
        raise ValueError(
            f"properties of a message with those of its batch are {batch.longest} bytes long, the "
            f"limit is {PROPERTIES_MAX_BYTES}"
        )
    return 0


cdef bint pack_messages(
    Batch *batch, WriteBatch rows, void *queue, long long offset, long long position,
    long long store_ms, unsigned char *out,
) noexcept nogil:
    """Write the records of the examined messages and add their rows.

    Returns False if memory allocation fails; no row was added then.
    """
    cdef Bytes p = batch.at
    cdef Py_ssize_t more_bytes = batch.more_bytes
    cdef Py_ssize_t fixed_bytes = FRONT_BYTES + batch.middle_bytes + 4 + batch.tail_bytes + 2
    cdef Py_ssize_t count = rows.count, hashed = rows.hashed, text_bytes, n
    cdef Message message
    cdef Named named
    cdef Row *row
    for n in range(batch.count):
        _read_entry(p, batch.end, &message)
        p = message.own + message.own_bytes
        forget(&named)
        find_named(message.own, p, &named)
        if batch.named.unique.size:
            named.unique = batch.named.unique
        if batch.named.keys.size:
            named.keys = batch.named.keys
        if batch.named.tag.size:
            named.tag = batch.named.tag
        if not rows.has_room(batch.count - n, count_keys(&named)):
            rows.count, rows.hashed = count, hashed
            return False
        text_bytes = message.own_bytes + more_bytes + _is_parted(&message, more_bytes)
        row = add_row(
            rows, queue, batch.queue_id, offset + n, position,
            fixed_bytes + message.body_bytes + text_bytes, store_ms,
        )
        add_named(rows, row, &named, batch.topic_hash)
        put32(out, row.size)
        put32(out + 4, MAGIC_V1)
        put32(out + 8, stored_crc(message.body, message.body_bytes))
        put32(out + 12, row.queue_id)
        put32(out + 16, message.flag)
        put64(out + QUEUE_OFFSET_AT, row.queue_offset)
        put64(out + QUEUE_OFFSET_AT + 8, row.place)
        out += FRONT_BYTES
        memcpy(out, batch.middle, batch.middle_bytes)
        out += batch.middle_bytes
        put32(out, <unsigned int>message.body_bytes)
        memcpy(out + 4, message.body, message.body_bytes)
        out += 4 + message.body_bytes
        memcpy(out, batch.tail, batch.tail_bytes)
        out += batch.tail_bytes
        put16(out, <unsigned int>text_bytes)
        memcpy(out + 2, message.own, message.own_bytes)
        out += 2 + message.own_bytes
        if _is_parted(&message, more_bytes):
            out[0] = 2
            out += 1
        memcpy(out, batch.more, more_bytes)
        out += more_bytes
        position += row.size
    batch.at = p
    return True


cdef void _delay(WriteBatch rows, Py_ssize_t first, QueueState queue, long long store_ms):
    """Replace the tag codes by delivery times in a queue of delayed messages."""
    cdef Py_ssize_t n
    if queue.delay_ms:
        for n in range(first, rows.count):
            rows.rows[n].tag_code = store_ms + queue.delay_ms


def append_batch(
    WriteBatch rows not None, bytes body not None, QueueState queue not None,
    bytes middle not None, bytes properties not None, long long position, long long limit,
    long long store_ms,
):
    """Append all messages of a batch body; see plain/batches.py."""
    cdef Batch batch
    cdef Py_ssize_t first = rows.count
    _prepare(&batch, body, queue, middle, properties, False)
    if position + batch.total + BLANK_BYTES > limit:
        return batch.total, b""
    packed = PyBytes_FromStringAndSize(NULL, batch.total)
    rows.queues.append(queue)
    if not pack_messages(
        &batch, rows, <void *>queue, queue.next_offset, position, store_ms,
        <unsigned char *>PyBytes_AsString(packed),
    ):
        raise MemoryError
    _delay(rows, first, queue, store_ms)
    if rows.count > first:
        rows.rows[first].members = <unsigned int>(rows.count - first)
    rows.size_bytes += batch.total
    queue.next_offset += batch.count
    return batch.total, packed


def pack_batch(
    bytes body not None, QueueState queue not None, bytes middle not None,
    bytes properties not None, long long bytes_max, Py_ssize_t rows_max,
):
    """Return rows and records of a batch without offsets; see plain/batches.py."""
    cdef Batch batch
    cdef WriteBatch rows
    cdef unsigned char *out
    cdef bytes tail = queue.topic_tail  # keeps it alive while the GIL is released
    cdef long long total
    cdef bint is_packed
    cdef list parts = []
    if rows_max < 1:
        raise ValueError("parts without rows")
    _prepare(&batch, body, queue, middle, properties, True)
    total = batch.total
    while total <= bytes_max and batch.at < batch.end:
        rows = WriteBatch()
        with nogil:
            look_at_messages(&batch, rows_max)
        packed = PyByteArray_FromStringAndSize(NULL, batch.total)
        out = <unsigned char *>PyByteArray_AsString(packed)
        with nogil:
            is_packed = pack_messages(&batch, rows, NULL, 0, 0, 0, out)
        if not is_packed:
            raise MemoryError
        parts.append((rows, packed))
    return total, parts


def place_batch(
    WriteBatch rows not None, bytearray packed not None, QueueState queue not None,
    bytes middle not None, long long position, long long store_ms,
):
    """Set the offsets and the store time of a packed part; see plain/batches.py."""
    cdef unsigned char *out = <unsigned char *>PyByteArray_AsString(packed)
    cdef Bytes shared = <Bytes>PyBytes_AsString(middle)
    cdef Py_ssize_t middle_bytes = PyBytes_Size(middle), n
    cdef long long left = PyByteArray_Size(packed)
    cdef Row *row
    for n in range(rows.count):
        row = &rows.rows[n]
        left -= row.size
        if (row.queue != NULL or row.queue_id != queue.queue_id or left < 0
                or row.size < FRONT_BYTES + middle_bytes):
            raise ValueError("the records of another batch")
    if left:
        raise ValueError("the records of another batch")
    rows.queues.append(queue)
    for n in range(rows.count):
        row = &rows.rows[n]
        row.queue = <void *>queue
        row.queue_offset = queue.next_offset + n
        row.place += position
        row.store_ms = store_ms
        put64(out + QUEUE_OFFSET_AT, row.queue_offset)
        put64(out + QUEUE_OFFSET_AT + 8, row.place)
        memcpy(out + FRONT_BYTES, shared, middle_bytes)
        out += row.size
    _delay(rows, 0, queue, store_ms)
    rows.size_bytes += PyByteArray_Size(packed)
    queue.next_offset += rows.count
