# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Declarations of the decisions about signed requests, for the modules that take requests."""

from cometmq.speedups.compiled.headers cimport AllFields
from cometmq.speedups.compiled.octets cimport Bytes
from cometmq.speedups.compiled.texts cimport Span

cdef enum:
    #: Maximum number of requests decided together.
    CLAIMS_MAX = 16


# A request that waits for its decision.
cdef struct Claim:
    # Empty if the request has none, or if its fields are not clear.
    Span access_key
    Span signature
    # Position of the signed content, with its padding; its size is -1 if it is too large.
    Py_ssize_t at
    Py_ssize_t size
    void *account
    bint is_right


cdef struct Claims:
    # Fields of the request whose content is written next.
    AllFields fields
    unsigned char *content
    Py_ssize_t used
    Py_ssize_t capacity
    Claim rows[CLAIMS_MAX]


cdef void write_content(
    Claims *claims, int row, Span *escaped, Bytes body, Py_ssize_t body_bytes
) noexcept nogil


cdef class AccessCache:
    cdef Claims *claims
    cdef object secret_of
    cdef object allows
    cdef dict accounts

    cdef void *find_account(self, Span *access_key) except? NULL
    cdef int prove(self, int count) except -1
    cdef int is_allowed(self, Claim *claim, long long code, Span *topic, Span *group) except -1
