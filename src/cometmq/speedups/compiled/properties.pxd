# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Properties of a message: pairs of NAME 1 VALUE, separated by 2.

All functions read only between the two pointers that they are passed.
"""

from libc.string cimport memchr, memcmp

from cometmq.speedups.compiled.octets cimport Bytes
from cometmq.speedups.compiled.texts cimport Span, absolute, text_hash

cdef enum:
    PROPERTIES_MAX_BYTES = 32767


# Index keys, tag and delay level of a message; the size of a missing one is 0.
cdef struct Named:
    Span unique
    Span keys
    Span tag
    Span delay


cdef inline void forget(Named *named) noexcept nogil:
    named.unique.size = named.keys.size = named.tag.size = named.delay.size = 0


cdef inline void find_named(Bytes p, Bytes end, Named *named) noexcept nogil:
    """Find the values in a property text.

    If a name occurs several times, its last non-empty value is used. Values that are missing in
    this text are left unchanged.
    """
    cdef Bytes stop
    cdef Span *found
    cdef Py_ssize_t name_bytes, size
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


cdef inline Py_ssize_t count_keys(Named *named) noexcept nogil:
    """Return the number of hashes that `hash_keys` writes."""
    cdef Py_ssize_t count = 1 if named.unique.size else 0
    cdef Py_ssize_t n
    cdef bint inside = False
    for n in range(named.keys.size):
        if named.keys.at[n] == c' ':
            inside = False
        elif not inside:
            inside = True
            count += 1
    return count


cdef inline Py_ssize_t hash_keys(
    Named *named, unsigned int prefix, unsigned int *out
) noexcept nogil:
    """Write the hashes of the index keys and return their number.

    The unique key comes first, then the keys between spaces. `prefix` is the hash of the topic and
    "#".
    """
    cdef Bytes p = named.keys.at
    cdef Bytes end = p + named.keys.size
    cdef Bytes stop
    cdef Py_ssize_t count = 0
    if named.unique.size:
        out[0] = absolute(text_hash(prefix, named.unique.at, named.unique.size))
        count = 1
    while named.keys.size and p < end:
        stop = <Bytes>memchr(p, c' ', end - p)
        if stop == NULL:
            stop = end
        if stop > p:
            out[count] = absolute(text_hash(prefix, p, stop - p))
            count += 1
        p = stop + 1
    return count


cdef inline long long tag_code(Named *named) noexcept nogil:
    """Return the hash of the tag as a signed 32-bit value; 0 without a tag."""
    return <int>text_hash(0, named.tag.at, named.tag.size) if named.tag.size else 0


cdef inline bint mentions_timer(Bytes p, Bytes end) noexcept nogil:
    """Return whether a text contains TIMER_DE."""
    while end - p >= 8:
        p = <Bytes>memchr(p, c'T', end - p - 7)
        if p == NULL:
            return False
        if memcmp(p, b"TIMER_DE", 8) == 0:
            return True
        p += 1
    return False
