# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Answers to plain sends and transactions, written directly to their sockets if possible.

Compiled; plain/sendanswers.py is the definition.
"""

from cometmq.speedups.compiled.writebatch cimport WriteBatch

cdef extern from "Python.h":
    object PyBytes_FromStringAndSize(const char *, Py_ssize_t)
    char *PyBytes_AsString(object) except NULL
    Py_ssize_t PyBytes_Size(object) except -1
    Py_ssize_t PyList_Size(object) except -1

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/socket.h>
    /* Return the bytes that the socket accepted; 0 if it accepts none now, or if it failed. The
       transport reports the failure. */
    static Py_ssize_t send_now(int handle, const char *data, Py_ssize_t size) {
        ssize_t sent = send(handle, data, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
        return sent > 0 ? (Py_ssize_t)sent : 0;
    }
    #else
    static Py_ssize_t send_now(int handle, const char *data, Py_ssize_t size) { return 0; }
    #endif
    """
    Py_ssize_t send_now(int handle, const char *data, Py_ssize_t size) nogil


cdef class Outlet:
    """The socket of a connection; see plain/sendanswers.py."""

    cdef public int handle
    cdef public list queued
    cdef public object unsent_bytes

    def __init__(self, int handle, list queued not None, unsent_bytes):
        self.handle = handle
        self.queued = queued
        self.unsent_bytes = unsent_bytes

    cdef Py_ssize_t send(self, bytes data) except -1:
        """Send without blocking and return the number of bytes sent."""
        if self.handle < 0 or PyList_Size(self.queued):
            return 0
        try:
            if self.unsent_bytes():
                return 0
        except RuntimeError:
            # The transport released its socket, and the descriptor may belong to another one
            # already.
            self.handle = -1
            return 0
        return send_now(self.handle, PyBytes_AsString(data), PyBytes_Size(data))


def send_answers(list rows not None, tuple pieces not None):
    """Send the answers of rows that were stored; see plain/sendanswers.py."""
    cdef dict found = {}
    cdef list left = []
    cdef WriteBatch batch
    cdef Py_ssize_t first, stop, sent
    cdef bytes data
    for owner, batch, first, stop in rows:
        data = batch.answers(first, stop, pieces)
        before = found.get(owner)
        found[owner] = data if before is None else before + data
    for owner, data in found.items():
        outlet = owner.outlet
        sent = 0 if outlet is None else (<Outlet?>outlet).send(data)
        if sent < PyBytes_Size(data):
            left.append((owner, data[sent:]))
    return left
