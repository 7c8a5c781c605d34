# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Index entries of message keys.

Compiled; plain/indexkeys.py is the definition.
"""

from cometmq.speedups.compiled.octets cimport put32, put64
from cometmq.speedups.compiled.prefetching cimport prefetch

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL

cdef enum:
    INDEX_ENTRY_BYTES = 20
    AHEAD = 16


def put_keys(slots, hashes, places, times_ms, long long begin_ms, int first):
    """Return index entries and the number of slots newly used; see plain/indexkeys.py."""
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
