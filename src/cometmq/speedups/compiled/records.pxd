# cython: language_level=3
"""What compiled modules share: numbers of the wire and the disk, and whether a record is the one of
a queue entry."""

from libc.string cimport memcmp

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint32_t be32(const unsigned char *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline int64_t be64(const unsigned char *p) {
        return (int64_t)((uint64_t)be32(p) << 32 | be32(p + 4));
    }
    """
    unsigned int be32(const unsigned char *) nogil
    long long be64(const unsigned char *) nogil

ctypedef const unsigned char *Bytes

cdef enum:
    ENTRY_BYTES = 20
    HOLE_SIZE = 0x7FFFFFFF
    HEAD_BYTES = 88
    BORN_V6 = 16
    STORE_V6 = 32
    V6_MORE_BYTES = 12
    # Records so near to each other are asked for together, at most so many bytes.
    GAP_BYTES = 16 << 10
    SPAN_BYTES = 512 << 10

cdef enum:
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB


cdef struct Taken:
    long long offset
    long long place
    long long size


cdef inline bint is_record_of(
    Bytes p, Py_ssize_t readable, Taken *entry, int queue_id, Bytes tail, Py_ssize_t tail_bytes
) noexcept nogil:
    """Whether a record is the one of an entry; `readable` bytes may be looked at."""
    cdef unsigned int magic, flag
    cdef long long topic_at = HEAD_BYTES, body
    if readable < HEAD_BYTES or entry.size > readable:
        return False
    if (
        <int>be32(p) != entry.size
        or <int>be32(p + 12) != queue_id
        or be64(p + 20) != entry.offset
        or be64(p + 28) != entry.place
    ):
        return False
    magic = be32(p + 4)
    flag = be32(p + 36)
    if flag & BORN_V6:
        topic_at += V6_MORE_BYTES
    if flag & STORE_V6:
        topic_at += V6_MORE_BYTES
    if topic_at > readable:
        return False
    body = <int>be32(p + topic_at - 4)
    if body < 0:
        return False
    topic_at += body
    if magic == <unsigned int>MAGIC_V2:
        topic_at += 1
    elif magic != <unsigned int>MAGIC_V1:
        return False
    # The record's size is not over `readable`, so the topic is within that too.
    return topic_at + tail_bytes <= entry.size and memcmp(p + topic_at, tail, tail_bytes) == 0
