# cython: language_level=3
"""What other modules of the core share with sends.pyx."""

from cometmq.speedups.compiled.octets cimport Bytes

cdef enum:
    BLANK_BYTES = 8
    HEAD_BYTES = 88
    MAGIC_V1 = 0xDAA320A7
    PROPERTIES_MAX_BYTES = 32767

# What a frame is, as far as its header tells.
cdef enum Reading:
    ODD = 0
    PLAIN = 1
    PREPARED = 2
    ENDING = 3

# The numbers of the fields of a send, in the order of both tables of names.
cdef enum:
    TOPIC = 1
    QUEUE_ID = 4
    SYS_FLAG = 5
    BORN_MS = 6
    FLAG = 7
    PROPERTIES = 8
    RECONSUME_TIMES = 9
    UNIT_MODE = 10
    BATCH = 12
    FIELDS = 14
    REQUIRED = 0xFF

# The numbers of the fields of the end of a transaction.
cdef enum:
    END_GROUP = 0
    END_HALF_OFFSET = 1
    END_PLACE = 2
    END_KIND = 3
    END_FIELDS = 4
    END_REQUIRED = 0x0F

# What a row is in a transaction.
cdef enum Role:
    NO_ROLE = 0
    HALF = 1
    OP = 2


cdef struct Span:
    Bytes at
    Py_ssize_t size
    int kind


cdef struct Send:
    long long code
    long long frame_flag
    long long opaque
    Span topic
    Span text
    # Of the end of a transaction: its numbers by the numbers above, and its group.
    long long numbers[14]
    Span group
    Bytes body
    Py_ssize_t body_bytes
    # Of the properties:
    Py_ssize_t kept_bytes
    Span unique
    Span keys
    Span tag
    bint is_prepared
    # Whether something is said that a plain half message does not say.
    bint is_bound


cdef struct Row:
    long long place
    long long queue_offset
    long long tag_code
    long long store_ms
    # Of an op message: the half message that it names.
    long long half_offset
    unsigned int size
    int queue_id
    unsigned int opaque
    unsigned int first_hash
    unsigned int hash_count
    int role
    bint oneway
    # Borrowed from the list of queues; none where the queue went away.
    void *queue


cdef struct Taking:
    # One call of `append`: what holds for all of its frames, and how far it is.
    void *known
    Bytes last_topic
    Py_ssize_t last_topic_bytes
    void *last_queues
    Bytes born_host
    Bytes suffix
    Py_ssize_t suffix_bytes
    long long position
    long long limit
    long long store_ms
    Py_ssize_t used


cdef class QueueState:
    cdef public long long next_offset
    cdef public long long max_offset
    cdef public long long queue_id
    cdef public long long delay_ms
    cdef public long long number
    cdef public bytearray tail
    cdef public bytes topic_tail
    cdef public unsigned int topic_hash
    cdef public bint is_dirty
    cdef public bint is_prompt
    cdef long long grown_count
    cdef long long grown_bytes


cdef class WriteBatch:
    cdef Row *rows
    cdef Py_ssize_t capacity
    cdef unsigned int *hashes
    cdef Py_ssize_t hash_capacity
    cdef Py_ssize_t hashed
    cdef unsigned char *out
    cdef Py_ssize_t out_capacity
    cdef unsigned char *scratch
    cdef list queues
    cdef bytes store_host
    cdef Py_ssize_t file_bytes
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t dispatched
    cdef readonly Py_ssize_t size_bytes

    cdef int _make_room_for_rows(self, Py_ssize_t count) except -1
    cdef int _make_room_for_keys(self, Py_ssize_t count) except -1
    cdef int _make_room(self, Py_ssize_t keys, Py_ssize_t record_bytes, Py_ssize_t used) except -1
    cdef _undo(self, Py_ssize_t count, Py_ssize_t hashed, Py_ssize_t owned)
    cdef _append(
        self, bytes data, Py_ssize_t at, dict known, bytes born_host, bytes suffix,
        Py_ssize_t body_max_bytes, long long position, long long limit, long long store_ms,
        Py_ssize_t rows_max, Py_ssize_t bytes_max,
    )
    cdef Py_ssize_t _take_plain(self, Send *send, Taking *taking) except -2
    cdef int _odd_frames(self, Bytes p, Bytes end, Py_ssize_t suffix_bytes) noexcept
    cdef Row *_add_row(
        self, QueueState queue, Taking *taking, Send *send, Py_ssize_t size, Py_ssize_t keys
    ) except NULL
    cdef void _hash_keys(self, Send *send, unsigned int topic_hash) noexcept
    cdef void _add_hash(self, unsigned int value) noexcept
    cdef Py_ssize_t _take_other(self, int reading, Send *send, Taking *taking) except -2
    cdef bint _is_for_others(self, int reading) noexcept
    cdef int _let_go(self, Row *row) except -1


cdef int find_queue(
    Taking *taking, Bytes topic, Py_ssize_t topic_bytes, long long queue_id, void **found
) except -1
cdef Py_ssize_t count_keys(Send *send) noexcept nogil
cdef void scan_values(Bytes p, Bytes end, Send *send) noexcept nogil
cdef bint mentions_timer(Bytes p, Bytes end) noexcept nogil
cdef unsigned int crc_of(Bytes p, Py_ssize_t size) noexcept nogil
cdef void pack_send(
    unsigned char *out, Row *row, Send *send, Bytes born_host, Bytes store_host, Bytes topic_tail,
    Py_ssize_t tail_bytes, Bytes properties, Bytes suffix, Py_ssize_t suffix_bytes,
) noexcept nogil
