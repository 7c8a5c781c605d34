# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Declarations of the table of known queues, for the modules that look queues up."""

from cometmq.speedups.compiled.octets cimport Bytes

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Return the hash of a topic and a queue id, never 0. It is only used within this process. */
    static inline uint64_t hash_place(const unsigned char *p, Py_ssize_t size, int64_t queue_id,
                                      uint64_t seed) {
        uint64_t hash = seed ^ (uint64_t)queue_id * 0x9E3779B97F4A7C15u, word;
        for (; size >= 8; p += 8, size -= 8) {
            memcpy(&word, p, 8);
            hash = (hash ^ word) * 0xFF51AFD7ED558CCDu;
            hash ^= hash >> 32;
        }
        for (word = (uint64_t)size; size > 0; size--) word = word << 8 | *p++;
        hash = (hash ^ word) * 0xC4CEB9FE1A85EC53u;
        return (hash ^ hash >> 32) | (uint64_t)1 << 63;
    }
    """
    unsigned long long hash_place(Bytes, Py_ssize_t, long long, unsigned long long) nogil


cdef struct Slot:
    # 0 if the slot was never used: a lookup ends there.
    unsigned long long hash
    # Owned reference; NULL if the slot is free.
    void *queue


cdef class KnownQueues:
    cdef Slot *slots
    cdef Py_ssize_t capacity
    cdef Py_ssize_t used
    cdef readonly Py_ssize_t count
    cdef unsigned long long seed

    cdef int _grow(self) except -1
    cdef void *find(self, unsigned long long hash, Bytes topic, Py_ssize_t topic_bytes, long long queue_id) noexcept
    cdef unsigned long long hash_of(self, Bytes topic, Py_ssize_t topic_bytes, long long queue_id) noexcept nogil
    cdef void ask_slot(self, unsigned long long hash) noexcept nogil
    cdef void *peek(self, unsigned long long hash) noexcept nogil
