# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What is read of the properties of a message: pairs of NAME 1 VALUE, with 2 between them.

Everything here reads between two pointers.
"""

from libc.string cimport memchr, memcmp

from cometmq.speedups.compiled.octets cimport Bytes
from cometmq.speedups.compiled.texts cimport Span, absolute, text_hash

cdef enum:
    PROPERTIES_MAX_BYTES = 32767


# By what a message is found, and its level of delay; without any their sizes are 0.
cdef struct Named:
    Span unique
    Span keys
    Span tag
    Span delay


cdef inline void forget(Named *named) noexcept nogil:
    named.unique.size = named.keys.size = named.tag.size = named.delay.size = 0


cdef inline void find_named(Bytes p, Bytes end, Named *named) noexcept nogil:
    """Find the values: of each the last that is not empty. What was found before stays where there
    is none."""
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
    """How many hashes `hash_keys` makes."""
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
    """Write the hashes of index keys: of the unique one, then of those between blanks. `prefix` is
    the hash of the topic and "#". Gives how many there are."""
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
    """The hash of the tag, as an int; 0 without one."""
    return <int>text_hash(0, named.tag.at, named.tag.size) if named.tag.size else 0


cdef inline bint mentions_timer(Bytes p, Bytes end) noexcept nogil:
    """Whether TIMER_DE stands anywhere in a text."""
    while end - p >= 8:
        p = <Bytes>memchr(p, c'T', end - p - 7)
        if p == NULL:
            return False
        if memcmp(p, b"TIMER_DE", 8) == 0:
            return True
        p += 1
    return False
