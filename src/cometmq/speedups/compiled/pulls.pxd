# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Declarations of one read of a queue, for the module that answers pulls."""

from cometmq.speedups.compiled.records cimport Held, Taken

cdef enum:
    # Maximum number of tag codes compared in a loop; with more, the set is used.
    CODES_MAX = 16
    TAKEN_AT_FIRST = 64


cdef class Reading:
    """One read: the buffers that it holds, and the entries that it takes."""

    cdef Held held
    cdef Taken few[TAKEN_AT_FIRST]
    cdef Taken *taken
    cdef Py_ssize_t count, looked_at
    cdef long long total, base
    cdef long long codes[CODES_MAX]
    cdef Py_ssize_t code_count

    cdef bint take(
        self, entries, data, long long offset, codes, Py_ssize_t count_max, long long bytes_max,
        long long base, long long low, long long high, long long sure, tuple queue, has_at_once,
    ) except -1
    cdef void gather(self, unsigned char *out) noexcept nogil
    cdef void make_room(self, Py_ssize_t count) except *
    cdef bint wants(self, long long code, codes) except -1
    cdef bint choose(
        self, long long offset, codes, Py_ssize_t count_max, long long bytes_max, long long low,
        long long high,
    ) except -1
    cdef bint are_at_once(self, long long sure, has_at_once) except -1
    cdef bint proves(self, long long high, int queue_id, bytes tail) except -1
    cdef void ask_ahead(self, Py_ssize_t n) noexcept nogil
    cdef bint is_in_one(self) noexcept
