# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Declarations of the messages of a batch body, for the module that takes batches off connections."""

from cometmq.speedups.compiled.octets cimport Bytes
from cometmq.speedups.compiled.properties cimport Named
from cometmq.speedups.compiled.writebatch cimport WriteBatch


# A body, the common parts of its records, and the totals of the messages examined from `at` on.
cdef struct Batch:
    Bytes begin
    Bytes end
    Bytes at
    Bytes middle
    Py_ssize_t middle_bytes
    Bytes more
    Py_ssize_t more_bytes
    Bytes tail
    Py_ssize_t tail_bytes
    unsigned int topic_hash
    int queue_id
    Named named
    Py_ssize_t count
    Py_ssize_t longest
    long long total


cdef int look_at_messages(Batch *batch, Py_ssize_t most) noexcept nogil
cdef bint pack_messages(
    Batch *batch, WriteBatch rows, void *queue, long long offset, long long position,
    long long store_ms, unsigned char *out,
) noexcept nogil
