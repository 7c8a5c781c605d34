# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Declarations of the write batch, for the modules that fill it."""

from cometmq.speedups.compiled.properties cimport Named, hash_keys, tag_code

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
