# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Stored records and the queue entries that name them: message/record.py, store/layout.py.

The contents are not trusted: `find_parts` keeps all parts of a record within its size.
"""

from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from libc.string cimport memcmp

from cometmq.speedups.compiled.octets cimport Bytes, be16, be32, be64

cdef enum:
    #: Size of a record up to its body, with IPv4 hosts.
    HEAD_BYTES = 88
    #: Minimum size of a record: IPv4 hosts, and an empty body, topic and properties.
    FIXED_BYTES = 91
    #: Minimum size of the blank record that ends a log file.
    BLANK_BYTES = 8
    ENTRY_BYTES = 20
    HOLE_SIZE = 0x7FFFFFFF
    # Bits of sysFlag.
    COMPRESSED = 0x1
    PREPARED_BIT = 0x4
    COMMIT = 0x8
    TRANSACTION_MASK = 0xC
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    HOST_BITS = 0x30
    V6_MORE_BYTES = 12
    # Records with gaps of at most GAP_BYTES are checked for residency together, in spans of at most
    # SPAN_BYTES.
    GAP_BYTES = 16 << 10
    SPAN_BYTES = 512 << 10

cdef enum:
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB


# Queue offset, physical offset and size of a record, from its queue entry.
cdef struct Taken:
    long long offset
    long long place
    long long size


# Positions of the parts of a record, from its start. The properties start two bytes after the
# topic.
cdef struct Parts:
    long long body
    long long body_end
    long long topic
    long long topic_end


# A row of a walk: plain/walk.py.
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
    long long body
    long long body_end
    long long topic
    long long topic_end


cdef inline bint find_parts(Bytes p, long long size, Parts *parts) noexcept nogil:
    """Find the parts of a record of `size` bytes; False if its lengths are inconsistent."""
    cdef unsigned int magic, flag
    cdef long long at = HEAD_BYTES, body_bytes
    if size < FIXED_BYTES:
        return False
    magic = be32(p + 4)
    flag = be32(p + 36)
    if flag & HOST_BITS:
        if flag & BORN_V6:
            at += V6_MORE_BYTES
        if flag & STORE_V6:
            at += V6_MORE_BYTES
        if at > size:
            return False
    body_bytes = <int>be32(p + at - 4)
    parts.body = at
    at += body_bytes
    if body_bytes < 0 or at + 3 > size:
        return False
    parts.body_end = at
    if magic == <unsigned int>MAGIC_V1:
        parts.topic = at + 1
        at += 1 + p[at]
    elif magic == <unsigned int>MAGIC_V2:
        parts.topic = at + 2
        at += 2 + be16(p + at)
    else:
        return False
    parts.topic_end = at
    return at + 2 <= size


cdef inline bint is_whole(Bytes p, Py_ssize_t left, Parts *parts) noexcept nogil:
    """Return whether a record starts at `p` and ends exactly with its properties.

    Only `left` bytes can be read.
    """
    cdef long long size
    if left < FIXED_BYTES:
        return False
    size = be32(p)
    return (
        size <= left and find_parts(p, size, parts)
        and parts.topic_end + 2 + be16(p + parts.topic_end) == size
    )


cdef inline bint has_topic(Bytes p, Parts *parts, Bytes tail, Py_ssize_t tail_bytes) noexcept nogil:
    """Return whether a record has a topic.

    `tail` is the byte string that follows the body in records of version 1.
    """
    return (
        parts.topic_end - parts.topic == tail_bytes - 1
        and memcmp(p + parts.topic, tail + 1, tail_bytes - 1) == 0
    )


cdef inline bint is_record_of(
    Bytes p, Py_ssize_t readable, Taken *entry, int queue_id, Bytes tail, Py_ssize_t tail_bytes
) noexcept nogil:
    """Return whether a record is the one that an entry names; `readable` bytes can be read."""
    cdef Parts parts
    return (
        readable >= HEAD_BYTES and entry.size <= readable
        and <int>be32(p) == entry.size
        and <int>be32(p + 12) == queue_id
        and be64(p + 20) == entry.offset
        and be64(p + 28) == entry.place
        and find_parts(p, entry.size, &parts)
        and has_topic(p, &parts, tail, tail_bytes)
    )


cdef inline bint read_entry(Bytes p, long long low, long long high, Taken *found) noexcept nogil:
    """Read an entry and return whether its record lies between two physical offsets."""
    found.place = be64(p)
    found.size = <int>be32(p + 8)
    return 0 < found.size < HOLE_SIZE and low <= found.place <= high - found.size


# Buffers held during one read of a queue: its entries, and the log in memory. `count` is the number
# of buffers held.
cdef struct Held:
    Py_buffer entries
    Py_buffer data
    int count


cdef inline int hold(Held *held, entries, data) except -1:
    """Acquire both buffers into a zeroed structure.

    The caller calls `let_go` even if this fails.
    """
    PyObject_GetBuffer(entries, &held.entries, PyBUF_SIMPLE)
    held.count = 1
    PyObject_GetBuffer(data, &held.data, PyBUF_SIMPLE)
    held.count = 2
    return 0


cdef inline void let_go(Held *held):
    if held.count > 1:
        PyBuffer_Release(&held.data)
    if held.count:
        PyBuffer_Release(&held.entries)
    held.count = 0
