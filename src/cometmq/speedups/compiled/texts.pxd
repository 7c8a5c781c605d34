# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Decoding of UTF-8 as in Python, and Java's hash of the text."""

from libc.string cimport memcmp

from cometmq.speedups.compiled.octets cimport Bytes


# A range of bytes. Its creator keeps the memory alive.
cdef struct Span:
    Bytes at
    Py_ssize_t size


cdef inline bint is_text(Span *span, const char *text, Py_ssize_t size) noexcept nogil:
    return span.size == size and memcmp(span.at, text, size) == 0


cdef inline Py_ssize_t character(Bytes p, Bytes end, unsigned int *point) noexcept nogil:
    """Decode the non-ASCII character at `p` and return its length, with Python's replacement rules.

    A byte that starts no character, and an incomplete character, decode to one U+FFFD.
    """
    cdef unsigned char c = p[0]
    cdef unsigned char low = 0x80
    cdef unsigned char high = 0xBF
    cdef Py_ssize_t size, n
    point[0] = 0xFFFD
    if c < 0xC2 or c > 0xF4:
        return 1
    if c < 0xE0:
        size = 2
    elif c < 0xF0:
        size = 3
        if c == 0xE0:
            low = 0xA0
        elif c == 0xED:
            high = 0x9F
    else:
        size = 4
        if c == 0xF0:
            low = 0x90
        elif c == 0xF4:
            high = 0x8F
    for n in range(1, size):
        if p + n >= end or not low <= p[n] <= high:
            return n
        low = 0x80
        high = 0xBF
    if size == 2:
        point[0] = (c & 0x1F) << 6 | p[1] & 0x3F
    elif size == 3:
        point[0] = (c & 0x0F) << 12 | (p[1] & 0x3F) << 6 | p[2] & 0x3F
    else:
        point[0] = (c & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | p[3] & 0x3F
    return size


cdef inline unsigned int text_hash(unsigned int value, Bytes p, Py_ssize_t size) noexcept nogil:
    """Return Java's hash of UTF-8 text that follows a text of hash `value`."""
    cdef Bytes end = p + size
    cdef unsigned int point
    while p < end:
        # Four bytes per step, so that the multiplications do not depend on each other.
        while end - p >= 4 and not (p[0] | p[1] | p[2] | p[3]) & 0x80:
            value = value * 923521 + p[0] * 29791 + p[1] * 961 + p[2] * 31 + p[3]
            p += 4
        if p == end:
            break
        if p[0] < 0x80:
            value = value * 31 + p[0]
            p += 1
            continue
        p += character(p, end, &point)
        if point < 0x10000:
            value = value * 31 + point
        else:
            point -= 0x10000
            value = (value * 31 + (0xD800 | point >> 10)) * 31 + (0xDC00 | point & 0x3FF)
    return value


cdef inline bint is_utf8(Bytes p, Bytes end) noexcept nogil:
    """Return whether bytes are well-formed UTF-8, without surrogates."""
    cdef unsigned int point
    cdef Py_ssize_t size
    while p < end:
        if p[0] < 0x80:
            p += 1
            continue
        size = character(p, end, &point)
        # U+FFFD can also be encoded in the text itself.
        if point == 0xFFFD and (size != 3 or memcmp(p, b"\xEF\xBF\xBD", 3) != 0):
            return False
        p += size
    return True


cdef inline unsigned int absolute(unsigned int value) noexcept nogil:
    """Return the hash under which the index stores a key.

    The smallest value has no absolute value in Java and counts as 0.
    """
    return (0 - value) & 0x7FFFFFFF if value >> 31 else value
