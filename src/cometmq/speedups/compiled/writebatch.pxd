# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Declarations of the write batch and of the table of known queues, for the modules that fill the
batch and look queues up."""

from cometmq.speedups.compiled.octets cimport Bytes
from cometmq.speedups.compiled.properties cimport Named, hash_keys, tag_code

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

# Role of a row in a transaction.
cdef enum Role:
    NO_ROLE = 0
    HALF = 1
    OP = 2


cdef struct Row:
    long long place
    long long queue_offset
    long long tag_code
    long long store_ms
    # Half offset that an op message names.
    long long half_offset
    unsigned int size
    int queue_id
    unsigned int opaque
    unsigned int first_hash
    unsigned int hash_count
    int role
    # Number of rows, from this one on, that its answer names; those after the first are one-way.
    unsigned int members
    bint oneway
    # Borrowed from the list of queues; NULL if the queue was removed.
    void *queue


cdef class QueueState:
    # What each send uses comes first.
    cdef public long long next_offset
    cdef public long long max_offset
    cdef public long long queue_id
    cdef public long long number
    cdef public bytearray tail
    cdef public bytes topic_tail
    cdef public unsigned int topic_hash
    cdef public bint is_dirty
    cdef public bint is_prompt
    cdef bint has_grown
    cdef public long long min_offset
    cdef public long long tail_offset
    cdef public long long delay_ms
    cdef public long long put_count
    cdef public long long put_bytes
    cdef public long long put_times
    cdef public long long fifo_count
    cdef public long long fifo_bytes


cdef struct Slot:
    # 0 if the slot was never used: a lookup ends there.
    unsigned long long hash
    # Borrowed from the list of the table; NULL if the slot is free.
    void *queue


cdef class KnownQueues:
    # The queue of each slot, or None: keeps the queues alive, in sight of the garbage collector,
    # because a queue may refer to what owns the table.
    cdef list held
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


cdef class WriteBatch:
    cdef Row *rows
    cdef Py_ssize_t capacity
    cdef unsigned int *hashes
    cdef Py_ssize_t hash_capacity
    cdef Py_ssize_t hashed
    cdef list queues
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t dispatched
    cdef readonly Py_ssize_t size_bytes

    cdef bint has_room(self, Py_ssize_t rows, Py_ssize_t keys) noexcept nogil
    cdef int make_room(self, Py_ssize_t rows, Py_ssize_t keys) except -1
    cdef void ask_ahead(self, Py_ssize_t n) noexcept
    cdef int let_go(self, Row *row) except -1


cdef inline Row *add_row(
    WriteBatch batch, void *queue, int queue_id, long long queue_offset, long long place,
    long long size, long long store_ms,
) noexcept nogil:
    """Add the row of a record, for which there is room.

    Like a row of a batch, it has no answer of its own and counts as one-way. `add_named` adds its
    tag and keys.
    """
    cdef Row *row = &batch.rows[batch.count]
    batch.count += 1
    row.place = place
    row.queue_offset = queue_offset
    row.tag_code = 0
    row.store_ms = store_ms
    row.half_offset = 0
    row.size = <unsigned int>size
    row.queue_id = queue_id
    row.opaque = 0
    row.first_hash = <unsigned int>batch.hashed
    row.hash_count = 0
    row.role = NO_ROLE
    row.members = 1
    row.oneway = True
    row.queue = queue
    return row


cdef inline void add_named(
    WriteBatch batch, Row *row, Named *named, unsigned int topic_hash
) noexcept nogil:
    """Set the tag code and the key hashes of the last row, for which there is room."""
    row.tag_code = tag_code(named)
    row.hash_count = <unsigned int>hash_keys(named, topic_hash, batch.hashes + batch.hashed)
    batch.hashed += row.hash_count
