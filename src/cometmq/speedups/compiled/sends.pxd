# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Declarations of the batch that takes sends, for the module that adds transactions."""

from cometmq.speedups.compiled.access cimport AccessCache, Claim
from cometmq.speedups.compiled.headers cimport Header
from cometmq.speedups.compiled.octets cimport Bytes
from cometmq.speedups.compiled.properties cimport Named
from cometmq.speedups.compiled.texts cimport Span
from cometmq.speedups.compiled.writebatch cimport KnownQueues, QueueState, Row, WriteBatch

# Kind of a frame, from its header.
cdef enum Reading:
    ODD = 0
    PLAIN = 1
    PREPARED = 2
    ENDING = 3
    BATCHED = 4

# Flag bit of a one-way request.
cdef enum:
    ONEWAY = 2

# Field numbers of a send.
cdef enum:
    TOPIC = 1
    QUEUE_ID = 4
    SYS_FLAG = 5
    BORN_MS = 6
    FLAG = 7
    PROPERTIES = 8
    RECONSUME_TIMES = 9

# Field numbers of the end of a transaction.
cdef enum:
    END_GROUP = 0
    END_HALF_OFFSET = 1
    END_PLACE = 2
    END_KIND = 3
    END_MESSAGE_ID = 4


cdef struct Send:
    Header header
    Bytes body
    Py_ssize_t body_bytes
    Reading reading
    # End of the frame; NULL if its lengths are invalid.
    Bytes stop
    # Hash of the topic and the queue id.
    unsigned long long hash
    # Stored properties, in the scratch memory of the batch.
    unsigned char *text
    # Size of the stored properties, without escapes, and the values found in them.
    Py_ssize_t kept_bytes
    Named named
    Span group
    bint is_prepared
    # Whether the properties make a prepared send odd.
    bint is_bound
    # Whether the properties have a sharding key.
    bint is_fifo


cdef struct Taking:
    # State of one call of `append`: common values and progress.
    void *known
    # Decides about signed requests; NULL if all are allowed.
    void *access
    Bytes born_host
    Bytes suffix
    Py_ssize_t suffix_bytes
    long long position
    long long limit
    long long store_ms
    Py_ssize_t used


cdef class SendBatch(WriteBatch):
    cdef unsigned char *out
    cdef Py_ssize_t out_capacity
    cdef unsigned char *scratch
    cdef bytes store_host
    cdef Py_ssize_t file_bytes

    cdef _undo(self, Py_ssize_t count, Py_ssize_t hashed, Py_ssize_t owned)
    cdef _append(
        self, bytes data, Py_ssize_t at, KnownQueues known, bytes born_host, bytes suffix,
        Py_ssize_t body_max_bytes, long long position, long long limit, long long store_ms,
        Py_ssize_t rows_max, Py_ssize_t bytes_max, AccessCache access,
    )
    cdef int _admit(self, AccessCache access, Send *sends, int count) except -1
    cdef _take_frames(
        self, bytes data, Py_ssize_t at, Taking *taking, Py_ssize_t body_max_bytes,
        Py_ssize_t rows_max, Py_ssize_t bytes_max,
    )
    cdef int _read_ahead(
        self, Bytes p, Bytes end, Send *sends, Taking *taking, Py_ssize_t body_max_bytes,
        Py_ssize_t rows_left, Py_ssize_t bytes_max,
    ) noexcept
    cdef Py_ssize_t _take_plain(self, Send *send, Taking *taking) except -2
    cdef Py_ssize_t _take_batch(self, Send *send, Taking *taking) except -2
    cdef int _make_out(self, Taking *taking, Py_ssize_t size) except -1
    cdef int _odd_frames(self, Bytes p, Bytes end, Py_ssize_t suffix_bytes) noexcept
    cdef int _fits(self, Taking *taking, long long size) noexcept
    cdef unsigned char *_add(
        self, QueueState queue, Taking *taking, Named *named, Py_ssize_t size, Row **added
    ) except NULL
    cdef Row *_pack(
        self, QueueState queue, Taking *taking, Send *send, Py_ssize_t size, Bytes suffix,
        Py_ssize_t suffix_bytes,
    ) except NULL
    cdef Py_ssize_t _take_other(self, int reading, Send *send, Taking *taking) except -2
    cdef bint _is_for_others(self, int reading) noexcept


cdef bint find_queue(
    Taking *taking, Bytes topic, Py_ssize_t topic_bytes, long long queue_id, void **found
) noexcept
