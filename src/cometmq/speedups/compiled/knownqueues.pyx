# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The table of queues that plain sends may be appended to.

Compiled; plain/knownqueues.py is the definition. It is a hash table with open addressing: a lookup
reads one line of memory, whose address follows from topic and queue id alone, so that the lookups
of many sends can be prefetched.
"""

import os

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from cometmq.speedups.compiled.octets cimport Bytes
from cometmq.speedups.compiled.prefetching cimport prefetch
from cometmq.speedups.compiled.writebatch cimport QueueState

cdef extern from "Python.h":
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1

cdef enum:
    #: Maximum number of slots that a lookup reads. A queue that would need more is not kept.
    PROBES_MAX = 256
    CAPACITY_MIN = 1024


cdef class KnownQueues:
    """Queues by topic and queue id; see plain/knownqueues.py."""

    def __cinit__(self):
        # Topic names come from clients, who must not be able to choose their slots.
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.slots = <Slot *>calloc(CAPACITY_MIN, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError
        self.capacity = CAPACITY_MIN
        self.used = self.count = 0

    def __dealloc__(self):
        if self.slots != NULL:
            _release(self.slots, self.capacity)

    def __len__(self):
        return self.count

    def add(self, QueueState queue not None):
        """Add a queue; it replaces one of the same topic and queue id."""
        cdef Bytes topic = <Bytes>PyBytes_AsString(queue.topic_tail)
        cdef Py_ssize_t size = PyBytes_Size(queue.topic_tail), n, at
        cdef unsigned long long hash
        cdef Slot *slot
        cdef Slot *place = NULL
        cdef void *before
        if size < 1:
            raise ValueError("a queue without a topic")
        if (self.used + 1) * 2 > self.capacity:
            self._grow()
        hash = self.hash_of(topic + 1, size - 1, queue.queue_id)
        at = <Py_ssize_t>(hash & <unsigned long long>(self.capacity - 1))
        for n in range(PROBES_MAX):
            slot = &self.slots[(at + n) & (self.capacity - 1)]
            if slot.queue == NULL:
                if place == NULL:
                    place = slot
                if not slot.hash:
                    break
            elif slot.hash == hash and _is_place(slot.queue, topic + 1, size - 1, queue.queue_id):
                place = slot
                break
        if place == NULL:
            return
        before = place.queue
        self.count += before == NULL
        self.used += not place.hash
        Py_INCREF(queue)
        place.queue = <void *>queue
        place.hash = hash
        if before != NULL:
            Py_DECREF(<object>before)

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
                Py_DECREF(queue)
                return
            if not slot.hash:
                return

    def clear(self):
        """Remove all queues."""
        cdef Slot *old = self.slots
        cdef Py_ssize_t capacity = self.capacity
        cdef Slot *made
        if not self.used:
            return
        # A small table again: clearing one costs as much as its queues did.
        made = <Slot *>calloc(CAPACITY_MIN, sizeof(Slot))
        if made == NULL:
            raise MemoryError
        self.slots = made
        self.capacity = CAPACITY_MIN
        self.used = self.count = 0
        _release(old, capacity)

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
        cdef Slot *made = <Slot *>calloc(capacity, sizeof(Slot))
        cdef list left = []
        cdef Slot *slot
        cdef bint has_place
        if made == NULL:
            raise MemoryError
        for n in range(self.capacity):
            if old[n].queue == NULL:
                continue
            at = <Py_ssize_t>(old[n].hash & <unsigned long long>(capacity - 1))
            has_place = False
            for k in range(PROBES_MAX):
                slot = &made[(at + k) & (capacity - 1)]
                if not slot.hash:
                    slot[0] = old[n]
                    has_place = True
                    count += 1
                    break
            if not has_place:
                left.append(<object>old[n].queue)
                Py_DECREF(<object>old[n].queue)
        self.slots = made
        self.capacity = capacity
        self.used = self.count = count
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


cdef void _release(Slot *slots, Py_ssize_t capacity) noexcept:
    """Release the queues of a table and free it."""
    cdef Py_ssize_t n
    for n in range(capacity):
        if slots[n].queue != NULL:
            Py_DECREF(<object>slots[n].queue)
    free(slots)


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
