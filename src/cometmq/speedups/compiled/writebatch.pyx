# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The write batch: rows of records, with their queue entries, index keys and answers; and the table
of queues that plain sends may be appended to.

Compiled; plain/writebatch.py is the definition. The table is a hash table with open addressing: a
lookup reads one line of memory, whose address follows from topic and queue id alone, so that the
lookups of many sends can be prefetched.
"""

import os

from libc.stdlib cimport calloc, malloc, realloc, free
from libc.string cimport memcmp, memcpy

from cometmq.speedups.compiled.octets cimport (
    DIGITS_MAX, Bytes, put32, put64, put_decimal, put_hex,
)
from cometmq.speedups.compiled.prefetching cimport prefetch
from cometmq.speedups.compiled.records cimport ENTRY_BYTES, PREPARED_BIT, WalkedRow

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    char *PyByteArray_AsString(object) except NULL
    Py_ssize_t PyByteArray_Size(object) except -1
    int PyByteArray_Resize(object, Py_ssize_t) except -1
    void *PyList_GetItem(object, Py_ssize_t) except NULL
    Py_ssize_t PyList_Size(object) except -1

cdef enum:
    JOURNAL_ROW_BYTES = 36
    #: Maximum number of slots that a lookup of a queue reads. A queue that would need more is not
    #: kept.
    PROBES_MAX = 256
    CAPACITY_MIN = 1024


cdef class QueueState:
    """Frequently used state of a consume queue; see plain/writebatch.py."""

    def __cinit__(self):
        self.tail = bytearray()
        self.topic_tail = b""


cdef class KnownQueues:
    """Queues by topic and queue id; see plain/writebatch.py."""

    def __cinit__(self):
        # Topic names come from clients, who must not be able to choose their slots.
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.slots = <Slot *>calloc(CAPACITY_MIN, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError
        self.capacity = CAPACITY_MIN
        self.used = self.count = 0
        self.held = [None] * CAPACITY_MIN

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.count

    def add(self, QueueState queue not None):
        """Add a queue; it replaces one of the same topic and queue id."""
        cdef Bytes topic = <Bytes>PyBytes_AsString(queue.topic_tail)
        cdef Py_ssize_t size = PyBytes_Size(queue.topic_tail), n, at
        cdef Py_ssize_t found = -1
        cdef unsigned long long hash
        cdef Slot *slot
        if size < 1:
            raise ValueError("a queue without a topic")
        if (self.used + 1) * 2 > self.capacity:
            self._grow()
        hash = self.hash_of(topic + 1, size - 1, queue.queue_id)
        at = <Py_ssize_t>(hash & <unsigned long long>(self.capacity - 1))
        for n in range(PROBES_MAX):
            slot = &self.slots[(at + n) & (self.capacity - 1)]
            if slot.queue == NULL:
                if found < 0:
                    found = (at + n) & (self.capacity - 1)
                if not slot.hash:
                    break
            elif slot.hash == hash and _is_place(slot.queue, topic + 1, size - 1, queue.queue_id):
                found = (at + n) & (self.capacity - 1)
                break
        if found < 0:
            return
        slot = &self.slots[found]
        # Kept until the end: its destructor must not meet a slot that still has it.
        before = self.held[found]
        self.count += slot.queue == NULL
        self.used += not slot.hash
        slot.queue = <void *>queue
        slot.hash = hash
        self.held[found] = queue

    def forget(self, QueueState queue not None):
        """Remove a queue, if it is there."""
        cdef Bytes topic = <Bytes>PyBytes_AsString(queue.topic_tail)
        cdef Py_ssize_t size = PyBytes_Size(queue.topic_tail), n, at
        cdef unsigned long long hash
        cdef Slot *slot
        if size < 1:
            return
        hash = self.hash_of(topic + 1, size - 1, queue.queue_id)
        at = <Py_ssize_t>(hash & <unsigned long long>(self.capacity - 1))
        for n in range(PROBES_MAX):
            slot = &self.slots[(at + n) & (self.capacity - 1)]
            if slot.queue == <void *>queue:
                slot.queue = NULL
                self.count -= 1
                self.held[(at + n) & (self.capacity - 1)] = None
                return
            if not slot.hash:
                return

    def clear(self):
        """Remove all queues."""
        cdef Slot *made
        # Kept until the end: destructors of queues must not meet a table that still has them.
        cdef list before = self.held, held
        if not self.used:
            return
        held = [None] * CAPACITY_MIN
        # A small table again: clearing one costs as much as its queues did.
        made = <Slot *>calloc(CAPACITY_MIN, sizeof(Slot))
        if made == NULL:
            raise MemoryError
        free(self.slots)
        self.slots = made
        self.capacity = CAPACITY_MIN
        self.used = self.count = 0
        self.held = held

    def get(self, bytes topic not None, long long queue_id):
        """Return the queue of a topic and a queue id, or None."""
        cdef Bytes text = <Bytes>PyBytes_AsString(topic)
        cdef Py_ssize_t size = PyBytes_Size(topic)
        cdef void *found = self.find(self.hash_of(text, size, queue_id), text, size, queue_id)
        return None if found == NULL else <object>found

    cdef int _grow(self) except -1:
        """Double the table, or only rebuild it if most of its used slots are free."""
        cdef Py_ssize_t capacity = self.capacity * (2 if self.count * 4 >= self.capacity else 1)
        cdef Py_ssize_t n, k, at, count = 0
        cdef Slot *old = self.slots
        cdef list before = self.held, held = [None] * capacity
        cdef Slot *made = <Slot *>calloc(capacity, sizeof(Slot))
        cdef Slot *slot
        if made == NULL:
            raise MemoryError
        for n in range(self.capacity):
            if old[n].queue == NULL:
                continue
            at = <Py_ssize_t>(old[n].hash & <unsigned long long>(capacity - 1))
            # A queue that finds no slot is no longer known.
            for k in range(PROBES_MAX):
                slot = &made[(at + k) & (capacity - 1)]
                if not slot.hash:
                    slot[0] = old[n]
                    held[(at + k) & (capacity - 1)] = before[n]
                    count += 1
                    break
        self.slots = made
        self.capacity = capacity
        self.used = self.count = count
        self.held = held
        free(old)
        return 0

    cdef unsigned long long hash_of(
        self, Bytes topic, Py_ssize_t topic_bytes, long long queue_id
    ) noexcept nogil:
        return hash_place(topic, topic_bytes, queue_id, self.seed)

    cdef void ask_slot(self, unsigned long long hash) noexcept nogil:
        """Prefetch the slot of a hash."""
        prefetch(&self.slots[hash & <unsigned long long>(self.capacity - 1)])

    cdef void *peek(self, unsigned long long hash) noexcept nogil:
        """Return what is probably the queue of a hash, to prefetch it; NULL if there is none."""
        cdef Py_ssize_t n, at = <Py_ssize_t>(hash & <unsigned long long>(self.capacity - 1))
        cdef Slot *slot
        for n in range(PROBES_MAX):
            slot = &self.slots[(at + n) & (self.capacity - 1)]
            if slot.queue != NULL and slot.hash == hash:
                return slot.queue
            if not slot.hash:
                break
        return NULL

    cdef void *find(
        self, unsigned long long hash, Bytes topic, Py_ssize_t topic_bytes, long long queue_id
    ) noexcept:
        """Return the queue of a topic and a queue id, whose hash is given; NULL if unknown."""
        cdef Py_ssize_t n, at = <Py_ssize_t>(hash & <unsigned long long>(self.capacity - 1))
        cdef Slot *slot
        for n in range(PROBES_MAX):
            slot = &self.slots[(at + n) & (self.capacity - 1)]
            if slot.queue != NULL:
                if slot.hash == hash and _is_place(slot.queue, topic, topic_bytes, queue_id):
                    return slot.queue
            elif not slot.hash:
                break
        return NULL


cdef bint _is_place(
    void *queue, Bytes topic, Py_ssize_t topic_bytes, long long queue_id
) noexcept:
    """Return whether a queue has this topic and queue id."""
    cdef bytes tail = (<QueueState>queue).topic_tail
    # Python may have set another tail since the queue was added.
    if tail is None or (<QueueState>queue).queue_id != queue_id:
        return False
    if PyBytes_Size(tail) != topic_bytes + 1:
        return False
    return memcmp(PyBytes_AsString(tail) + 1, topic, topic_bytes) == 0


cdef class WriteBatch:
    """Records appended in one turn of the event loop; see plain/writebatch.py."""

    def __cinit__(self):
        self.queues = []

    def __dealloc__(self):
        free(self.rows)
        free(self.hashes)

    def __len__(self):
        return self.count

    cdef bint has_room(self, Py_ssize_t rows, Py_ssize_t keys) noexcept nogil:
        """Make room for further rows and keys; False if memory allocation fails."""
        cdef Py_ssize_t wanted
        cdef void *found
        if self.count + rows > self.capacity:
            wanted = self.capacity * 2 + rows + 63
            found = realloc(self.rows, wanted * sizeof(Row))
            if found == NULL:
                return False
            self.rows = <Row *>found
            self.capacity = wanted
        if self.hashed + keys > self.hash_capacity:
            wanted = self.hash_capacity * 2 + keys + 64
            found = realloc(self.hashes, wanted * sizeof(unsigned int))
            if found == NULL:
                return False
            self.hashes = <unsigned int *>found
            self.hash_capacity = wanted
        return True

    cdef int make_room(self, Py_ssize_t rows, Py_ssize_t keys) except -1:
        if not self.has_room(rows, keys):
            raise MemoryError
        return 0

    cdef int let_go(self, Row *row) except -1:
        """Undo a row that has a role. Subclasses that set roles override this."""
        return 0

    def adopt(
        self, bytes rows not None, bytes hashes not None, list queues not None, long long base,
        Py_ssize_t first=0, long long limit=0x7FFFFFFFFFFFFFFF, *, bint with_keys=True,
        list begins=None, bint in_order=False,
    ):
        """Append rows of a walk, whose records are already in the log; see plain/writebatch.py."""
        cdef Py_ssize_t count = PyBytes_Size(rows) // sizeof(WalkedRow), hashed = 0
        cdef const WalkedRow *found = <const WalkedRow *>PyBytes_AsString(rows)
        cdef Py_ssize_t most = PyBytes_Size(hashes) // sizeof(unsigned int)
        cdef const unsigned int *all_hashes = <const unsigned int *>PyBytes_AsString(hashes)
        cdef Py_ssize_t queue_count = PyList_Size(queues), n, k
        cdef long long place, slot, keys
        cdef QueueState queue
        cdef Row *row
        if begins is not None and PyList_Size(begins) != queue_count:
            raise ValueError("not as many begins as queues")
        for n in range(queue_count):
            if queues[n] is not None and not isinstance(queues[n], QueueState):
                raise TypeError("a queue that is none")
            if begins is not None:
                place = begins[n]
        # Everything that can fail comes before the first change.
        first = min(max(first, 0), count)
        for n in range(count):
            if (not 0 <= found[n].queue < queue_count or found[n].first_hash < 0
                    or not 0 <= found[n].hashes <= most - found[n].first_hash):
                raise ValueError("a row of another walk")
            hashed += found[n].hashes
        # Rows of another walk may share hashes, so that there are more than `most`.
        self.make_room(count - first, hashed)
        # Rows hold borrowed references to the queues, so the batch keeps them alive.
        self.queues.append(list(queues))
        for n in range(first, count):
            place = base + found[n].position
            if place >= limit or (in_order and found[n].odd):
                return n
            slot = -1 if found[n].sys_flag & PREPARED_BIT else found[n].queue_offset
            if PyList_GetItem(queues, found[n].queue) == <void *>None:
                continue
            queue = <QueueState>PyList_GetItem(queues, found[n].queue)
            if slot >= 0 and begins is not None and place < <long long>begins[found[n].queue]:
                if in_order and slot > queue.next_offset and queue.next_offset:
                    return n
                slot = -1
            elif slot >= 0 and in_order:
                if slot > queue.next_offset:
                    return n
                if slot == queue.next_offset:
                    queue.next_offset = slot + 1
            keys = found[n].hashes if with_keys else 0
            if begins is not None and slot < 0 and not keys:
                continue
            row = add_row(
                self, <void *>queue, <int>queue.queue_id, slot, place, found[n].size,
                found[n].store_ms,
            )
            row.tag_code = found[n].tag_code
            row.hash_count = keys
            for k in range(keys):
                self.hashes[self.hashed + k] = all_hashes[found[n].first_hash + k]
            self.hashed += keys
            self.size_bytes += row.size
        return count

    def pass_row(self):
        """Return the row at which dispatch stopped; see plain/writebatch.py.

        The row then counts as dispatched.
        """
        cdef Row *row
        if self.dispatched >= self.count:
            raise IndexError("all rows were dispatched")
        row = &self.rows[self.dispatched]
        self.dispatched += 1
        if row.queue == NULL:
            return None
        return (
            <object>row.queue, row.queue_offset, row.place, row.size, row.tag_code, row.store_ms,
            (),
        )

    cdef void ask_ahead(self, Py_ssize_t n) noexcept:
        """Prefetch the memory that dispatch touches for later rows.

        With very many queues, none of it is in a CPU cache.
        """
        cdef void *queue
        if n + 8 < self.count and self.rows[n + 8].queue != NULL:
            queue = self.rows[n + 8].queue
            prefetch(queue)
            prefetch(<char *>queue + 64)
        if n + 4 < self.count and self.rows[n + 4].queue != NULL:
            prefetch(<void *>(<QueueState>self.rows[n + 4].queue).tail)

    def dispatch(self, Py_ssize_t long_bytes):
        """Append the entries of rows to their queues; see plain/writebatch.py."""
        cdef Row *row
        cdef QueueState queue
        cdef Py_ssize_t n, k, size, entries, count = 0, size_bytes = 0, run_bytes
        cdef unsigned char *entry
        cdef list grown = []
        cdef list soiled = []
        cdef list due = []
        cdef bint in_order = True
        try:
            while self.dispatched < self.count:
                self.ask_ahead(self.dispatched)
                row = &self.rows[self.dispatched]
                if row.queue == NULL:
                    self.dispatched += 1
                    continue
                queue = <QueueState>row.queue
                entries = 0
                if row.queue_offset >= 0:
                    # The entries of a queue are contiguous, so a row that is out of order stops the
                    # call.
                    if row.queue_offset != queue.max_offset:
                        in_order = False
                        break
                    # Rows of a batch follow each other: their entries are added together.
                    entries = 1
                    while (
                        self.dispatched + entries < self.count
                        and row[entries].queue == row.queue
                        and row[entries].queue_offset == row.queue_offset + entries
                    ):
                        entries += 1
                    size = PyByteArray_Size(queue.tail)
                    PyByteArray_Resize(queue.tail, size + entries * ENTRY_BYTES)
                    entry = <unsigned char *>PyByteArray_AsString(queue.tail) + size
                    run_bytes = 0
                    for k in range(entries):
                        put64(entry, row[k].place)
                        put32(entry + 8, row[k].size)
                        put64(entry + 12, row[k].tag_code)
                        entry += ENTRY_BYTES
                        run_bytes += row[k].size
                    size_bytes += run_bytes
                    queue.max_offset += entries
                    queue.put_count += entries
                    queue.put_bytes += run_bytes
                    # The rows of a batch were one send.
                    k = 0
                    while k < entries:
                        queue.put_times += 1
                        k += row[k].members
                else:
                    size_bytes += row.size
                if not queue.has_grown:
                    queue.has_grown = True
                    grown.append(queue)
                if entries and not queue.is_dirty:
                    queue.is_dirty = True
                    soiled.append(queue)
                entries = max(entries, 1)
                count += entries
                self.dispatched += entries
        finally:
            for n in range(PyList_Size(grown)):
                queue = <QueueState>PyList_GetItem(grown, n)
                queue.has_grown = False
                if queue.is_prompt or PyByteArray_Size(queue.tail) >= long_bytes:
                    due.append(queue)
        return grown, (count, size_bytes), soiled, due, in_order

    def rows_from(self, Py_ssize_t first):
        """Return rows in the dispatcher's format, without keys; see plain/writebatch.py."""
        cdef list found = []
        cdef Py_ssize_t n
        cdef Row *row
        for n in range(first if first > 0 else 0, self.count):
            row = &self.rows[n]
            if row.queue != NULL:
                found.append((
                    <object>row.queue, row.queue_offset, row.place, row.size, row.tag_code,
                    row.store_ms, (),
                ))
        return found

    def unnamed_queues(self, long long first):
        """Return the queues whose number is below `first`; see plain/writebatch.py."""
        cdef Py_ssize_t n
        cdef Row *row
        cdef dict found = {}
        for n in range(self.count):
            row = &self.rows[n]
            if (row.queue != NULL and row.queue_offset >= 0
                    and (<QueueState>row.queue).number < first):
                found[<object>row.queue] = None
        return list(found)

    def entry_rows(self):
        """Return the journal rows; see plain/writebatch.py."""
        cdef Py_ssize_t n, count = 0
        cdef Row *row
        cdef unsigned char *out
        for n in range(self.count):
            count += self.rows[n].queue != NULL and self.rows[n].queue_offset >= 0
        found = PyBytes_FromStringAndSize(NULL, count * JOURNAL_ROW_BYTES)
        out = <unsigned char *>PyBytes_AsString(found)
        for n in range(self.count):
            row = &self.rows[n]
            if row.queue == NULL or row.queue_offset < 0:
                continue
            put64(out, (<QueueState>row.queue).number)
            put64(out + 8, row.queue_offset)
            put64(out + 16, row.place)
            put32(out + 24, row.size)
            put64(out + 28, row.tag_code)
            out += JOURNAL_ROW_BYTES
        return found

    @property
    def dispatched_count(self):
        """Number of rows that :meth:`dispatch` has processed."""
        return self.dispatched

    @property
    def end(self):
        """Physical offset of the end of the last record; 0 without one."""
        cdef Row *row
        if not self.count:
            return 0
        row = &self.rows[self.count - 1]
        return row.place + row.size

    @property
    def last_ms(self):
        """Store time of the last row, in ms; 0 without one."""
        return self.rows[self.count - 1].store_ms if self.count else 0

    def index_columns(self):
        """Return the hashes, offsets and times of all keys; see plain/writebatch.py."""
        cdef Py_ssize_t n, k, at = 0
        cdef Row *row
        cdef long long *column
        cdef long long *places
        cdef long long *times
        found = PyBytes_FromStringAndSize(NULL, self.hashed * 24)
        column = <long long *>PyBytes_AsString(found)
        places = column + self.hashed
        times = places + self.hashed
        for n in range(self.count):
            row = &self.rows[n]
            if row.queue == NULL:
                continue
            for k in range(row.hash_count):
                column[at] = self.hashes[row.first_hash + k]
                places[at] = row.place
                times[at] = row.store_ms
                at += 1
        size = at * 8
        skipped = self.hashed * 8
        return (
            found[:size], found[skipped:skipped + size], found[2 * skipped:2 * skipped + size]
        )

    def drop(self, queues):
        """Detach the rows of queues that are removed; see plain/writebatch.py."""
        cdef Py_ssize_t n
        for n in range(self.count):
            if self.rows[n].queue != NULL and <object>self.rows[n].queue in queues:
                self.rows[n].queue = NULL

    def take_back(self):
        """Release all queue offsets, because nothing was stored; see plain/writebatch.py."""
        cdef Py_ssize_t n
        for n in range(self.count - 1, -1, -1):
            if self.rows[n].queue != NULL:
                (<QueueState>self.rows[n].queue).next_offset = self.rows[n].queue_offset
                if self.rows[n].role != NO_ROLE:
                    self.let_go(&self.rows[n])
                self.rows[n].queue = NULL

    def answers(self, Py_ssize_t first, Py_ssize_t stop, tuple pieces):
        """Return the answer frames of rows that were stored; see plain/writebatch.py."""
        cdef bytes head, queue_id, offset, opaque, tail, done
        head, queue_id, offset, opaque, tail, done = pieces
        cdef Py_ssize_t fixed = (
            PyBytes_Size(head) + PyBytes_Size(queue_id) + PyBytes_Size(offset)
            + PyBytes_Size(opaque) + PyBytes_Size(tail) + PyBytes_Size(done)
        )
        cdef unsigned char *out
        cdef unsigned char *p
        cdef unsigned char *begin
        cdef Bytes ids = <Bytes>PyBytes_AsString(head) + PyBytes_Size(head) - 16
        cdef Py_ssize_t n, k
        cdef Row *row
        if first < 0 or stop > self.count or first > stop:
            raise IndexError("no such rows")
        if PyBytes_Size(head) < 16:
            raise ValueError("a head without the store host")
        # The physical offset takes 16 hexadecimal digits; in an answer that names several, each
        # takes less than an answer of its own.
        out = <unsigned char *>malloc((stop - first) * (8 + fixed + 16 + 3 * DIGITS_MAX) + 1)
        if out == NULL:
            raise MemoryError
        try:
            p = out
            for n in range(first, stop):
                row = &self.rows[n]
                if row.oneway:
                    continue
                begin = p
                p += 8
                if row.role == OP:
                    p = _copy(p, done)
                else:
                    p = _copy(p, head)
                    p = put_hex(p, row.place)
                    for k in range(n + 1, min(n + <Py_ssize_t>row.members, stop)):
                        p[0] = c','
                        memcpy(p + 1, ids, 16)
                        p = put_hex(p + 17, self.rows[k].place)
                    p = _copy(p, queue_id)
                    p = put_decimal(p, row.queue_id)
                    p = _copy(p, offset)
                    p = put_decimal(p, row.queue_offset)
                    p = _copy(p, opaque)
                p = put_decimal(p, row.opaque)
                p = _copy(p, tail)
                put32(begin, <unsigned int>(p - begin - 4))
                put32(begin + 4, <unsigned int>(p - begin - 8))
            return PyBytes_FromStringAndSize(<const char *>out, p - out)
        finally:
            free(out)

    def opaques(self, Py_ssize_t first, Py_ssize_t stop):
        """Return the answer data of each row; see plain/writebatch.py."""
        if first < 0 or stop > self.count or first > stop:
            raise IndexError("no such rows")
        return [
            (self.rows[n].opaque, bool(self.rows[n].oneway), self.rows[n].queue_id,
             self.rows[n].queue_offset,
             self.places(n, min(n + <Py_ssize_t>self.rows[n].members, stop)),
             self.rows[n].role == OP)
            for n in range(first, stop)
        ]

    def places(self, Py_ssize_t first, Py_ssize_t stop):
        """Return the physical offsets of rows."""
        if first < 0 or stop > self.count or first > stop:
            raise IndexError("no such rows")
        return [self.rows[n].place for n in range(first, stop)]

    def message_ids(self, Py_ssize_t first, Py_ssize_t stop, bytes host not None):
        """Return the message ids of rows, joined by commas; see plain/writebatch.py."""
        cdef Py_ssize_t n, size, host_bytes = PyBytes_Size(host)
        cdef Bytes prefix = <Bytes>PyBytes_AsString(host)
        cdef unsigned char *out
        if first < 0 or stop > self.count or first > stop:
            raise IndexError("no such rows")
        size = (stop - first) * (host_bytes + 17)
        found = PyBytes_FromStringAndSize(NULL, size - 1 if size else 0)
        out = <unsigned char *>PyBytes_AsString(found)
        for n in range(first, stop):
            if n > first:
                out[0] = c','
                out += 1
            memcpy(out, prefix, host_bytes)
            out = put_hex(out + host_bytes, self.rows[n].place)
        return found


cdef inline unsigned char *_copy(unsigned char *p, bytes text) except NULL:
    cdef Py_ssize_t size = PyBytes_Size(text)
    memcpy(p, PyBytes_AsString(text), size)
    return p + size
