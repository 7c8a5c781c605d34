"""Java's ``String.hashCode``, and the hash under which the index stores a key.

Compiled; plain/hashing.py is the definition.
"""

from libc.stdint cimport int32_t, uint32_t


cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    Py_ssize_t PyUnicode_GetLength(object text) except -1
    uint32_t PyUnicode_ReadChar(object text, Py_ssize_t index) except? 0xFFFFFFFF
    unsigned long long PyLong_AsUnsignedLongLongMask(object number) except? 0xFFFFFFFFFFFFFFFF


cdef uint32_t SIGN = 0x80000000


def java_hash(text):
    return <int32_t>extended(0, text)


def index_hashes(prefixes, keys):
    cdef Py_ssize_t count = len(keys)
    if len(prefixes) != count:
        raise ValueError(f"{len(prefixes)} prefixes for {count} keys")
    cdef list hashes = []
    cdef uint32_t value
    for prefix, key in zip(prefixes, keys, strict=True):
        value = extended(<uint32_t>PyLong_AsUnsignedLongLongMask(prefix), key)
        hashes.append((0 - value) & (SIGN - 1) if value & SIGN else value)
    return hashes


cdef uint32_t extended(uint32_t value, object text) except? 0xFFFFFFFF:
    """Return the hash of a prefix followed by ``text``; ``value`` is the prefix's hash."""
    cdef Py_ssize_t length = PyUnicode_GetLength(text)
    cdef Py_ssize_t size = -1
    cdef Py_ssize_t index
    cdef uint32_t char
    cdef const char *utf8 = NULL
    try:
        utf8 = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        pass  # a lone surrogate
    if size == length:
        for index in range(length):
            value = value * 31 + <unsigned char>utf8[index]
        return value
    for index in range(length):
        char = PyUnicode_ReadChar(text, index)
        if char >= 0x10000:
            char -= 0x10000
            value = value * 31 + (0xD800 | char >> 10)
            char = 0xDC00 | char & 0x3FF
        value = value * 31 + char
    return value
