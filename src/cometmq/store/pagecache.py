"""Asking the system which bytes of a map it has in memory (mincore, Linux).

Unlike a read that must not wait (RWF_NOWAIT) this copies nothing: 1.2 us for 72 KB, which take 8 us
and more to copy. The answer is of the moment: short of memory the system may take a page away right
after it, and touching it then waits for the device once.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.store.files import Residency

_PAGE_BYTES: Final = mmap.PAGESIZE
_MAX_PAGES: Final = 1 << 12


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer, of which only the address is of interest."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.py_object),
        ("size_bytes", ctypes.c_ssize_t),
        ("item_bytes", ctypes.c_ssize_t),
        ("is_readonly", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("rest", ctypes.c_void_p * 5),
    )


def residency(mapped: memoryview) -> Residency:
    """What answers for a map. Where there is no such call nothing is in memory for certain."""
    try:
        mincore = ctypes.CDLL(None).mincore
    except (AttributeError, OSError):
        return lambda _start, _stop: False
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    answer = bytearray(_MAX_PAGES)
    answer_at = ctypes.addressof((ctypes.c_char * len(answer)).from_buffer(answer))
    begin, end = _address_of(mapped), len(mapped)

    def is_resident(start: int, stop: int) -> bool:
        first = start - start % _PAGE_BYTES
        pages = (stop - first + _PAGE_BYTES - 1) // _PAGE_BYTES
        # The view is named here to keep the map: another might stand at its address else.
        if stop > end or pages > _MAX_PAGES or not mapped:
            return False
        return not mincore(begin + first, stop - first, answer_at) and answer.find(0, 0, pages) < 0

    return is_resident


def _address_of(mapped: memoryview) -> int:
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapped), ctypes.byref(buffer), 0)
    address: int = buffer.address
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address
