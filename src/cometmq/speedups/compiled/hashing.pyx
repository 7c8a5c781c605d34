# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Java's ``String.hashCode``, the hash under which the index stores a key, and the entries of keys.

Compiled; plain/hashing.py is the definition.
"""

from libc.stdint cimport int32_t, uint32_t

from cometmq.speedups.compiled.octets cimport put32, put64
from cometmq.speedups.compiled.prefetching cimport prefetch

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    Py_ssize_t PyUnicode_GetLength(object text) except -1
    uint32_t PyUnicode_ReadChar(object text, Py_ssize_t index) except? 0xFFFFFFFF
    unsigned long long PyLong_AsUnsignedLongLongMask(object number) except? 0xFFFFFFFFFFFFFFFF

cdef enum:
    INDEX_ENTRY_BYTES = 20
    AHEAD = 16

cdef uint32_t SIGN = 0x80000000


def java_hash(text):
    return <int32_t>extended(0, text)


def index_hashes(prefixes, keys):
    cdef Py_ssize_t count = len(keys)
    if len(prefixes) != count:
        raise ValueError(f"{len(prefixes)} prefixes for {count} keys")
    cdef list hashes = []
    cdef uint32_t value
    for prefix, key in zip(prefixes, keys, strict=True):
        value = extended(<uint32_t>PyLong_AsUnsignedLongLongMask(prefix), key)
        hashes.append((0 - value) & (SIGN - 1) if value & SIGN else value)
    return hashes


def put_keys(slots, hashes, places, times_ms, long long begin_ms, int first):
    """Return index entries and the number of slots newly used; see plain/hashing.py."""
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
    found = PyBytes_FromStringAndSize(NULL, count * INDEX_ENTRY_BYTES)
    out = <unsigned char *>PyBytes_AsString(found)
    # With keys of many topics the slots are in no CPU cache.
    for n in range(min(count, AHEAD)):
        prefetch(&table[(keys[n] & 0x7FFFFFFF) % slot_count])
    for n in range(count):
        if n + AHEAD < count:
            prefetch(&table[(keys[n + AHEAD] & 0x7FFFFFFF) % slot_count])
        slot = (keys[n] & 0x7FFFFFFF) % slot_count
        put32(out, <unsigned int>keys[n])
        put64(out + 4, where[n])
        seconds = (when[n] - begin_ms) // 1000 if when[n] > begin_ms else 0
        put32(out + 12, 0x7FFFFFFF if seconds > 0x7FFFFFFF else <unsigned int>seconds)
        put32(out + 16, table[slot])
        used += not table[slot]
        table[slot] = first + <int>n
        out += INDEX_ENTRY_BYTES
    return found, used


cdef uint32_t extended(uint32_t value, object text) except? 0xFFFFFFFF:
    """Return the hash of a prefix followed by ``text``; ``value`` is the prefix's hash."""
    cdef Py_ssize_t length = PyUnicode_GetLength(text)
    cdef Py_ssize_t size = -1
    cdef Py_ssize_t index
    cdef uint32_t char
    cdef const char *utf8 = NULL
    try:
        utf8 = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        pass  # a lone surrogate
    if size == length:
        for index in range(length):
            value = value * 31 + <unsigned char>utf8[index]
        return value
    for index in range(length):
        char = PyUnicode_ReadChar(text, index)
        if char >= 0x10000:
            char -= 0x10000
            value = value * 31 + (0xD800 | char >> 10)
            char = 0xDC00 | char & 0x3FF
        value = value * 31 + char
    return value
