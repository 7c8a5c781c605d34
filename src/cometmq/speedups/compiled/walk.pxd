# cython: language_level=3
"""Where the parts of a stored record are, and the values in its properties that many ask for: what
other modules of the core share with walk.pyx."""

from libc.string cimport memchr, memcmp, memset

from cometmq.speedups.compiled.octets cimport Bytes, be16, be32, be64, crc32_of

cdef enum:
    FIXED_BYTES = 91
    HEAD_BYTES = 88
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    LONGER_HOST_BYTES = 12

cdef enum:
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB


cdef struct Row:
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


cdef struct Span:
    Bytes at
    Py_ssize_t size


cdef struct Named:
    Span unique
    Span keys
    Span tag
    Span delay


cdef inline int look(
    Bytes p, Py_ssize_t left, bint has_place, long long place, bint check_crc, Row *row
) noexcept nogil:
    """Whether a whole and right record begins at `p`, within `left` bytes; places in the row are
    from `p` on."""
    cdef unsigned int magic, crc
    cdef int sys_flag
    cdef long long size, head = HEAD_BYTES, body_bytes, body_end, topic, topic_end
    if left < FIXED_BYTES:
        return 0
    size = be32(p)
    magic = be32(p + 4)
    sys_flag = <int>be32(p + 36)
    row.store_ms = be64(p + 56)
    if sys_flag & (BORN_V6 | STORE_V6):
        if sys_flag & BORN_V6:
            head += LONGER_HOST_BYTES
            row.store_ms = be64(p + 56 + LONGER_HOST_BYTES)
        if sys_flag & STORE_V6:
            head += LONGER_HOST_BYTES
    if head > left or size > left:
        return 0
    if magic != <unsigned int>MAGIC_V1 and magic != <unsigned int>MAGIC_V2:
        return 0
    if has_place and be64(p + 28) != place:
        return 0
    body_bytes = <int>be32(p + head - 4)
    body_end = head + body_bytes
    if body_bytes < 0 or body_end + 3 > size:
        return 0
    if magic == <unsigned int>MAGIC_V1:
        topic = body_end + 1
        topic_end = topic + p[body_end]
    else:
        topic = body_end + 2
        topic_end = topic + be16(p + body_end)
    if topic_end + 2 > size or topic_end + 2 + be16(p + topic_end) != size:
        return 0
    if check_crc:
        crc = be32(p + 8)
        if crc and crc32_of(p + head, body_bytes) & 0x7FFFFFFF != crc:
            return 0
    row.size = size
    row.queue_offset = be64(p + 20)
    row.sys_flag = sys_flag
    row.body = head
    row.body_end = body_end
    row.topic = topic
    row.topic_end = topic_end
    return 1


cdef inline void scan(Bytes p, Bytes end, Named *named) noexcept nogil:
    """Find in properties the values that are asked for: of each the last that is not empty."""
    cdef Bytes stop
    cdef Span *found
    cdef Py_ssize_t name_bytes, size
    memset(named, 0, sizeof(Named))
    while p < end:
        stop = <Bytes>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        found = NULL
        name_bytes = 5
        size = stop - p
        if size > 5:
            if p[4] == 1:
                if memcmp(p, b"TAGS", 4) == 0:
                    found = &named.tag
                elif memcmp(p, b"KEYS", 4) == 0:
                    found = &named.keys
            elif size > 6 and memcmp(p, b"DELAY\x01", 6) == 0:
                name_bytes = 6
                found = &named.delay
            elif size > 9 and memcmp(p, b"UNIQ_KEY\x01", 9) == 0:
                name_bytes = 9
                found = &named.unique
            if found != NULL:
                found.at = p + name_bytes
                found.size = stop - found.at
        p = stop + 1
